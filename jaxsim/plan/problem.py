"""The problem that a plan solves: the work, the cluster and its efficiency, the menu of choices."""

from __future__ import annotations

from flax import struct

from jaxsim.cluster import Calibration, Cluster
from jaxsim.learning import TokenEfficiency, published_efficiency
from jaxsim.plan.plan import LowerChoices
from jaxsim.pytree import Pytree
from jaxsim.workload import Workload


class Problem(Pytree):
    """One job, or several with a leading axis [J] of `work`, on one cluster."""

    work: Workload  # one job, or [J] in order of arrival
    cluster: Cluster
    calibration: Calibration  # efficiencies of the cluster's GPUs
    choices: LowerChoices = struct.field(default=None)  # [V]; None where every plan is complete
    # What tokens are worth when replicas talk seldom; the published model's lower end by default
    learning: TokenEfficiency = struct.field(default_factory=published_efficiency)

    def of(self, work: Workload) -> Problem:
        """The same cluster with other work."""
        return self.replace(work=work)

    def job(self, index: int) -> Problem:
        """The problem of one job, without the job axis."""
        return self.of(self.work.job(index))
