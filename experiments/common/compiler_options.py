"""Options of XLA, which ends the process for one that it does not know: look for them first."""

from __future__ import annotations

import mmap
import os
from importlib.util import find_spec
from pathlib import Path


def add_options(*options: str) -> tuple[str, ...]:
    """Put options, --NAME=VALUE each, into XLA_FLAGS, before JAX first computes; processes started
    later inherit them.

    Returns those added: not the ones that are there already, nor those that this version of XLA does
    not know.
    """
    present = os.environ.get("XLA_FLAGS", "").split()
    new = tuple(one for one in options if one not in present and _known(one))
    if new:
        os.environ["XLA_FLAGS"] = " ".join([*new, *present])
    return new


def _known(option: str) -> bool:
    """Does XLA's library hold the name of this option? To start a process with it takes seconds."""
    name = option.removeprefix("--").partition("=")[0]
    jaxlib = find_spec("jaxlib")
    folders = (jaxlib.submodule_search_locations or ()) if jaxlib else ()
    libraries = [path for folder in folders for path in Path(folder).glob("*.so*")]
    return any(_holds(path, b"\0" + name.encode() + b"\0") for path in libraries)


def _holds(path: Path, text: bytes) -> bool:
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held,
    ):
        return held.find(text) >= 0
