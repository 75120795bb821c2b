"""Which parameters a stack gets of its own, chosen from the rows that a fit may see.

The choice is made on the fit linearised where every deviation is free: dropping some and leaving rows
out are then small systems of equations, so that every left-out group makes its own choice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from jaxsim.calibration.documented import documented
from jaxsim.calibration.fitting import (
    Evidence,
    Fitter,
    Posterior,
    Runs,
    build_hierarchy,
    machines_of,
    profile_evidence,
    sync_evidence,
    weigh,
)
from jaxsim.calibration.hierarchy import Effect, Machine, hardware_effects, stack_effects
from jaxsim.calibration.measured import MeasuredRun
from jaxsim.calibration.profiles import Profile
from jaxsim.calibration.shaped_links import SyncRun

# A stack has fewer parameters of its own than a fifth of its rows; of the ones that it may have, those
# that its rows ask for most.
ROWS_PER_PARAMETER = 5
OF_MEMORY = ("stored_scores", "stored_values", "stored_logits", "state_bytes", "framework_gb")
SLACK = (4.0, 2.0, 1.0)  # of that limit, round by round
TWINS = 0.95  # correlation beyond which two parameters are one
REWEIGHTED = 12  # rounds of reweighted squares


@dataclasses.dataclass(frozen=True)
class Choice:
    """The fit with every deviation that a stack may own, linearised where it came to rest."""

    full: Fitter
    z: Float[np.ndarray, " E"]
    residuals: Float[np.ndarray, " R"]
    slopes: Float[np.ndarray, "R E"]

    def fit(self, keep: Float[np.ndarray, " N"] | None = None) -> tuple[Fitter, Posterior]:
        """Choose from the kept runs (`keep` [N]: 0 leaves one out) and fit what was chosen to them."""
        keep = np.ones(len(self.full.runs.runs)) if keep is None else keep
        effects, start = self._chosen(keep)
        full = self.full
        hierarchy = build_hierarchy(full.hierarchy.machines, effects)
        fitter = Fitter(full.runs, full.evidence, hierarchy)
        posterior = fitter.fit(keep, start)
        while pinned := pin_twins(posterior.covariance):
            left = [e for i, e in enumerate(fitter.hierarchy.effects) if i not in pinned]
            hierarchy = build_hierarchy(full.hierarchy.machines, left)
            fitter = Fitter(full.runs, full.evidence, hierarchy)
            posterior = fitter.fit(keep, np.delete(posterior.z, pinned))
        return fitter, posterior

    def _chosen(self, keep: np.ndarray) -> tuple[list[Effect], np.ndarray]:
        """Effects to fit, and where they come to rest in the linearised fit.

        Kept is what has the larger evidence for being free against being at its documented value (the
        ratio of Savage and Dickey, Dickey 1971), and no more than ROWS_PER_PARAMETER allows; dropped
        in rounds, since one parameter may stand in for another that is gone.
        """
        hierarchy, runs = self.full.hierarchy, self.full.runs
        effects = hierarchy.effects
        limits = own_limits(runs, hierarchy.machines, keep)
        mine = {stack: set(hierarchy.of_stack(stack)) for stack in limits}
        shared = [i for i, e in enumerate(effects) if not any(e in own for own in mine.values())]
        chosen = list(range(len(effects)))
        for slack in SLACK:
            z, covariance = self._solve(chosen, keep)
            gain = dict(zip(chosen, evidence_gain(z, covariance), strict=True))
            kept = list(shared)
            for stack, limit in limits.items():
                for kind, most in enumerate(limit):
                    able = [
                        i
                        for i in chosen
                        if effects[i] in mine[stack] and _kind(effects[i]) == kind and gain[i] > 0.0
                    ]
                    kept += sorted(able, key=lambda i: -gain[i])[: round(slack * most)]
            chosen = sorted(kept)
        z, covariance = self._solve(chosen, keep)
        while pinned := pin_twins(covariance):
            chosen = [c for i, c in enumerate(chosen) if i not in pinned]
            z, covariance = self._solve(chosen, keep)
        return [effects[i] for i in chosen], z

    def _solve(self, chosen: list[int], keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Deviations and their covariance with all but the chosen at their documented values."""
        rows = np.ones(len(self.residuals))
        rows[: 2 * len(keep)] = np.repeat(keep, 2)
        slopes = self.slopes[:, chosen] * rows[:, None]
        base = (self.residuals - self.slopes @ self.z) * rows
        z = self.z[chosen]
        normal = np.eye(len(chosen))
        for _ in range(REWEIGHTED):
            weight = 1.0 / np.sqrt(1.0 + (base + slopes @ z) ** 2)
            normal = slopes.T @ (slopes * weight[:, None]) + np.eye(len(chosen))
            z = np.linalg.solve(normal, -slopes.T @ (weight * base))
        return z, np.linalg.inv(normal)


def spread_of(machine: Machine, parameter: str) -> float:
    """The documented spread of a machine's parameter."""
    return documented(machine)[parameter][1]


def fit_machines(
    runs: Sequence[MeasuredRun],
    profiles: Sequence[Profile] = (),
    syncs: Sequence[SyncRun] = (),
) -> Choice:
    """Everything at once with every deviation free; `Choice.fit` chooses from them and fits."""
    machines = machines_of(runs, profiles)
    table = weigh(runs, machines)
    return linearise(table, profile_evidence(profiles, machines) + sync_evidence(syncs), machines)


def linearise(runs: Runs, evidence: Sequence[Evidence], machines: Sequence[Machine]) -> Choice:
    """Fit with every deviation that a stack may own."""
    effects = [*hardware_effects(machines, spread_of), *stack_effects(machines, spread_of)]
    full = Fitter(runs, evidence, build_hierarchy(machines, effects))
    z, keep = full.fit().z, np.ones(len(runs.runs))
    return Choice(full, z, full.residuals(z, keep), full.slopes(z, keep))


def _kind(effect: Effect) -> int:
    """0 = of time, 1 = of memory."""
    return int(effect.parameter in OF_MEMORY)


def own_limits(
    runs: Runs, machines: Sequence[Machine], keep: Float[np.ndarray, " N"]
) -> dict[str, tuple[int, int]]:
    """How many parameters of its own each stack may have, of time and of memory: together below a
    fifth of its kept rows, shared out as its measurements are."""
    limits = {}
    for stack in dict.fromkeys(m.fitted for m in machines):
        places = [i for i, m in enumerate(machines) if m.fitted == stack]
        mine = runs.weight[np.isin(runs.machine, places) & (keep > 0.0)] > 0.0
        most = max(-(-len(mine) // ROWS_PER_PARAMETER) - 1, 0)
        of_memory = round(most * mine[:, 1].sum() / max(mine.sum(), 1))
        limits[stack] = (most - of_memory, of_memory)
    return limits


def evidence_gain(
    z: Float[np.ndarray, " E"], covariance: Float[np.ndarray, "E E"]
) -> Float[np.ndarray, " E"]:
    """[E] log of the evidence ratio of each effect being free against being zero, by Laplace."""
    variance = np.diag(covariance)
    return 0.5 * np.log(variance) + z**2 / (2.0 * variance)


def pin_twins(covariance: Float[np.ndarray, "E E"]) -> list[int]:
    """Places of effects to pin: of two that correlate beyond TWINS the one that is told less of."""
    spread = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(spread, spread)
    pinned: list[int] = []
    for a, b in np.argwhere(np.triu(np.abs(correlation), 1) > TWINS):
        if a not in pinned and b not in pinned:
            pinned.append(int(a if spread[a] > spread[b] else b))
    return pinned
