"""Writing results and text files: a fault is one line and leaves nothing behind."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from analysis.records import replacing, to_jsonable, write_json
from jaxsim.files import InputError

COMPRESSED = (".gz", ".bz2", ".zip", ".xz", ".zst", ".tar")


def check_output(path: str | Path, option: str = "--out") -> Path:
    """Return `path` resolved if a text file can be put there; else raise InputError that names the
    option it was given with."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise InputError(f"{option} {path}: the folder {target.parent} does not exist")
    if target.exists() and not target.is_file():
        raise InputError(f"{option} {path}: exists and is not a file")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{option} {path}: the folder {target.parent} cannot be written to")
    if target.suffix in COMPRESSED:
        raise InputError(f"{option} {path}: plain text is written; leave out {target.suffix}")
    return target


def put_result(result: dict, target: str | None) -> bool:
    """Write a command's `--json` result: to a file, or as all of standard output where `target` is
    "-"; returns whether standard output is still free for people. None writes nothing."""
    if target == "-":
        print(json.dumps(to_jsonable(result), indent=2, allow_nan=False))
    elif target is not None:
        write_json(target, result)
    return target != "-"


def write_text(path: Path, text: str, check: Callable[[Path], object]) -> None:
    """Write `text` beside `path`, let `check` read it, then move it into place.

    Whatever goes wrong, an older file at `path` is untouched. Raises what `check` raises, and
    InputError where the file system refuses.
    """
    try:
        with replacing(path) as file:
            file.write(text)
            file.flush()
            check(Path(file.name))
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written: {error.strerror or error}") from None
