"""Worlds that were built before, kept on disk: to enumerate and score plans takes a minute for eight
regions.

A world is found again by what it was asked for, by the files of the packages that build it, and by what
computes it. Whatever changes one of these is built anew, so nothing that is kept can be out of date.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

import agents
import jaxsim

try:
    import fcntl
except ImportError:  # not on this operating system: two processes may build the same
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
SWITCH = "HIPPO_KEEP_WORLDS"  # of the environment; 0 = build anew, keep nothing
MOST = 32  # that are kept: those that were used last


def kept(asked: bytes, folder: Path, build: Callable[[], T]) -> T:
    """What `build` returns, from the folder where it was built before. `asked` is all that it depends
    on. One process builds, others wait for it. A folder that cannot be written keeps nothing."""
    if os.environ.get(SWITCH) == "0":
        return build()
    name = hashlib.sha256(asked + _made_by()).hexdigest()
    path = folder / f"{name}.pickle"
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_alone(folder / f"{name}.lock"))
        except OSError:
            return build()
        found = _read(path)
        if not found:
            found = [build()]
            _write(path, found)
        return found[0]


def _read(path: Path) -> list[Any]:
    """What is kept, or nothing: where a file is broken, too."""
    try:
        found = pickle.loads(path.read_bytes())
        os.utime(path)
    except Exception:
        return []
    return found if isinstance(found, list) else []


def _write(path: Path, found: list[Any]) -> None:
    """Keep it, whole or not at all, and drop what was not used for longest."""
    aside = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        try:
            aside.write_bytes(pickle.dumps(found))
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
        for old in sorted(path.parent.glob("*.pickle"), key=lambda p: -p.stat().st_mtime)[MOST:]:
            old.unlink(missing_ok=True)
            old.with_suffix(".lock").unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """While no other process builds the same."""
    with path.open("w") as handle:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _made_by() -> bytes:
    """The packages' files, versions, and how the compiler is told to compute."""
    versions = (jax.__version__, np.__version__, jax.default_backend())
    flags = (
        os.environ.get("XLA_FLAGS", ""),
        bool(jax.config.read("jax_disable_most_optimizations")),
    )
    return pickle.dumps((_digest(), versions, flags))


@functools.cache
def _digest() -> str:
    """Of all files of the packages that build worlds."""
    found = hashlib.sha256()
    for package in (jaxsim, agents):
        root = Path(package.__path__[0])
        for path in sorted(p for p in root.rglob("*") if p.is_file() and p.suffix != ".pyc"):
            found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()
