"""Samples from iperf3's JSON (`iperf3 -c HOST -J`), one file for each test of a directed link.

A file is called SRC--DST.json, or SRC--DST--ANYTHING.json; the name says which way the bytes went.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.probe.rounds import Sample
from jaxsim.files import InputError, read_json

GBIT, MICROS_PER_MS = 1e9, 1e3


def read_folder(folder: str) -> list[Sample]:
    """All tests of a folder, in the order of their time. Raises InputError that names the file."""
    files = sorted(Path(folder).glob("*.json")) if Path(folder).is_dir() else []
    if not files:
        raise InputError(f"{folder}: holds no iperf3 test; expected files SRC--DST.json")
    found = sorted(map(_sample, files))
    first = found[0].t_s
    return [sample._replace(t_s=sample.t_s - first) for sample in found]


def _sample(file: Path) -> Sample:
    names = file.stem.split("--")
    if len(names) not in (2, 3) or not all(names) or names[0] == names[1]:
        raise InputError(f"{file}: expected a name SRC--DST.json or SRC--DST--ANYTHING.json")
    body = read_json(file, "an iperf3 result")
    if isinstance(body, dict) and "error" in body:
        raise InputError(f"{file}: the test failed: {body['error']}")
    rate = _number(body, file, "end", "sum_received", "bits_per_second") / GBIT
    # The smallest: under load a queue is part of all others.
    rtt = _number(body, file, "end", "streams", 0, "sender", "min_rtt") / MICROS_PER_MS
    start = _number(body, file, "start", "timestamp", "timesecs")
    return Sample(start, names[0], names[1], rate, rtt)


def _number(body: Any, file: Path, *keys: str | int) -> float:
    for key in keys:
        try:
            body = body[key]
        except (KeyError, IndexError, TypeError):
            body = None
            break
    if not isinstance(body, int | float) or isinstance(body, bool) or not 0 < body < 1e18:
        path = ".".join(map(str, keys))
        raise InputError(f"{file}: {path}: expected a number > 0, as iperf3 writes it for TCP")
    return float(body)
