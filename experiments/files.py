"""Reading CSV tables and writing text files: a fault is one line and leaves nothing behind."""

from __future__ import annotations

import json
import os
import warnings
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records import replacing, to_jsonable, write_json
from jaxsim.errors import InputError

COMPRESSED = (".gz", ".bz2", ".zip", ".xz", ".zst", ".tar")


def read_text_table(path: str | Path) -> pd.DataFrame:
    """Read a CSV file (compressed or not), every cell as stripped text, index = line in the file.

    Text, because a region may be called NA, and because only the reader of a column knows what
    a good value is. Raises InputError where the file is not a CSV table with at least one row.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row longer than the header
            frame = pd.read_csv(
                path,
                dtype=str,
                keep_default_na=False,
                skip_blank_lines=False,  # or the line numbers would drift
                index_col=False,
                encoding="utf-8-sig",
            )
    except (OSError, EOFError, ValueError, zlib.error, pd.errors.ParserWarning) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as a CSV table: {why}") from None
    frame = frame.fillna("").apply(lambda column: column.str.strip())
    frame.index = frame.index + 2
    frame = frame[(frame != "").any(axis=1)]
    if frame.empty:
        raise InputError(f"{path}: holds no row below its header")
    return frame


def require_columns(frame: pd.DataFrame, columns: Sequence[str], path: str | Path) -> None:
    """Raise InputError that names the columns of `columns` that `frame` lacks."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(
            f"{path}: missing column {', '.join(missing)}; needed: {', '.join(columns)}; "
            f"the file has: {', '.join(frame.columns)}"
        )


def numbers(text: pd.Series, path: str | Path, above: float | None = None) -> np.ndarray:
    """Return the column as finite floats that are >= 0, or > `above` where it is given.

    Raises InputError that names the file, the line and the column of the first bad value.
    """
    values = pd.to_numeric(text, errors="coerce").to_numpy(float)
    good = np.isfinite(values) & (values >= 0 if above is None else values > above)
    if not good.all():
        first = int(np.argmin(good))
        allowed = ">= 0" if above is None else f"> {above:g}"
        raise InputError(
            f"{path}: line {text.index[first]}: {text.name}: expected a number {allowed}, "
            f"got {text.iloc[first]!r}"
        )
    return values


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
