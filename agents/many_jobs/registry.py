"""Schedulers of many jobs by name: those of a single job that choose from the common table, lifted;
MAST by its own rules."""

from __future__ import annotations

from collections.abc import Callable

from agents.many_jobs.mast import make_jobs_mast
from agents.many_jobs.scheduling import JobsSetup, every_row, lifted
from agents.protocol import Scheduler
from agents.registry import RULES, SCHEDULERS, SchedulerSettings, make_by_name

# No optimum over all intervals is known for many jobs; each job alone on the cluster is the bound.
# Rivals with plans of their own plan for one job on all GPUs, not for what others leave.
ONE_JOB_ONLY = ("clairvoyant", *RULES)
# Plans that never change: a job stays where it was deployed.
SETTLED = ("static_even_split", "single_domain", "best_static")
# Rules that play some rows of the table alone.
ROWS = {
    "static_even_split": lambda table: table.even_split,
    "single_domain": lambda table: table.single_domain,
}
JOBS_SCHEDULERS = tuple(dict.fromkeys([n for n in SCHEDULERS if n not in ONE_JOB_ONLY] + ["mast"]))


def make_jobs_by_name(name: str, settings: SchedulerSettings) -> Callable[[JobsSetup], Scheduler]:
    """Return `make(setup)` of a scheduler that is not learned; KeyError for an unknown name."""
    if name not in JOBS_SCHEDULERS:
        raise KeyError(name)
    if name == "mast":
        return make_jobs_mast
    make = make_by_name(name, settings)
    rows = ROWS.get(name, every_row)
    return lambda setup: lifted(make, setup, name in SETTLED, rows)
