"""The search for the best plans, and the pool of plans beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.plan.answer import Carried, carried
from experiments.plan.question import Question
from jaxsim.plan import FULL_PRECISION_BITS, Plan
from jaxsim.planning import Exchange, Objective, plan_worth
from jaxsim.planning.exact import (
    SpaceResult,
    SpaceSearch,
    even_splits,
    is_synchronous,
    leaders,
    score,
)
from jaxsim.trees import take

SETTINGS = ("synchronous", "any")
MOST_SCORED = 2000  # plans of each search; the gap says what that leaves open
MOST_COMBINED = (
    3000  # settings of a partition's blocks together; the gap says what that leaves open
)
# Factors on all links for which the pool holds plans as well: what wins there may lose here.
ELSEWHERE = (1 / 8, 8.0)
PER_SIZE, PER_SIZE_ELSEWHERE = 4, 2
ROUNDING_PCT = 0.01  # by which float32 may raise a bound
INTERVAL_S = 60.0  # whatever it is: reward is compared per second


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search came to, and what the claim rests on."""

    best: Carried | None  # None: nothing can run
    search: str  # exact, or beam where something was left out or limits and weights decide
    gap_pct: float | None  # how much faster another plan might train; None: not known


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The best plan of either setting and the pool, on which runners-up and thresholds rest."""

    found: dict[str, Found]
    pool: tuple[Plan, ...]  # shares open, no two alike but for free fields
    single_domain: Carried | None
    static_even_split: Carried | None


def search_plans(
    question: Question,
    objective: Objective | None,
    quick: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Candidates:
    """Search both settings; `quick` leaves out the pool of other links, `tell` hears what is done."""
    search = SpaceSearch(question.problem, question.space, MOST_COMBINED)
    view, ways = question.view, search.space.exchanges()
    tell("searching synchronous plans")
    results = {"synchronous": search.best(view, MOST_SCORED, [Exchange()])}
    tell("searching all plans")
    results["any"] = search.best(view, MOST_SCORED)
    tell("looking at runners-up")
    pool = list(leaders(search, view, ways, PER_SIZE))
    if not quick:
        whole = [way for way in ways if way.activation_bits == FULL_PRECISION_BITS]
        for factor in ELSEWHERE:
            pool += leaders(search, question.scaled(factor), whole, PER_SIZE_ELSEWHERE)
    pool = distinct([*(r.plan for r in results.values() if r.rate > 0), *pool])
    single = [p for p in pool if is_synchronous(p) and int((np.asarray(p.group) >= 0).sum()) == 1]
    return Candidates(
        {name: _found(name, results, pool, question, objective) for name in SETTINGS},
        tuple(pool),
        fastest(single, question),
        _even(search, question),
    )


def _found(
    name: str,
    results: dict[str, SpaceResult],
    pool: list[Plan],
    question: Question,
    objective: Objective | None,
) -> Found:
    """The best plan of a setting; the pool of `any` holds the synchronous ones as well."""
    result = results[name]
    of = [plan for plan in pool if name == "any" or is_synchronous(plan)]
    best = fastest(of, question)
    if best is None:
        return Found(None, "exact" if result.exhaustive else "beam", None)
    bound = max(result.bound, best.rate)
    gap_pct = 100.0 * (bound / best.rate - 1.0)
    exact = result.exhaustive and gap_pct <= ROUNDING_PCT
    if objective is None:
        return Found(best, "exact" if exact else "beam", gap_pct)
    weighted = worthiest(of, question, objective, best.rate)
    return Found(weighted, "beam", None)


def stacked(trees: list) -> Any:
    """One tree on the host from trees of the same structure: every leaf gains a leading axis."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *trees)


def distinct(plans: Iterable[Plan]) -> list[Plan]:
    """Plans of which no two are alike but for their shares, the first of each; NumPy leaves."""
    found: dict[bytes, Plan] = {}
    for plan in plans:
        plan = jax.tree.map(np.asarray, plan)
        names = (n for n in vars(plan) if n != "batch_share")
        key = b"".join(np.asarray(getattr(plan, n), np.int32).tobytes() for n in names)
        found.setdefault(key, plan)
    return list(found.values())


def place_key(plan: Plan) -> bytes:
    """Equal for plans of the same groups of domains that talk at one pace: one plan to a reader."""
    kind = np.array([int(plan.sync_period) > 1, is_synchronous(plan)], np.int32)
    return kind.tobytes() + np.asarray(plan.group).tobytes() + np.asarray(plan.position).tobytes()


def fastest(plans: list[Plan], question: Question) -> Carried | None:
    """The plan with the highest rate; None where none can run."""
    if not plans:
        return None
    rate = score(stacked(plans), question.view, question.problem)
    best = int(rate.argmax())
    return carried(plans[best], question) if rate[best] > 0.0 else None


def worthiest(
    plans: list[Plan], question: Question, objective: Objective, reference: float
) -> Carried | None:
    """The plan with the highest worth, progress measured in `reference` [training steps / s]."""
    every = [one for plan in plans if (one := carried(plan, question)).runs]
    if not every:
        return None
    costs = stacked([one.cost for one in every])
    return every[int(np.argmax(_worths(costs, question, objective, reference)))]


def _worths(costs, question: Question, objective: Objective, reference: float) -> np.ndarray:
    """[P] reward per second of plans with these costs [P, ...]."""
    interval_s, progress_ref = jnp.float32(INTERVAL_S), jnp.float32(reference * INTERVAL_S)

    def one(cost):
        worth = plan_worth(
            cost, question.problem, question.view, objective, progress_ref, interval_s
        )
        return worth.trained + worth.held

    return np.asarray(jax.vmap(one)(costs))


def _even(search: SpaceSearch, question: Question) -> Carried | None:
    plans = even_splits(search)
    if plans is None:
        return None
    return fastest([take(plans, i) for i in range(len(plans.dp))], question)
