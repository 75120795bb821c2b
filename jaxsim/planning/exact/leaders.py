"""The best plans of many different partitions: what a search for the one best plan passes over.

A user asks what comes second, what the cheapest is and what would win on other links. Of each number
of domains the partitions with the highest bounds are opened, synchronously and with the exchange that
suits each best, and a few of their plans are scored. Nothing is claimed of what is not opened.
"""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jaxtyping import Float

from jaxsim.plan import FULL_PRECISION_BITS, Plan, Problem
from jaxsim.planning import Exchange, PlanFamily, make_plan
from jaxsim.planning.exact.climb import Climb, Climbed
from jaxsim.planning.exact.incumbent import (
    BLOCK,
    PROBED,
    Incumbent,
    SpaceResult,
    finish,
    longest_pipeline,
    rates_of,
)
from jaxsim.planning.exact.wide import SpaceSearch
from jaxsim.step_time import NetworkView
from jaxsim.trees import stack_numpy, take

KEPT = 3  # plans of each partition
STARTS, STARTS_PER_SIZE = 3, 2  # of climbs, and partitions of each number of domains among them
_FREE = ("micro_batch", "recompute", "schedule")
NEAR = 0.75  # of a partition's bound: plans that are bounded below are not tried at first


def score(plans: Plan, view: NetworkView, problem: Problem) -> Float[np.ndarray, " P"]:
    """[P] training steps per second, efficiency included, of plans [P, ...] with NumPy leaves whose
    shares are open; 0 where a plan cannot run. Any number of plans: one program serves all."""
    return rates_of(plans, view, problem)


def leaders(
    search: SpaceSearch, view: NetworkView, ways: list[Exchange], per_size: int = 4
) -> list[Plan]:
    """The KEPT best plans found of each promising partition under `view`, shares open, NumPy leaves.

    `ways`: to talk, every step in 16 bits first. `per_size`: partitions of each number of domains that
    are opened, once with the first of `ways` and once with that of the others whose bound is highest.
    Single domains are all opened.
    """
    blocks, fastest, (parts, *_), rings, bound = search.bounded(view, ways)
    if not fastest.any():  # no block can train
        return []
    opened, known = [], search.of_view(view).leaders
    new: dict[tuple[Exchange, tuple[int, ...]], Incumbent] = {}
    for w, p in _opened(search, bound, parts, per_size):
        one = [int(b) for b in parts[p] if b >= 0]
        opened.append((ways[w], tuple(one)))
        if opened[-1] in known:
            continue
        state = new[opened[-1]] = Incumbent(search.problem, search.pipelines, view, BLOCK)
        args = (rings[0][int(ways[w].sync_period > 1), p], rings[1][p], view, state)
        for floor in (NEAR * bound[w, p], 0.0):
            state.rate = floor
            search._open(ways[w], one, blocks, *args)
            if state.waiting:
                break
    best = _best_of_each(list(new.values()), view, search.problem)
    known.update(zip(new, best, strict=True))
    return [plan for key in opened for plan in known[key]]


def best_plan(
    search: SpaceSearch,
    view: NetworkView,
    most_scored: int,
    exchanges: list[Exchange] | None = None,
) -> SpaceResult:
    """`search.best`, which begins from the best plan that exchanges make of the fastest leaders and
    even splits; what it finds instead is made better by exchanges as well."""
    ways = search.space.exchanges() if exchanges is None else exchanges
    if not search.space.tried:
        return search.best(view, most_scored, ways)
    even = even_splits(search)
    starts = leaders(search, view, ways, STARTS_PER_SIZE)
    starts += [] if even is None else [take(even, i) for i in range(len(even.group))]
    ends = climbed(search, view, ways, starts)
    known = max(ends, key=lambda end: end.rate, default=None)
    if known is not None:
        known = dataclasses.replace(known, tried=sum(end.tried for end in ends))
    result = search.best(view, most_scored, ways, known)
    if known is None or result.rate <= known.rate:
        return result
    (end,) = climbed(search, view, ways, [result.plan])
    plan, cost = jax.device_get(finish(end.plan, view, search.problem))
    return dataclasses.replace(
        result,
        plan=plan,
        exchange=end.way,
        cost=cost,
        rate=end.rate,
        bound=max(result.bound, end.rate),
        exhaustive=result.exhaustive and longest_pipeline(plan) <= search.space.max_pipeline,
        plans_scored=result.plans_scored + end.tried,
    )


def climbed(
    search: SpaceSearch,
    view: NetworkView,
    ways: list[Exchange],
    starts: list[Plan],
    most: int = STARTS,
) -> list[Climbed]:
    """Where exchanges lead to from the `most` fastest of some plans that can run and whose pipelines
    are through other domains."""
    if not starts or not search.space.tried:
        return []

    def rates(plans: Plan) -> Float[np.ndarray, " P"]:
        return score(plans, view, search.problem)

    climb, rate = Climb(search.problem, search.space, ways), rates(stack_numpy(starts))
    fastest: dict[bytes, int] = {}
    for i in np.argsort(-rate, kind="stable"):
        if rate[i] > 0.0:
            fastest.setdefault(starts[i].group.tobytes() + starts[i].position.tobytes(), i)
    ends = []
    for i in list(fastest.values())[:most]:
        ends.append(climb.from_plan(starts[i], Exchange.of(starts[i]), float(rate[i]), rates))
    return ends


def _opened(search: SpaceSearch, bound: np.ndarray, parts: np.ndarray, per_size: int):
    """(exchange, partition) pairs: of every number of domains those with the highest bounds."""
    members = np.array([int(m).bit_count() for m in search.masks] + [0])
    size = members[parts].sum(axis=1)
    pairs: dict[tuple[int, int], None] = {}
    kinds = [np.zeros(len(parts), int)]  # every step in 16 bits
    if len(bound) > 1:
        kinds.append(1 + bound[1:].argmax(axis=0))
    for best in kinds:
        value = bound[best, np.arange(len(parts))]
        for n in np.unique(size):
            rows = np.flatnonzero((size == n) & (value > 0.0))
            top = rows[np.argsort(-value[rows], kind="stable")]
            for p in top if n == 1 else top[:per_size]:
                pairs[int(best[p]), int(p)] = None
    return list(pairs)


def _best_of_each(states: list[Incumbent], view: NetworkView, problem: Problem) -> list[list[Plan]]:
    """Of what waits in each state the KEPT plans with the highest rates whose domains have different
    settings: which of them is surest, only who knows how far rates may be off can say."""
    tried, owner = [], []
    for n, state in enumerate(states):
        for way, bound, rows in state.waiting:
            top = np.argsort(-bound, kind="stable")[:PROBED]
            tried.append(state._plans(way, [r[top] for r in rows]))
            owner += [n] * len(top)
    best: list[list[Plan]] = [[] for _ in states]
    if not tried:
        return best
    plans = jax.tree.map(lambda *x: np.concatenate(x), *tried)
    rate, of = score(plans, view, problem), np.array(owner)
    for n in np.unique(of):
        rows = np.flatnonzero(of == n)
        kept: dict[bytes, Plan] = {}
        for i in rows[np.argsort(-rate[rows], kind="stable")]:
            if rate[i] > 0.0 and len(kept) < KEPT:
                plan = take(plans, i)
                kept.setdefault(_settings(plan), plan)
        best[n] = list(kept.values())
    return best


def _settings(plan: Plan) -> bytes:
    """What every domain of a plan does, whatever the order of the ring."""
    domains, groups = ("position", "layers", "tp", "pp", "cp", "zero_stage"), ("dp", *_FREE)
    at = np.maximum(plan.group, 0)
    columns = [getattr(plan, n) for n in domains] + [getattr(plan, n)[at] for n in groups]
    return np.stack(columns).astype(np.int32).tobytes()


def even_splits(search: SpaceSearch) -> Plan | None:
    """Plans that treat all domains alike, every step in 16 bits: one pipeline through all of them in
    the file's order, or one replica each. [P, ...], shares left open; None where there is none."""
    cluster, work = search.problem.cluster, search.problem.work
    domains = tuple(int(k) for k in search.domains)
    gpus, batch = np.asarray(cluster.gpus), int(work.global_batch)
    n_domains, plans = cluster.mask.shape[0], []
    for layout in {(domains,), tuple((k,) for k in domains)}:
        for tp in search.family.tensor_sizes(cluster):
            for dp in (d for d in search.family.replicas(cluster, work) if batch % d == 0):
                settings = (tp, (dp,) * len(layout))
                plan = make_plan(layout, settings, gpus, int(work.layers), n_domains)
                if plan is not None and _in_nodes(cluster, domains, tp):
                    plans += _with_choices(plan, search.family)
    return stack_numpy(plans) if plans else None


def _in_nodes(cluster, domains: tuple[int, ...], tp: int) -> bool:
    room = np.minimum(np.asarray(cluster.gpus), np.asarray(cluster.gpus_per_node))
    return all(room[k] >= tp for k in domains)


def _with_choices(plan: Plan, family: PlanFamily) -> list[Plan]:
    """The plan with every lower choice."""
    return [
        plan.replace(
            **{n: np.full_like(getattr(plan, n), x) for n, x in zip(_FREE, choice, strict=True)}
        )
        for choice in family.choices
    ]


def is_synchronous(plan: Plan) -> bool:
    """Every step in 16 bits, between groups and inside them; NumPy leaves."""
    bits = (int(plan.wire_bits), int(plan.activation_bits))
    return int(plan.sync_period) == 1 and all(b >= FULL_PRECISION_BITS for b in bits)
