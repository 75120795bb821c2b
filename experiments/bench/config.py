"""What a measurement of speed is asked for."""

from __future__ import annotations

import dataclasses
from typing import Literal

from experiments.common import MOST_JOBS
from jaxsim.files import check_counts
from jaxsim.scenario import MOST_INTERVALS


@dataclasses.dataclass(frozen=True)
class BenchConfig:
    """A measurement of speed.

    Attributes:
        what: env = environment steps, plans = evaluations of plans, train = training steps of Hi-PPO,
            decision = decisions one at a time, watch = answers of `hippo watch`
        fidelity: of plans
        domains: number of domains; a table over 4 to 64 if none is given
        envs: environments (plans) at once; a table over 1 to 8192 if none is given
        jobs: training jobs in every environment (env alone): a number, of which more than one are
            drawn at random, or a jobs CSV
        cluster: cluster file for many jobs; the embedded cluster if none is given
        steps: intervals that many jobs play; twice as many as their arrivals take if none is given
        repeats: timed calls, of which the fastest counts
        json: file for the result, - = standard output and nothing else there
        out: run folder; outputs/bench-<time> if none is given
    """

    what: Literal["env", "plans", "train", "decision", "watch"] = "env"
    fidelity: Literal["closed", "event"] = "closed"
    domains: int | None = None
    envs: int | None = None
    jobs: int | str = 1
    cluster: str | None = None
    steps: int | None = None
    repeats: int = 5
    json: str | None = None
    out: str | None = None

    def __post_init__(self):
        most = {"envs": 100_000_000, "repeats": 1_000_000, "steps": MOST_INTERVALS}
        check_counts(self, {"domains": 1024, **most})
        if self.domains is not None and self.domains < 2:
            raise ValueError("domains: at least 2 are needed for a plan over the WAN")
        if isinstance(self.jobs, int):
            if self.jobs < 1:
                raise ValueError(f"jobs: expected an integer >= 1, got {self.jobs}")
            if self.jobs > MOST_JOBS:
                raise ValueError(f"jobs: at most {MOST_JOBS} are simulated, got {self.jobs}")
        if self.many_jobs and self.what != "env":
            raise ValueError(f"jobs: more than one are for --what env, got --what {self.what}")
        for name in ("cluster", "steps"):
            if getattr(self, name) is not None and not self.many_jobs:
                raise ValueError(f"{name}: is for more than one job; give --jobs as well")

    @property
    def many_jobs(self) -> bool:
        """Is it a list of jobs that the environments play?"""
        return self.jobs != 1
