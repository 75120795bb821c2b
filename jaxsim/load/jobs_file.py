"""Jobs CSV files: who submits what, and when."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from jaxsim.files import InputError, read_text_table, values
from jaxsim.workload import JobSpec, load_model

JOBS_COLUMNS = ("arrival_s", "model", "global_batch", "seq", "tokens")
DATA_COLUMNS = ("data_gb", "data_at")  # may be left out: every domain has the data then
LATEST_S = 1e9  # [s] of an arrival
MOST_TOKENS = 1e18  # of a job
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
    arrival = values.cell_number(row["arrival_s"], f"{where}: arrival_s", high=LATEST_S)
    batch, seq = (values.cell_count(row[key], f"{where}: {key}") for key in ("global_batch", "seq"))
    tokens = values.cell_number(
        row["tokens"], f"{where}: tokens", 1.0, MOST_TOKENS, "a number > 0 (1 to 1e18)"
    )
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
    size_gb = values.cell_number(row["data_gb"], f"{where}: data_gb")
    at = tuple(name.strip() for name in row["data_at"].split(";") if name.strip())
    for name in at:
        values.name(name, f"{where}: data_at")
    if size_gb and not at:
        raise InputError(f"{where}: data_at: expected the domains that hold the data, as a;b")
    return size_gb, at


def read_rows(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> list[tuple[int, dict[str, str]]]:
    """Lines and rows of a CSV file, compressed or not, with exactly these columns; the `optional`
    ones may follow, all or none.

    Raises InputError that names the file.
    """
    headers = [columns, (*columns, *optional)] if optional else [columns]
    frame = read_text_table(path, "a table of jobs", "job", headers)
    return list(zip(frame.index.tolist(), frame.to_dict("records"), strict=True))
