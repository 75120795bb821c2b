"""What only several jobs on one cluster need.

bace_pipe   BACE-Pipe for many jobs: who computes much and sends little goes first
mast        MAST for many jobs: every job runs in exactly one region, the one in which it would
metrics     What an episode of many jobs comes to, for each of them and for the cluster
scheduling  Per-job schedulers: every job has a scheduler of one job, and the jobs decide in turn
"""

from agents.many_jobs.bace_pipe import JobsBacePipe
from agents.many_jobs.mast import JobsMast
from agents.many_jobs.metrics import (
    JobMetrics,
    completion_alone_s,
    job_metrics,
    utilisation_alone,
)
from agents.many_jobs.scheduling import (
    JobsScheduler,
    JobsSetup,
    PerJobScheduler,
    make_jobs_setup,
)

__all__ = [
    "JobMetrics",
    "JobsBacePipe",
    "JobsMast",
    "JobsScheduler",
    "JobsSetup",
    "PerJobScheduler",
    "completion_alone_s",
    "job_metrics",
    "make_jobs_setup",
    "utilisation_alone",
]
