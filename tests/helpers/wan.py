"""Tests of emulated networks: who may run them, and what is there before and after."""

import contextlib
import fcntl
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from ddp_bench.wan import missing

# tests/conftest.py skips such a test where networks cannot be made, and runs one of them at a time.
needs_networks = pytest.mark.networks


@contextlib.contextmanager
def alone():
    """No other test process emulates a network: each looks at what is left behind on the machine."""
    if reason := missing():
        pytest.skip(f"emulated networks cannot be made here: {reason}")
    with open(Path(tempfile.gettempdir(), f"hippo-tests-{os.getuid()}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def host_state():
    """Namespaces, devices, routes, processes of emulator and training, and files of state, as they are
    now."""

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout

    processes = [
        pid.name
        for pid in Path("/proc").iterdir()
        if pid.name.isdigit() and int(pid.name) != os.getpid() and _ours(_command(pid))
        if not _of_another_worker(int(pid.name))
    ]
    return {
        "namespaces": sorted(line.split()[0] for line in ip("netns", "list").splitlines()),
        "devices": ip("-br", "link"),
        "routes": ip("route"),
        "processes": sorted(processes),
        "temporary": sorted(map(str, Path(tempfile.gettempdir()).glob("tmp*/network.json"))),
        "files": sorted(os.listdir("/run/hippo-wan")) if os.path.isdir("/run/hippo-wan") else [],
    }


def _ours(command):
    return any(word in command for word in (b"ddp_bench.wan", b"ddp_bench.parallel"))


def _of_another_worker(pid):
    """Does another test process, beside this one, still hold it? It is that one's affair."""
    while pid > 1 and pid != os.getpid():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return True  # gone meanwhile
        parent = int(stat.rpartition(")")[2].split()[1])
        if parent == os.getppid():
            return True
        pid = parent
    return False


def _command(pid):
    try:
        return (pid / "cmdline").read_bytes()
    except OSError:
        return b""
