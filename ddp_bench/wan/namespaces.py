"""Namespaces of a network: make them, find what is left of dead ones, remove them.

Only names that begin with PREFIX are ever touched, and nothing is done outside of them: the host's
devices, addresses and routes stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from ddp_bench.errors import ConfigError
from ddp_bench.wan import tun
from ddp_bench.wan.network import Endpoints, Network

PREFIX = "hippowan-"
TERM_S = 2.0  # how long processes in a namespace may take to end


def namespace(network: str, domain: int) -> str:
    """The namespace of a domain, by number."""
    return f"{PREFIX}{network}-{domain}"


def existing(network: str | None = None) -> list[str]:
    """Namespaces of a network, or of all; in the order of their names."""
    start = f"{PREFIX}{network}-" if network else PREFIX
    if not tun.NETNS.is_dir():
        return []
    names = (path.name for path in tun.NETNS.iterdir())
    # A network may be called a-1: what follows its name must be a number.
    return sorted(
        n for n in names if n.startswith(start) and (not network or n[len(start) :].isdigit())
    )


def network_of(name: str) -> str:
    """The network that a namespace belongs to."""
    return name[len(PREFIX) :].rpartition("-")[0]


def _ip(*words: str) -> str:
    """Run `ip`; its output. Raises ConfigError with its message."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"ip {' '.join(words)}: {done.stderr.strip() or 'failed'}")
    return done.stdout


def create(network: Network, domain: int) -> int:
    """Make the namespace of a domain with its device; the device's file. Raises ConfigError."""
    name = namespace(network.name, domain)
    _ip("netns", "add", name)
    try:
        fd = tun.open_tun(name)
    except OSError as error:
        raise ConfigError(f"{name}: no TUN device: {error.strerror}") from None
    tun.set_offload(fd, not any(link.loss for link in network.links.values()))
    with tun.inside(name):
        _tune(network.endpoints)
        _ip("link", "set", "lo", "up")
        _ip("addr", "add", f"{tun.address(domain)}/16", "dev", tun.DEVICE)
        _ip("link", "set", tun.DEVICE, "mtu", str(network.endpoints.mtu), "up")
    return fd


def _tune(endpoints: Endpoints) -> None:
    """Sockets that can fill a long link, and do not forget it while a step computes."""
    most = int(endpoints.buffer_mb * 1e6)
    settings = {
        "ipv6/conf/all/disable_ipv6": "1",  # no router solicitations on the links
        "ipv4/tcp_congestion_control": endpoints.congestion,
        # A window that opens over many round trips would hold back the first large message.
        "ipv4/tcp_rmem": f"4096 {most // 4} {most}",
        "ipv4/tcp_wmem": f"4096 65536 {most}",
        "ipv4/tcp_slow_start_after_idle": "0",
        "ipv4/tcp_no_metrics_save": "1",
    }
    for key, value in settings.items():
        path = Path("/proc/sys/net") / key
        try:
            path.write_text(value)
        except OSError as error:
            if path.exists():  # a kernel without IPv6 has nothing to switch off
                raise ConfigError(f"{path}: {value!r} is refused: {error.strerror}") from None


def processes(name: str) -> list[int]:
    """Ids of the processes in a namespace."""
    with contextlib.suppress(ConfigError):
        return [int(word) for word in _ip("netns", "pids", name).split()]
    return []


def remove(names: list[str]) -> int:
    """End the processes in these namespaces and delete them; how many processes there were."""
    found = {pid for name in names for pid in processes(name)} - {os.getpid()}
    _signal(found, signal.SIGTERM)
    deadline = time.monotonic() + TERM_S
    while (left := [pid for pid in found if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    _signal(left, signal.SIGKILL)
    for name in names:
        with contextlib.suppress(ConfigError):  # another clean-up was faster
            _ip("netns", "delete", name)
    return len(found)


def _signal(pids: set[int] | list[int], which: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
