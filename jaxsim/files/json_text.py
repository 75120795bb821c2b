"""JSON as this project reads it: no key twice, no number beyond a float, no half characters."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from jaxsim.files.errors import InputError
from jaxsim.files.reading import read_text
from jaxsim.files.shown import shown


def read_json(path: str | Path, kind: str) -> Any:
    """The value in a file; `kind` says what was expected. Raises InputError that names the file."""
    return parse_json(read_text(path, kind), str(path), kind)


def parse_json(text: str, source: str, kind: str) -> Any:
    """The value in `text`; `source` is what error lines name. Raises InputError."""
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_float=_float, parse_constant=_float
        )
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # half of a pair has no UTF-8
        return value
    except RecursionError:
        why = "nested too deep"
    except ValueError as error:  # JSONDecodeError and the hooks' own among them
        why = str(error)
    raise InputError(f"{source}: cannot be read as {kind}: not valid JSON: {why}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    body = dict(pairs)
    if len(body) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the key {shown(twice)} stands twice")
    return body


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is no finite number")
    return value
