"""The file that outlives the process: plan, memory of the scheduler, links as last measured.

JSON: `format`, `identity` (digests of cluster, job and scheduler), `body`, and `checksum`, the SHA-256
of all the others. It is replaced as a whole, so a process that is killed leaves the old file or the
new one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.records import replacing
from jaxsim.files import InputError, read_json

FORMAT = 1
KEYS = {"format", "identity", "body", "checksum"}


def write_state(
    path: Path, identity: Mapping[str, str], body: Mapping[str, Any], durable: bool
) -> None:
    """Replace the file; `durable` waits until it is on the disk, so that it outlives the machine."""
    content = {"format": FORMAT, "identity": dict(identity), "body": dict(body)}
    text = json.dumps({**content, "checksum": _checksum(content)})
    with replacing(path) as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def read_state(path: Path, identity: Mapping[str, str]) -> dict[str, Any] | None:
    """The body; None where there is no file yet. Raises InputError, one line that names the file, for
    one that is damaged or of another cluster, job or scheduler."""
    if not path.exists():
        return None
    content = read_json(path, "the state of `hippo watch`")
    if not isinstance(content, dict) or set(content) != KEYS:
        raise InputError(f"{path}: state: expected the keys {', '.join(sorted(KEYS))}")
    checksum = content.pop("checksum")
    if checksum != _checksum(content):
        raise InputError(f"{path}: state: is damaged: its checksum does not fit; delete the file")
    if content["format"] != FORMAT:
        raise InputError(f"{path}: state: format is {content['format']!r}; allowed is {FORMAT}")
    for key, digest in identity.items():
        if content["identity"].get(key) != digest:
            raise InputError(
                f"{path}: state: is of another {key} than this one; expected the {key} that it was "
                "written with, or another file"
            )
    return content["body"]


def _checksum(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def packed(arrays: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Arrays bit for bit."""
    return [
        {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "data": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode(),
        }
        for array in arrays
    ]


def unpacked(found: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
    """What was `packed`."""
    return [
        np.frombuffer(base64.b64decode(x["data"]), np.dtype(x["dtype"])).reshape(x["shape"]).copy()
        for x in found
    ]
