"""Who else wants the GPUs.

local_jobs  GPUs that local jobs hold: a share, bursts, a trace
jobs_file   jobs CSV files: who submits what, and when
jobs_drawn  lists of jobs drawn from a trace of cluster jobs, or at random
"""

from jaxsim.load.jobs_drawn import (
    USEFUL_SHARE,
    V100_TFLOPS,
    JobMix,
    busy_tflop,
    jobs_from_trace,
    random_jobs,
)
from jaxsim.load.jobs_file import MOST_JOBS, SubmittedJob, read_jobs, write_jobs
from jaxsim.load.local_jobs import (
    Bursts,
    LoadProcess,
    burst_trace,
    gpus_available,
    load_process,
    read_load_trace,
)

__all__ = [
    "MOST_JOBS",
    "USEFUL_SHARE",
    "V100_TFLOPS",
    "Bursts",
    "JobMix",
    "LoadProcess",
    "SubmittedJob",
    "burst_trace",
    "busy_tflop",
    "gpus_available",
    "jobs_from_trace",
    "load_process",
    "random_jobs",
    "read_jobs",
    "read_load_trace",
    "write_jobs",
]
