"""What steps and changes of plan take along a trace: as jaxsim has it, or with what a study fitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from analysis.records import load
from experiments.wan.predict import (
    MESSAGES,
    OUTER,
    RINGS,
    Case,
    Fit,
    Predictor,
    plain_step_s,
)
from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError
from jaxsim.plan import Plan, Schedule
from jaxsim.step_time import NetworkView
from jaxsim.workload import JobSpec

RUNS_AS = {Schedule.EAGER_1F1B: Schedule.GPIPE}  # what real training runs in its place
FIGURES = ("layer_s", "at_once_s", "restart_s", "trips of a change of plan")


@dataclasses.dataclass(frozen=True)
class Fitted:
    """What a study of the same machine found: the numbers of its `fit.csv`."""

    fit: Fit
    restart_s: float  # [s] of a change of plan beside what it moves
    trips: float  # round trips that domains wait for where bytes move

    @staticmethod
    def of(folder: str) -> Fitted:
        """From a study's run folder. Raises RecordError, InputError."""
        table = load(folder).table("fit", ("what", "value"))
        found = dict(zip(table["what"].astype(str), table["value"].astype(float), strict=True))
        if missing := [name for name in FIGURES if name not in found]:
            raise InputError(f"{folder}/fit.csv: what: no {missing[0]!r}")
        return Fitted(
            Fit(
                found["layer_s"],
                found["at_once_s"],
                *(_of_kinds(found, f"{what} of ") for what in ("share", "trips")),
            ),
            found["restart_s"],
            found["trips of a change of plan"],
        )


def _of_kinds(found: Mapping[str, float], prefix: str) -> dict[str, float]:
    kinds = (RINGS, OUTER, *MESSAGES.values())
    return {kind: found[prefix + kind] for kind in kinds if prefix + kind in found}


def as_trained(plan: Plan) -> Plan:
    """The plan with the schedules that real training runs in place of those that torch lacks."""
    schedule = np.asarray(plan.schedule)
    for told, run in RUNS_AS.items():
        schedule = np.where(schedule == told, int(run), schedule)
    return plan.replace(schedule=schedule.astype(np.int32))


class Times:
    """Step times [s] of plans on links as measured.

    With what a study fitted a message waits as gloo's do, and a layer takes what it takes here: a step
    of one domain alone takes `alone_s`, and more sequences in a micro-batch take so much longer.
    """

    def __init__(
        self, spec: ClusterSpec, job: JobSpec, found: Fitted | None, alone_s: float
    ) -> None:
        """`spec` is calibrated to `alone_s` where nothing was fitted; else computing takes no time in
        it."""
        self._spec, self._job, self._found = spec, job, found
        self._layer_s = alone_s / (job.global_batch * job.model.layers)  # of one sequence
        self._predictor = Predictor(job)

    def step_s(self, plan: Plan, view: NetworkView) -> float:
        """[s] of a step."""
        if self._found is None:
            return plain_step_s(plan, self._spec, self._job, view)
        fit, plan = self._found.fit, as_trained(plan)
        layer_s = self._layer_s * int(np.asarray(plan.micro_batch).max())
        here = dataclasses.replace(fit, layer_s=layer_s, at_once_s=layer_s)
        base = np.asarray(self._spec.to_arrays().bandwidth_gb_per_s)
        factors = np.asarray(view.bandwidth_gb_per_s) / np.where(base > 0, base, 1.0)
        return self._predictor.predict(Case(plan, self._spec, factors=factors[None]), here)

    def switch_s(self, old: Plan, new: Plan, said: float | None) -> float:
        """[s] that a change of plan stops training for; `said` is what the scheduler reckons with."""
        if self._found is None:
            return said or 0.0
        old, new = (jax.tree.map(np.asarray, plan) for plan in (old, new))
        found = self._found
        return self._predictor.transition_s(old, new, self._spec, found.restart_s, found.trips)
