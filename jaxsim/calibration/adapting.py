"""Adapting a stack to a few runs of it: its own parameters move, and one of the hardware."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from jaxsim.calibration.documented import documented_belief
from jaxsim.calibration.fitting import Fitter, Posterior, weigh
from jaxsim.calibration.hierarchy import HARDWARE, Effect, Hierarchy, Machine
from jaxsim.calibration.measured import MeasuredRun
from jaxsim.cluster import PRIORS, Belief

# What a few runs of one campaign can tell: their errors are of one hand.
NOISE = 0.03
PACE = ("gemm_efficiency", 0.15)  # the one share of hardware that a stack may miss


def adapt(
    runs: Sequence[MeasuredRun], stack: str, belief_of: Callable[[Machine], Belief]
) -> tuple[Fitter, Posterior]:
    """Fit the parameters of a stack to runs of it, around `belief_of(machine)` for each GPU type.

    Every parameter of the software may move by its documented spread, which is what holds it where
    the runs say nothing; of the hardware's the share of peak of matrix products does alone. One
    deviation stands for all GPU types.
    """
    runs = [dataclasses.replace(run, stack=stack) for run in runs]
    machines = list(dict.fromkeys(Machine(r.gpu, r.stack) for r in runs))
    fitted = f"stack {machines[0].fitted}"
    spread = documented_belief(machines[0]).spread
    effects = [
        Effect(name, fitted, float(spread[i]))
        for i, name in enumerate(PRIORS)
        if name not in HARDWARE
    ]
    effects.append(Effect(PACE[0], fitted, PACE[1]))
    centre = np.array([belief_of(machine).centre for machine in machines])
    table = weigh(runs, machines)
    known = table.weight > 0.0
    noise = np.where(known, 1.0 / np.array([NOISE, 2.0 * NOISE]), 0.0)
    table = dataclasses.replace(table, weight=noise)
    fitter = Fitter(table, (), Hierarchy(tuple(machines), tuple(effects), centre))
    return fitter, fitter.fit()
