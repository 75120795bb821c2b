"""Start what `ddp_bench` does in processes of its own; nothing of it is imported here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analysis.records import to_jsonable, write_json
from jaxsim.files import InputError

PATIENCE_S = 30.0  # for what was interrupted to end
ROOT = Path(__file__).parents[2]


def python(*words: str) -> int:
    """Run a module of this installation; its exit status."""
    process = subprocess.Popen([sys.executable, "-m", *words], env=_environment())
    try:
        return process.wait()
    except KeyboardInterrupt:  # which it has heard as well: it ends its ranks and writes its tables
        process.wait(PATIENCE_S)
        raise


def _owned() -> tuple[str, str]:
    """Options of what is to end with this process."""
    return "--owner", str(os.getpid())


def _environment() -> dict[str, str]:
    """One compute thread per rank, and this checkout importable from anywhere."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    found = {"OMP_NUM_THREADS": "1", **os.environ}
    return {**found, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def reason_missing() -> str:
    """What is missing here for an emulated network, "" if nothing."""
    words = [sys.executable, "-m", "ddp_bench.wan", "capability"]
    done = subprocess.run(words, env=_environment(), capture_output=True, text=True, check=False)
    return done.stdout.strip()


def up(network: dict[str, Any], *, stays: bool = True) -> int:
    """Bring a resolved network up in the background; the exit status. One that does not stay goes down
    with this process, however this ends."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.json"
        write_json(file, network)
        return python("ddp_bench.wan", "up", str(file), *(() if stays else _owned()))


@contextmanager
def _file_of(body: dict[str, Any]) -> Iterator[str]:
    """The path of a JSON file that is gone with this process, however that ends."""
    with tempfile.TemporaryFile("w", encoding="utf-8") as file:
        json.dump(to_jsonable(body), file, allow_nan=False)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def train(network: dict[str, Any], job: dict[str, Any], out: str | None) -> int:
    """Bring a network up, train over it, take it down, however training ends; the exit status."""
    if status := up(network, stays=False):
        return status
    try:
        with _file_of(job) as file:
            words = (file, *_owned(), *(("--out", out) if out else ()))
            return python("ddp_bench.parallel", *words)
    finally:
        python("ddp_bench.wan", "down", "--name", network["name"])


def train_here(job: dict[str, Any], out: str) -> int:
    """Train on this host without an emulated network, and print nothing; the exit status."""
    with _file_of(job) as file:
        words = [sys.executable, "-m", "ddp_bench.parallel", file, *_owned(), "--out", out]
        done = subprocess.run(words, env=_environment(), stdout=subprocess.DEVNULL, check=False)
        return done.returncode


@contextmanager
def training(
    network: dict[str, Any], job: dict[str, Any], out: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A network that is up and a run over it, within this block; afterwards both are gone. Raises
    InputError where the network does not come up."""
    if up(network, stays=False):
        raise InputError(f"network {network['name']}: did not come up")
    try:
        with _file_of(job) as file:
            words = [sys.executable, "-m", "ddp_bench.parallel", file, *_owned(), "--out", out]
            process = subprocess.Popen(words, env=_environment(), stdout=subprocess.DEVNULL)
            try:
                yield process
            finally:
                end(process)
    finally:
        python("ddp_bench.wan", "down", "--name", network["name"])


def spawn(*words: str, **settings: Any) -> subprocess.Popen[bytes]:
    """Start a module of this installation in the background."""
    return subprocess.Popen([sys.executable, "-m", *words], env=_environment(), **settings)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that still runs; it has time to end its own."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def write(network: dict[str, Any], target: str) -> None:
    """Write a resolved network to a file. Raises InputError where there is no place for it."""
    if not Path(target).resolve().parent.is_dir():
        raise InputError(f"--write {target}: the folder does not exist")
    write_json(Path(target), network)
