"""Networks come up and go down, and what a killed one left behind is cleared away.

An emulator holds a lock as long as it lives, whatever ends it. A namespace or a file whose network
nobody holds is left over: the next network that comes up removes it, and `down --all` does.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ddp_bench.errors import ConfigError
from ddp_bench.wan import namespaces, tun
from ddp_bench.wan.capability import missing
from ddp_bench.wan.control import Server, ask
from ddp_bench.wan.emulator import Emulator
from ddp_bench.wan.network import Network, read_network

STATE = Path("/run/hippo-wan")
START_S, STOP_S = 30.0, 10.0  # how long a network may take to come up, and to go down


def _file(name: str, kind: str) -> Path:
    return STATE / f"{name}.{kind}"


def socket_of(name: str) -> Path:
    """Where the emulator of a network listens."""
    return _file(name, "sock")


def require_capability() -> None:
    """Raise ConfigError where this process may not make networks."""
    if reason := missing():
        raise ConfigError(f"no emulated network here: {reason}")


@contextmanager
def _lock(path: Path, wait: bool) -> Iterator[bool]:
    """Hold the lock of a file, or of the folder STATE, in this block; whether it is held (with
    `wait`, it is)."""
    STATE.mkdir(mode=0o755, exist_ok=True)
    how = os.O_RDONLY if path == STATE else os.O_RDWR | os.O_CREAT
    while True:
        try:
            fd = os.open(path, how | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # the folder has just been removed
            STATE.mkdir(mode=0o755, exist_ok=True)
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if not _is_at(fd, path):  # removed between opening and locking it
                os.close(fd)
                continue
        except BlockingIOError:
            os.close(fd)
            yield False
            return
        break
    try:
        yield True
    finally:
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


@contextmanager
def _alone() -> Iterator[None]:
    """In this block no other process makes or clears networks. An empty folder does not stay."""
    with _lock(STATE, wait=True):
        yield
        with contextlib.suppress(OSError):
            STATE.rmdir()


def is_up(name: str) -> bool:
    """Whether an emulator holds the network."""
    if not _file(name, "lock").exists():
        return False
    with _lock(_file(name, "lock"), wait=False) as free:
        return not free


def known() -> list[str]:
    """Networks of which something is there, alive or not."""
    names = {namespaces.network_of(name) for name in namespaces.existing()}
    if STATE.is_dir():
        names |= {path.stem for path in STATE.iterdir()}
    return sorted(names)


def sweep() -> list[str]:
    """Remove what dead networks left behind; their names."""
    dead = [name for name in known() if not is_up(name)]
    for name in dead:
        _clear(name)
    return dead


# --- the emulator's process -----------------------------------------------------------------------


def serve(network: Network, owner: int | None = None) -> None:
    """Bring a network up, hold it until a signal or `stop` comes or the process `owner` ends, however
    that ends, and take it down.

    Raises ConfigError where it is up already or cannot be made; nothing is left behind then.
    """
    require_capability()
    with contextlib.ExitStack() as held:
        watched = None if owner is None else held.enter_context(_watched(owner))
        # Both locks in this order: who clears away holds the first one, too.
        with _alone():
            if not held.enter_context(_lock(_file(network.name, "lock"), wait=False)):
                raise ConfigError(f"network {network.name!r} is up already")
            sweep()
            # A dead network of this very name: the lock makes it look alive to the sweep.
            namespaces.remove(namespaces.existing(network.name))
            held.callback(_clear, network.name)
            devices = [namespaces.create(network, k) for k in range(len(network.domains))]
        server = held.enter_context(contextlib.closing(Server(socket_of(network.name))))
        emulator = Emulator(network, devices, server, watched)
        for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(which, emulator.stop)
        record = {"pid": os.getpid(), "domains": list(network.domains)}
        _file(network.name, "json").write_text(json.dumps(record))
        emulator.run()
    with _alone():
        pass


@contextmanager
def _watched(pid: int) -> Iterator[int]:
    """A file that can be read once a process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise ConfigError(f"owner: there is no process {pid}") from None
    except OSError as error:
        raise ConfigError(f"owner: process {pid} cannot be watched: {error.strerror}") from None
    try:
        yield fd
    finally:
        os.close(fd)


def _clear(name: str) -> None:
    """Remove everything that there is of a network that no other process holds."""
    namespaces.remove(namespaces.existing(name))
    for kind in ("sock", "json", "log", "lock"):
        _file(name, kind).unlink(missing_ok=True)


# --- from outside ---------------------------------------------------------------------------------


def up(file: Path, owner: int | None = None) -> Network:
    """Start the emulator of a resolved network in the background; returns once it works. It ends with
    the process `owner`, if one is given.

    Raises ConfigError with the emulator's own line where it does not come up.
    """
    require_capability()
    network = read_network(file)
    STATE.mkdir(mode=0o755, exist_ok=True)
    if is_up(network.name):
        raise ConfigError(f"network {network.name!r} is up already")
    words = [
        "serve",
        str(Path(file).resolve()),
        *(("--owner", str(owner)) if owner is not None else ()),
    ]
    # Read by its handle: an emulator that fails removes its files, this one too.
    with open(_file(network.name, "log"), "w+", errors="replace") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ddp_bench.wan", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(ConfigError):
                ask(socket_of(network.name), network.name, do="counters")
                return network
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        log.seek(0)
        said = log.read().strip().splitlines()
    with _alone():
        sweep()
    raise ConfigError(said[-1].removeprefix("wan: ") if said else "the emulator did not start")


def down(name: str) -> bool:
    """Take a network down, alive or not; whether there was anything."""
    require_capability()
    there = name in known()
    if is_up(name):
        _end(name)
    with _alone():
        sweep()
    return there


def _end(name: str) -> None:
    """End the emulator that holds a network, and wait until its process is gone."""
    try:
        pid = ask(socket_of(name), name, do="stop")["pid"]
    except ConfigError:  # it starts, or hangs; the lock says that the process of the record is it
        pid = _record(name)["pid"]
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_S
    while namespaces.alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def command(name: str, domain: str, words: list[str]) -> list[str]:
    """The command line that runs `words` inside a domain of a network that is up."""
    record = _record(name)
    if domain not in record["domains"]:
        raise ConfigError(f"domain {domain!r}: allowed {', '.join(record['domains'])}")
    index = record["domains"].index(domain)
    return ["ip", "netns", "exec", namespaces.namespace(name, index), *words]


def inside_domain(name: str, domain: int) -> AbstractContextManager[None]:
    """A block within which this thread, and what it starts, is in a domain, given by number."""
    return tun.inside(namespaces.namespace(name, domain))


def _record(name: str) -> dict[str, Any]:
    try:
        return json.loads(_file(name, "json").read_text())
    except (OSError, ValueError):
        raise ConfigError(f"network {name!r} is not up") from None
