"""What is asked for in each training scenario, where one policy is to serve everybody's wishes."""

from __future__ import annotations

import zlib

import numpy as np

from jaxsim.planning import Objective, Preference
from jaxsim.trees import stack

# Shares of the scenarios: progress alone; progress within a budget; the rest weighs.
ALONE, WITHIN_BUDGET = 0.5, 0.2
CORNERS = ((0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0))  # of the simplex, beside progress alone
AT_CORNER = 0.15  # of those that weigh
LEAST_BUDGET = 0.2  # share of what the plan of most progress costs per hour
PROGRESS = (1.0, 0.0, 0.0, 0.0)


def drawn_preferences(seeds: range, usd_per_hour: float) -> list[Preference]:
    """One preference for each scenario, the same for the same seed.

    Weights of progress, utilisation and cost are uniform on the simplex (Dirichlet, all ones), apart
    from its corners; fairness stays 0, as in the rewards. Budgets are uniform shares of
    `usd_per_hour`, what the plan of most progress costs.
    """
    return [_drawn(seed, usd_per_hour) for seed in seeds]


def objectives_of(preferences: list[Preference]) -> Objective:
    """[S] stacked; an objective of progress alone is one too, so that all are of one kind."""
    return stack([_objective(asked) for asked in preferences])


def _drawn(seed: int, usd_per_hour: float) -> Preference:
    rng = np.random.default_rng([seed, zlib.crc32(b"preferences")])
    kind = rng.random()
    if kind < ALONE:
        return Preference(PROGRESS)
    if kind < ALONE + WITHIN_BUDGET:
        return Preference(PROGRESS, usd_per_hour * rng.uniform(LEAST_BUDGET, 1.0))
    if rng.random() < AT_CORNER:
        return Preference(CORNERS[rng.integers(len(CORNERS))])
    return Preference((*map(float, rng.dirichlet(np.ones(3))), 0.0))


def _objective(asked: Preference) -> Objective:
    weights, budget = (np.asarray(x, np.float32) for x in asked)
    return Objective(weights, budget, np.float32(np.inf))
