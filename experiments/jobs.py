"""Draw a jobs file: `python -m experiments.jobs --count 16 --out FILE [--trace CSV]`."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np

from experiments.common import check_output, parse, run_command
from jaxsim.files import InputError, check_fields, is_count, is_positive
from jaxsim.load import (
    MOST_JOBS,
    USEFUL_SHARE,
    V100_TFLOPS,
    JobMix,
    jobs_from_trace,
    random_jobs,
    write_jobs,
)


@dataclasses.dataclass(frozen=True)
class JobsConfig:
    """A list of jobs to draw.

    Attributes:
        out: jobs CSV to write
        trace: cluster jobs with the columns vc, arrival_s, num_gpus, assigned_model, total_steps,
            duration_s_v100 (Philly's as published with Gavel); arrivals at random if none is given
        count: number of jobs
        models: presets or YAML files for the smallest to the largest jobs, as a,b
        global_batch: sequences per training step
        seq: tokens per sequence
        span_hours: the arrivals are spread over this time
        work_scale: multiplies the work of every job
        gpu_hours: mean work of a job of random lists, in hours of one V100
        burst: mean number of jobs of random lists that arrive together; 1 = one by one
        data_gb: size of each job's data, which a region must fetch before it trains; 0 = all have it
        data_at: domains one of which, at random, holds a job's data, as a,b
        seed: of the draw
    """

    out: str
    trace: str | None = None
    count: int = 16
    models: str = "llama-7b,llama-13b"
    global_batch: int = 512
    seq: int = 4096
    span_hours: float = 6.0
    work_scale: float = 1.0
    gpu_hours: float = 2000.0
    burst: float = 1.0
    data_gb: float = 0.0
    data_at: str = ""
    seed: int = 0

    def __post_init__(self):
        names = ("span_hours", "work_scale", "gpu_hours")
        check_fields(self, names, "a number > 0", is_positive)
        check_fields(self, ("data_gb",), "a number >= 0", lambda x: np.isfinite(x) and x >= 0)
        few = f"a number from 1 to {MOST_JOBS}"
        check_fields(self, ("burst",), few, lambda x: 1 <= x <= MOST_JOBS)
        check_fields(self, ("global_batch", "seq"), "an integer >= 1", is_count)
        allowed = f"an integer from 1 to {MOST_JOBS}"
        check_fields(self, ("count",), allowed, lambda x: 1 <= x <= MOST_JOBS)
        check_fields(self, ("seed",), "an integer >= 0", lambda x: x >= 0)


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


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    return run_command(lambda: draw(parse(JobsConfig, arguments, "jobs")))


if __name__ == "__main__":
    sys.exit(main())
