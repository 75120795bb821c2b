"""JSON files: written whole or not at all, and every value in them plain."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


class RecordError(ValueError):
    """A run folder or a value for one is not what the schema says. One line: file, key, allowed."""


def to_jsonable(obj: Any, key: str = "") -> Any:
    """`obj` as what strict JSON can hold; NaN and infinities become None.

    Takes numpy (and other) arrays and scalars, dataclasses, enums, paths, dates, mappings,
    sequences and sets. `key` is the path reported when something else is met.

    Raises:
        RecordError: naming the key that holds a value of another type.
    """
    if obj is None or isinstance(obj, str | bool):
        return obj.value if isinstance(obj, enum.Enum) else obj
    if isinstance(obj, enum.Enum):
        return to_jsonable(obj.value, key)
    if isinstance(obj, int):
        return int(obj)
    if isinstance(obj, float):
        return float(obj) if math.isfinite(obj) else None
    if isinstance(obj, os.PathLike):
        return os.fspath(obj)
    if hasattr(obj, "isoformat"):
        return obj.isoformat()
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        pairs = ((field.name, getattr(obj, field.name)) for field in dataclasses.fields(obj))
        return {name: to_jsonable(value, f"{key}.{name}".lstrip(".")) for name, value in pairs}
    if isinstance(obj, Mapping):
        return {str(k): to_jsonable(v, f"{key}.{k}".lstrip(".")) for k, v in obj.items()}
    if isinstance(obj, set | frozenset):
        obj = sorted(obj, key=str)
    if isinstance(obj, Sequence) and not isinstance(obj, bytes | bytearray):
        return [to_jsonable(value, f"{key}[{i}]") for i, value in enumerate(obj)]
    if hasattr(obj, "__array__"):
        import numpy as np

        array = np.asarray(obj)
        if array.dtype.kind in "biufUM":
            return to_jsonable(array.tolist(), key)
    raise RecordError(
        f"key {key or '(top)'}: cannot store a {type(obj).__name__}; allowed are null, booleans, "
        "numbers, strings, lists, mappings, arrays, dataclasses and paths"
    )


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Write beside `path`, then move into place: a reader sees the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: str | Path, obj: Any) -> None:
    """Write `obj` as strict JSON, atomically.

    Raises:
        RecordError: when `obj` holds what `to_jsonable` refuses (nothing is written).
    """
    text = json.dumps(to_jsonable(obj), indent=2, allow_nan=False, ensure_ascii=False)
    with replacing(Path(path)) as file:
        file.write(text + "\n")


def overwrite_json(path: Path, obj: Any) -> None:
    """`write_json`; on a full disk in place of the old file, whose space is there already."""
    try:
        write_json(path, obj)
    except OSError:
        # On one line it is shorter than what it replaces.
        text = json.dumps(to_jsonable(obj), allow_nan=False, ensure_ascii=False)
        with open(path, "r+b", buffering=0) as file:
            file.write(text.encode() + b"\n")
            file.truncate()


def append_text(path: Path, text: str) -> None:
    """Add `text` to the end of a file, all of it or, where the disk is full, nothing."""
    data = text.encode()
    with open(path, "ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(before)
            raise


def read_json(path: Path) -> dict:
    try:
        obj = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(obj, dict):
        raise RecordError(f"{path}: holds a {type(obj).__name__}; allowed is a JSON object")
    return obj
