"""Draw the jobs and write their file."""

from __future__ import annotations

import numpy as np

from experiments.common import check_output
from experiments.jobs.config import JobsConfig
from jaxsim.files import InputError
from jaxsim.load import (
    USEFUL_SHARE,
    V100_TFLOPS,
    JobMix,
    jobs_from_trace,
    random_jobs,
    write_jobs,
)


def draw(config: JobsConfig) -> None:
    """Draw the jobs and write them. Raises InputError."""
    target = check_output(config.out)
    models, holders = _names(config.models), _names(config.data_at)
    if not models:
        raise InputError("models: expected at least one name")
    if bool(holders) != bool(config.data_gb):
        raise InputError("data_at: expected domains if, and only if, data_gb is > 0")
    span_s = 3600.0 * config.span_hours
    mix = JobMix(
        models,
        config.global_batch,
        config.seq,
        span_s,
        config.work_scale,
        config.data_gb,
        holders,
    )
    rng = np.random.default_rng(config.seed)
    if config.trace is not None:
        jobs = jobs_from_trace(config.trace, config.count, mix, rng)
    else:
        mean_tflop = 3600.0 * config.gpu_hours * V100_TFLOPS * USEFUL_SHARE
        jobs = random_jobs(config.count, mix, mean_tflop, config.burst, rng)
    write_jobs(target, jobs)
    last_s = jobs[-1].spec.arrival_s
    print(f"{config.out}: {len(jobs)} jobs, the last submitted after {last_s / 3600:.1f} h")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
