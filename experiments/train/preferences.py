"""What is asked for in each training scenario, where one policy is to serve everybody's wishes."""

from __future__ import annotations

import zlib

import numpy as np

from jaxsim.planning import Objective, Preference
from jaxsim.trees import stack

# Shares of the scenarios: progress alone; progress within a budget; the rest weighs.
ALONE, WITHIN_BUDGET = 0.5, 0.2
UTILISATION, COST = (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0)  # corners, beside progress alone
AT_CORNER = 0.15  # of those that weigh
PROGRESS = (1.0, 0.0, 0.0, 0.0)


def drawn_preferences(
    seeds: range, prices: tuple[float, float], priced: bool = True
) -> list[Preference]:
    """One preference for each scenario, the same for the same seed.

    Weights of progress, utilisation and cost are uniform on the simplex (Dirichlet, all ones), apart
    from its corners; fairness stays 0, as in the rewards. Budgets are uniform between two `prices`
    [USD/h], what the cheapest plan costs and what that of most progress does. Without `priced` the
    weight of cost is left out: where local jobs take all GPUs, there is no price that egress could be
    set against.
    """
    return [_drawn(seed, prices, priced) for seed in seeds]


def objectives_of(preferences: list[Preference]) -> Objective:
    """[S] stacked; an objective of progress alone is one too, so that all are of one kind."""
    return stack([_objective(asked) for asked in preferences])


def _drawn(seed: int, prices: tuple[float, float], priced: bool) -> Preference:
    rng = np.random.default_rng([seed, zlib.crc32(b"preferences")])
    kind = rng.random()
    if kind < ALONE:
        return Preference(PROGRESS)
    if kind < ALONE + WITHIN_BUDGET:
        return Preference(PROGRESS, float(rng.uniform(*prices)))
    if rng.random() < AT_CORNER:
        return Preference(COST if priced and rng.random() < 0.5 else UTILISATION)
    weights = [*rng.dirichlet(np.ones(3 if priced else 2)), 0.0, 0.0][:4]
    return Preference((*map(float, weights),))


def _objective(asked: Preference) -> Objective:
    weights, budget = (np.asarray(x, np.float32) for x in asked)
    return Objective(weights, budget, np.float32(np.inf))
