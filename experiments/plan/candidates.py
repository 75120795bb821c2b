"""The search for the best plans, and the pool of plans beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

import jax
import numpy as np

from experiments.evaluate import least_reach
from experiments.plan.answer import Carried, carried
from experiments.plan.question import Question
from jaxsim.plan import FULL_PRECISION_BITS, Plan
from jaxsim.planning import Exchange, Objective
from jaxsim.planning.exact import (
    Asked,
    SpaceResult,
    SpaceSearch,
    WorthResult,
    best_plan,
    climbed,
    even_splits,
    is_synchronous,
    leaders,
    longest_pipeline,
    most_worth,
    score,
)
from jaxsim.trees import stack_numpy, take

SETTINGS = ("synchronous", "any")
MOST_SCORED = 2000  # plans of each search; the gap says what that leaves open
MOST_COMBINED = (
    3000  # settings of a partition's blocks together; the gap says what that leaves open
)
# Factors on all links for which the pool holds plans as well: what wins there may lose here.
ELSEWHERE = (1 / 8, 8.0)
PER_SIZE, PER_SIZE_ELSEWHERE = 4, 2
ROUNDING_PCT = 0.01  # by which float32 may raise a bound


@dataclasses.dataclass(frozen=True)
class Found:
    """What a search came to, and what the claim rests on."""

    best: Carried | None  # None: nothing can run
    search: (
        str  # exact, beam where something was left out, or the name of the policy that knew more
    )
    # How much faster another plan might train, or how much more it may be worth; None: not known.
    gap_pct: float | None


@dataclasses.dataclass(frozen=True)
class Sought:
    """The plan of most worth at predicted speed, and what it is measured by."""

    asked: Asked
    result: WorthResult


@dataclasses.dataclass(frozen=True)
class Candidates:
    """The best plan of either setting and the pool, on which runners-up and thresholds rest."""

    found: dict[str, Found]
    pool: tuple[Carried, ...]  # no two alike but for their shares
    single_domain: Carried | None
    static_even_split: Carried | None
    results: dict[str, SpaceResult]  # what the search said of either setting
    objective: Objective | None
    sought: dict[str, Sought]  # under an objective: what was found of either setting


def search_plans(
    question: Question,
    objective: Objective | None,
    quick: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    known: Iterable[Plan] = (),
) -> Candidates:
    """Search both settings; `quick` leaves out the pool of other links, `tell` hears what is done.
    Plans that are `known` from elsewhere join the pool."""
    search = SpaceSearch(question.problem, question.space, MOST_COMBINED)
    view, ways = question.view, search.space.exchanges()
    tell("searching synchronous plans")
    results = {"synchronous": best_plan(search, view, MOST_SCORED, [Exchange()])}
    tell("searching all plans")
    results["any"] = best_plan(search, view, MOST_SCORED)
    tell("looking at runners-up")
    pool = list(leaders(search, view, ways, PER_SIZE))
    if not quick:
        whole = [way for way in ways if way.activation_bits == FULL_PRECISION_BITS]
        for factor in ELSEWHERE:
            there = question.scaled(factor)
            found = leaders(search, there, whole, PER_SIZE_ELSEWHERE)
            pool += [*found, *(end.plan for end in climbed(search, there, whole, found, most=1))]
    pool = distinct([*(r.plan for r in results.values() if r.rate > 0), *pool, *known])
    every = carried(pool, question)
    best = surest(every)
    if best is not None and not quick:
        more = distinct([*pool, *_in_other_words(best.plan, ways)])[len(pool) :]
        every += carried(more, question)
    sought: dict[str, Sought] = {}
    if objective is not None and best is not None:
        tell("looking at what the limits and weights ask for")
        sought = _sought(search, objective, every, question)
        more = distinct([one.plan for one in every] + [s.result.plan for s in sought.values()])
        every += carried(more[len(every) :], question)
    single = [
        one
        for one in every
        if is_synchronous(one.plan) and int((np.asarray(one.plan.group) >= 0).sum()) == 1
    ]
    return Candidates(
        {name: _found(name, results, every, question, sought) for name in SETTINGS},
        tuple(every),
        surest(single),
        _even(search, question),
        results,
        objective,
        sought,
    )


def _sought(
    search: SpaceSearch, objective: Objective, every: list[Carried], question: Question
) -> dict[str, Sought]:
    """The plan of most worth of either setting in which anything runs; progress is measured in that of
    its surest plan."""
    out = {}
    for name, ways in zip(SETTINGS, ([Exchange()], search.space.exchanges()), strict=True):
        of = _of_setting(name, every)
        if (best := surest(of)) is not None:
            asked = Asked(objective, best.least * Asked.interval_s)
            known = stack_numpy([one.plan for one in of])
            out[name] = Sought(
                asked, most_worth(search, question.view, asked, ways, known, MOST_SCORED)
            )
    return out


def _of_setting(name: str, pool: Iterable[Carried]) -> list[Carried]:
    """The pool of `any` holds the synchronous plans as well."""
    return [one for one in pool if name == "any" or is_synchronous(one.plan)]


def joined(candidates: Candidates, plans: Iterable[Plan], question: Question) -> Candidates:
    """The candidates with plans that somebody else proposes: the best of either setting may be one."""
    known = candidates.pool
    more = distinct([*(one.plan for one in known), *plans])[len(known) :]
    every = [*known, *carried(more, question)]
    results, sought = candidates.results, candidates.sought
    found = {name: _found(name, results, every, question, sought) for name in SETTINGS}
    return dataclasses.replace(candidates, found=found, pool=tuple(every))


def _in_other_words(plan: Plan, ways: Iterable[Exchange]) -> list[Plan]:
    """The same groups, talking in each of the ways: on other links they may do better so, before
    other groups do."""
    if int(np.asarray(plan.group).max()) < 1:
        return []
    return [plan.replace(**{k: np.int32(v) for k, v in way.fields().items()}) for way in ways]


def _found(
    name: str,
    results: dict[str, SpaceResult],
    pool: list[Carried],
    question: Question,
    sought: dict[str, Sought],
) -> Found:
    """The best plan of a setting. The gap is one of predicted speed, or of worth at that speed: it is
    not 0 where a plan that is faster, but less sure, was passed over."""
    result, of = results[name], _of_setting(name, pool)
    best = surest(of)
    if best is None:
        return Found(None, "exact" if result.exhaustive else "beam", None)
    if name in sought:
        return _worthiest_found(sought[name], of, question)
    gap_pct = 100.0 * (max(result.bound / best.rate, 1.0) - 1.0)
    return Found(best, _how(best, result.exhaustive, gap_pct, question), gap_pct)


def _worthiest_found(sought: Sought, of: list[Carried], question: Question) -> Found:
    """The plan of most worth at the lower end of the bands. Of a worth that is not positive, as beyond
    a limit, nothing is a percentage."""
    asked, result = sought.asked, sought.result
    best = worthiest(of, question, asked)
    (worth,) = asked.worths(stack_numpy([best.cost]), question.problem, question.view).tolist()
    if worth <= 0.0:
        return Found(best, "beam", None)
    gap_pct = 100.0 * (max(result.bound / worth, 1.0) - 1.0)
    return Found(best, _how(best, result.exhaustive, gap_pct, question), gap_pct)


def _how(best: Carried, exhaustive: bool, gap_pct: float, question: Question) -> str:
    bounded = longest_pipeline(best.plan) <= question.space.max_pipeline
    return "exact" if exhaustive and bounded and gap_pct <= ROUNDING_PCT else "beam"


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
    """Equal for plans of the same groups of domains that talk at one pace, in a ring of any order: one
    plan to a reader."""
    kind = np.array([int(plan.sync_period) > 1, is_synchronous(plan)], np.int32)
    return kind.tobytes() + groups_of(plan)


def groups_of(plan: Plan) -> bytes:
    """Equal for plans of the same groups of domains, in a ring of any order."""
    group = np.asarray(plan.group)
    first = [np.flatnonzero(group == g)[0] if g >= 0 else -1 for g in group]  # names the group
    return np.array(first).tobytes() + np.asarray(plan.position).tobytes()


def surest(every: list[Carried]) -> Carried | None:
    """The plan that is fastest at the lower end of its bands; None where none can run."""
    best = max(every, key=lambda one: one.least, default=None)
    return best if best is not None and best.runs else None


def worthiest(every: list[Carried], question: Question, asked: Asked) -> Carried:
    """Of plans of which some run the one with the highest worth at the lower end of its bands. What it
    sends and costs in an hour is that of the predicted step."""
    every = [one for one in every if one.runs]
    slower = [np.float32(one.cost.efficiency * np.exp(-one.reach)) for one in every]
    costs = stack_numpy(
        [one.cost.replace(efficiency=x) for one, x in zip(every, slower, strict=True)]
    )
    return every[int(np.argmax(asked.worths(costs, question.problem, question.view)))]


def _even(search: SpaceSearch, question: Question) -> Carried | None:
    """The even split that is fastest at the lower end of its bands; bands are computed of those alone
    that can be."""
    plans = even_splits(search)
    if plans is None:
        return None
    rate = score(plans, question.view, question.problem)
    if not rate.any():
        return None
    (fastest,) = carried([take(plans, int(rate.argmax()))], question)
    most = rate * np.exp(-least_reach(question.spec))  # at the lower end
    able = np.flatnonzero((rate > 0.0) & (most >= fastest.least * (1.0 - 1e-6)))
    return surest(carried([take(plans, i) for i in able], question))
