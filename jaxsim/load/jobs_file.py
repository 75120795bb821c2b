"""Jobs CSV files: who submits what, and when."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxsim.files import InputError
from jaxsim.workload import JobSpec, load_model

JOBS_COLUMNS = ("arrival_s", "model", "global_batch", "seq", "tokens")
DATA_COLUMNS = ("data_gb", "data_at")  # may be left out: every domain has the data then
MOST_JOBS = 64  # the simulator's arrays grow with the square of their number


@dataclasses.dataclass(frozen=True)
class SubmittedJob:
    """One row of a jobs file.

    Attributes:
        where: file and line, for messages about the job
        model: preset or YAML file
        spec: with the arrival, and the budget in training steps that the tokens come to
        data_gb: size of what it trains on [GB], 0 = every domain has it
        data_at: the domains that hold it, by name
    """

    where: str
    model: str
    spec: JobSpec
    data_gb: float = 0.0
    data_at: tuple[str, ...] = ()


def read_jobs(path: str | Path) -> tuple[SubmittedJob, ...]:
    """Read a jobs CSV, sorted by arrival (rows of one instant keep their order).

    Raises InputError that names the file, the line and the key.
    """
    rows = read_rows(Path(path), JOBS_COLUMNS, DATA_COLUMNS)
    if not rows:
        raise InputError(f"{path}: holds no job")
    if len(rows) > MOST_JOBS:
        raise InputError(f"{path}: holds {len(rows)} jobs; at most {MOST_JOBS} are simulated")
    jobs = [_job(f"{path}: line {line}", row) for line, row in rows]
    return tuple(sorted(jobs, key=lambda job: job.spec.arrival_s))


def write_jobs(path: str | Path, jobs: Sequence[SubmittedJob]) -> None:
    """Write a jobs CSV that `read_jobs` reads back."""
    some_data = any(job.data_gb for job in jobs)
    with Path(path).open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(JOBS_COLUMNS + DATA_COLUMNS if some_data else JOBS_COLUMNS)
        for job in jobs:
            spec = job.spec
            tokens = spec.step_budget * spec.global_batch * spec.seq
            row = [f"{spec.arrival_s:.3f}", job.model, spec.global_batch, spec.seq, f"{tokens:.0f}"]
            row += [f"{job.data_gb:g}", ";".join(job.data_at)] if some_data else []
            writer.writerow(row)


def _job(where: str, row: dict[str, str]) -> SubmittedJob:
    arrival = cell(where, row, "arrival_s", "a number >= 0", lambda x: x >= 0)
    batch, seq = (
        int(cell(where, row, key, "an integer >= 1", lambda x: x >= 1 and x == int(x)))
        for key in ("global_batch", "seq")
    )
    tokens = cell(where, row, "tokens", "a number > 0", lambda x: x > 0)
    try:
        model = load_model(row["model"])
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    spec = JobSpec(model, batch, seq, step_budget=tokens / (batch * seq), arrival_s=arrival)
    return SubmittedJob(where, row["model"], spec, *_data(where, row))


def _data(where: str, row: dict[str, str]) -> tuple[float, tuple[str, ...]]:
    """Size and places of the data; of a file without these columns, none."""
    if "data_gb" not in row:
        return 0.0, ()
    size_gb = cell(where, row, "data_gb", "a number >= 0", lambda x: x >= 0)
    at = tuple(name.strip() for name in (row["data_at"] or "").split(";") if name.strip())
    if size_gb and not at:
        raise InputError(f"{where}: data_at: expected the domains that hold the data, as a;b")
    return size_gb, at


def cell(
    where: str, row: dict[str, str], key: str, allowed: str, holds: Callable[[float], bool]
) -> float:
    """A finite number that `holds`; InputError that names `where`, the key and what is allowed."""
    try:
        value = float(row[key])
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and holds(value)):
        raise InputError(f"{where}: {key}: expected {allowed}, got {row[key]!r}")
    return value


def read_rows(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> list[tuple[int, dict[str, str]]]:
    """Lines and rows of a CSV file, compressed by gzip or not, with exactly these columns; the
    `optional` ones may follow, all or none.

    Raises InputError that names the file.
    """
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", newline="", encoding="utf-8") as handle:
            reader = csv.DictReader(handle, restkey="", restval=None)
            if tuple(reader.fieldnames or ()) not in (tuple(columns), (*columns, *optional)):
                more = f", then {','.join(optional)} or nothing" if optional else ""
                raise InputError(f"{path}: expected the columns {','.join(columns)}{more}")
            rows = list(enumerate(reader, start=2))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read: {why}") from None
    for line, row in rows:
        if "" in row:
            raise InputError(f"{path}: line {line}: more cells than columns")
    return rows
