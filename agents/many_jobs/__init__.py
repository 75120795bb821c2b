"""What only several jobs on one cluster need.

mast        MAST for many jobs: every job runs in exactly one region, the one in which it would
metrics     What an episode of many jobs comes to, for each of them and for the cluster
registry    Schedulers of many jobs by name: those of a single job that choose from the common
scheduling  Schedulers of one job, lifted to many: the jobs decide one after another, in order of
"""

from agents.many_jobs.metrics import JobMetrics, completion_alone_s, job_metrics
from agents.many_jobs.registry import JOBS_SCHEDULERS, ONE_JOB_ONLY, make_jobs_by_name
from agents.many_jobs.scheduling import JobsSetup, lifted, make_jobs_setup

__all__ = [
    "JOBS_SCHEDULERS",
    "ONE_JOB_ONLY",
    "JobMetrics",
    "JobsSetup",
    "completion_alone_s",
    "job_metrics",
    "lifted",
    "make_jobs_by_name",
    "make_jobs_setup",
]
