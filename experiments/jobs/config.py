"""What a list of jobs to draw is asked for."""

from __future__ import annotations

import dataclasses

from experiments.common import GLOBAL_BATCH, MOST_JOBS, MOST_OF_A_WORLD
from jaxsim.files import check_counts, check_fields, is_non_negative, is_positive


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
    global_batch: int = GLOBAL_BATCH
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
        check_fields(self, ("data_gb",), "a number >= 0", is_non_negative)
        few = f"a number from 1 to {MOST_JOBS}"
        check_fields(self, ("burst",), few, lambda x: 1 <= x <= MOST_JOBS)
        most = {key: MOST_OF_A_WORLD[key] for key in ("global_batch", "seq")}
        check_counts(self, {"count": MOST_JOBS, **most})
        check_counts(self, {"seed": 2**63 - 1}, least=0)
