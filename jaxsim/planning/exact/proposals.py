"""Plans of the whole space that a table should hold: fast ones, and cheap ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from jaxsim.plan import Plan, Problem
from jaxsim.planning import BUDGET_SHARES, Objective, PlanSpace, base_view, row_key
from jaxsim.planning.exact.incumbent import SpaceResult
from jaxsim.planning.exact.leaders import best_plan, leaders
from jaxsim.planning.exact.wide import SpaceSearch
from jaxsim.planning.exact.worth import Asked, most_worth, usd_per_hour
from jaxsim.step_time import NetworkView
from jaxsim.trees import stack_numpy, take

MOST_CHEAP = 512  # plans that are scored for each budget


def wide_plans(
    problem: Problem,
    views: NetworkView,
    most_scored: int = 2000,
    preferences: Sequence[Sequence[float]] = (),
) -> list[Plan]:
    """The best plans of the whole space, without their free fields and each once; NumPy leaves.

    Fast ones: under the cluster as its file states it and under each of the views [W, ...]. Cheap ones,
    where there are `preferences` (weights as in `Objective`): of most worth for each that names cost,
    and within BUDGET_SHARES of what the fastest costs. All GPUs are free: a state of the load would ask
    for tables of its own.
    """
    search, base = SpaceSearch(problem, PlanSpace.of(problem)), base_view(problem.cluster)
    best = best_plan(search, base, most_scored)
    found = [best, *_elsewhere(search, base, views, most_scored)]
    plans = [result.plan for result in found if result.rate > 0.0]
    if best.rate > 0.0 and preferences:
        plans += _cheap(search, base, best, plans, preferences)
    each: dict[bytes, Plan] = {}
    for plan in plans:
        plan = jax.tree.map(np.asarray, plan)
        each.setdefault(row_key(plan), plan)
    return list(each.values())


def _elsewhere(
    search: SpaceSearch, base: NetworkView, views: NetworkView, most_scored: int
) -> Iterator[SpaceResult]:
    """The fastest on other links."""
    for w in range(len(views.rtt_s)):
        there = take(views, w).replace(gpus_available=base.gpus_available)
        yield best_plan(search, there, most_scored)


def _cheap(
    search: SpaceSearch,
    base: NetworkView,
    best: SpaceResult,
    fast: list[Plan],
    preferences: Sequence[Sequence[float]],
) -> Iterator[Plan]:
    """What is of most worth where cost counts; progress is measured in that of the fastest. Budgets
    are searched for. The bounds of that search know nothing of egress: of what weights ask for the
    best is taken of what is known by then, the leaders of every number of domains among it."""
    known = [*fast, *leaders(search, base, search.space.exchanges())]
    dearest = usd_per_hour(best.cost, best.cost.gpus_used, search.problem.cluster)
    asked = [(Objective.of(budget_usd_per_hour=x * dearest), MOST_CHEAP) for x in BUDGET_SHARES]
    asked += [(Objective.of(tuple(w)), 0) for w in preferences if w[2] > 0]
    for objective, most_scored in asked:
        assert objective is not None  # each names cost or a budget
        of = Asked(objective, best.rate * Asked.interval_s)
        found = most_worth(search, base, of, known=stack_numpy(known), most_scored=most_scored)
        if found.cost.runs:
            known.append(found.plan)
            yield found.plan
