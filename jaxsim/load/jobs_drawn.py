"""Lists of jobs drawn from a trace of cluster jobs, or at random."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from jaxsim.files import InputError, values
from jaxsim.load.jobs_file import LATEST_S, SubmittedJob, read_rows
from jaxsim.workload import JobSpec, load_model

TRACE_COLUMNS = ("vc", "arrival_s", "num_gpus", "assigned_model", "total_steps", "duration_s_v100")
V100_TFLOPS = 125.0  # peak of the GPU on which such a trace counts its seconds
USEFUL_SHARE = 0.4  # of the peak, as large models reach it
BUSY = 1.5  # times what all GPUs can do while jobs arrive: the work that keeps them busy


@dataclasses.dataclass(frozen=True)
class JobMix:
    """What drawn jobs are made of.

    Attributes:
        models: presets, from the smallest to the largest jobs of the list
        global_batch: sequences per training step
        seq: tokens per sequence
        span_s: the arrivals are spread over this time [s]
        work_scale: multiplies the work of every job
        data_gb: size of each job's data [GB], 0 = every domain has it
        data_at: the domains one of which, at random, holds a job's data
    """

    models: tuple[str, ...] = ("llama-7b", "llama-13b")
    global_batch: int = 512
    seq: int = 4096
    span_s: float = 6 * 3600.0
    work_scale: float = 1.0
    data_gb: float = 0.0
    data_at: tuple[str, ...] = ()


def jobs_from_trace(
    path: str | Path, count: int, mix: JobMix, rng: np.random.Generator
) -> tuple[SubmittedJob, ...]:
    """Draw `count` jobs that follow each other in a trace of cluster jobs (Philly's as published
    with Gavel, Narayanan et al., OSDI 2020).

    The arrivals keep their bursts, stretched to `mix.span_s`; a job's GPU-seconds become as many
    tokens as the same GPUs would train at USEFUL_SHARE of their peak. Raises InputError.
    """
    rows = [(f"{path}: line {n}", row) for n, row in read_rows(Path(path), TRACE_COLUMNS)]
    rows = [(where, row) for where, row in rows if row["duration_s_v100"]]
    if count > len(rows):
        raise InputError(f"{path}: holds {len(rows)} jobs with a duration, {count} are wanted")
    queue = rng.choice(sorted({row["vc"] for _, row in rows}))
    mine = [(where, row) for where, row in rows if row["vc"] == queue]
    mine = mine if len(mine) >= count else rows
    first = int(rng.integers(len(mine) - count + 1))
    figures = [
        [
            values.cell_number(row[key], f"{where}: {key}", high=LATEST_S)
            for key in ("arrival_s", "num_gpus", "duration_s_v100")
        ]
        for where, row in mine[first : first + count]
    ]
    arrival, gpus, duration = np.array(figures).T
    order = np.argsort(arrival, kind="stable")
    arrival, tflop = arrival[order], (gpus * duration)[order] * V100_TFLOPS * USEFUL_SHARE
    arrival = (arrival - arrival[0]) * mix.span_s / max(arrival[-1] - arrival[0], 1e-9)
    return _submitted(arrival, tflop, mix, rng)


def random_jobs(
    count: int, mix: JobMix, mean_tflop: float, burst: float, rng: np.random.Generator
) -> tuple[SubmittedJob, ...]:
    """Draw `count` jobs with Poisson arrivals; with `burst` > 1 they come in groups of that mean
    size (geometric), as many per hour. The work is log-normal around a mean, as that of measured
    cluster jobs is (sigma 1)."""
    arrival, at_s = [], 0.0
    while len(arrival) < count:
        arrival += [at_s] * int(rng.geometric(1.0 / burst))
        at_s += rng.exponential(burst * mix.span_s / count)
    work = mean_tflop * rng.lognormal(-0.5, 1.0, count)
    return _submitted(np.array(arrival[:count]), work, mix, rng)


def busy_tflop(peak_tflops: float, span_s: float, count: int) -> float:
    """Mean work [TFLOP] of each of `count` jobs that arrive within `span_s`, where together they bring
    BUSY times what GPUs of `peak_tflops` in all could do meanwhile."""
    return BUSY * USEFUL_SHARE * peak_tflops * span_s / count


def _submitted(
    arrival_s: np.ndarray, tflop: np.ndarray, mix: JobMix, rng: np.random.Generator
) -> tuple[SubmittedJob, ...]:
    """Larger jobs train larger models; 6 FLOPs per parameter and token (Kaplan et al. 2020)."""
    tflop = np.maximum(tflop, 1e-9) * mix.work_scale
    rank = np.argsort(np.argsort(tflop, kind="stable"), kind="stable")
    jobs = []
    for at_s, work, place in zip(arrival_s, tflop, rank, strict=True):
        name = mix.models[int(place) * len(mix.models) // len(tflop)]
        model = load_model(name)
        tokens = max(work * 1e12 / (6.0 * model.params), float(mix.global_batch * mix.seq))
        spec = JobSpec(
            model,
            mix.global_batch,
            mix.seq,
            step_budget=tokens / (mix.global_batch * mix.seq),
            arrival_s=float(at_s),
        )
        holder = (str(rng.choice(mix.data_at)),) if mix.data_gb else ()
        jobs.append(SubmittedJob(f"job {len(jobs) + 1}", name, spec, mix.data_gb, holder))
    return tuple(jobs)
