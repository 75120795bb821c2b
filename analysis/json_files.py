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

MOST_BYTES = 2**26  # of a JSON file
MOST_OF_A_LINE = 480  # bytes of an error's message
LONGEST_INTEGER = 30  # digits


class RecordError(ValueError):
    """A run folder or a value for one is not what the schema says. One line: file, key, allowed.

    The message is shortened to 480 bytes, and what does not print is escaped.
    """

    def __init__(self, message: str):
        super().__init__(_one_line(message))


def _one_line(text: str) -> str:
    if len(text) > 4 * MOST_OF_A_LINE:
        text = f"{text[: 2 * MOST_OF_A_LINE]} ... {text[-MOST_OF_A_LINE:]}"
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(text.split()))
    content = text.encode()
    if len(content) <= MOST_OF_A_LINE:
        return text
    tail = MOST_OF_A_LINE // 3
    ends = content[: MOST_OF_A_LINE - 5 - tail], content[-tail:]
    return " ... ".join(end.decode(errors="ignore") for end in ends)


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
    """The object in a JSON file.

    Raises RecordError, naming the file, where it is no regular file or larger than MOST_BYTES, and
    for what is no strict JSON, holds a key twice or is nested too deep.
    """
    try:
        if not path.is_file():
            raise RecordError(f"{path}: cannot be read: no regular file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise RecordError(f"{path}: cannot be read: larger than {MOST_BYTES:,} bytes")
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from None
    try:
        hooks = {"parse_constant": _finite, "parse_float": _finite, "parse_int": _integer}
        obj = json.loads(text, object_pairs_hook=_object, **hooks)
        if "\\u" in text:
            json.dumps(obj, ensure_ascii=False).encode()  # half of a pair has no UTF-8
    except RecursionError:
        raise RecordError(f"{path}: not valid JSON: nested too deep") from None
    except ValueError as error:  # JSONDecodeError and the hooks' own among them
        raise RecordError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(obj, dict):
        raise RecordError(f"{path}: holds a {type(obj).__name__}; allowed is a JSON object")
    return obj


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the key {twice[:60]!r} stands twice")
    return body


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:60]} is no finite number")
    return value


def _integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise ValueError(f"{text[:20]}... is an integer of {len(text)} digits")
    return int(text)
