"""A plan made better by exchanges: domains change places, groups their settings and how they talk.

A bounded search opens some partitions, of pipelines that are not too long, and combines settings up to
a limit. From its best plan on, this tries what differs in one thing, and goes on from the best of that
until nothing is better. Nothing is claimed of what is not tried.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxsim.plan import Plan, Problem
from jaxsim.planning import Choice, Common, Exchange, Pipelines, PlanSpace, list_pipelines
from jaxsim.trees import take

MOST_TRIED = 30_000  # plans of one climb
MOST_AT_ONCE = 6000  # neighbours of one plan; of more, as many are drawn
SEED = 0  # of that draw
ROUNDING = 1e-6  # of a rate: a ring that is turned round is no better


class Group(NamedTuple):
    """A group of a plan."""

    order: tuple[int, ...]  # its domains, from the first stage on
    common: Common
    dp: int
    choice: Choice


class Talk(NamedTuple):
    """A plan, shares apart."""

    groups: tuple[Group, ...]  # in the order of the ring
    way: Exchange


Rates = Callable[[Plan], Float[np.ndarray, " P"]]


@dataclasses.dataclass(frozen=True)
class Climbed:
    """Where a climb ended."""

    plan: Plan  # NumPy leaves, shares open
    way: Exchange
    rate: float  # [training steps / s]
    tried: int


class Climb:
    """What may be exchanged in plans of a space for one job (no job axis) on one cluster."""

    def __init__(self, problem: Problem, space: PlanSpace, ways: list[Exchange]):
        cluster, family = problem.cluster, space.groups
        self.problem, self.family, self.ways = problem, family, ways
        self.domains = np.flatnonzero(np.asarray(cluster.mask)).tolist()
        self.longest = min(space.longest_tried, len(self.domains), int(problem.work.layers))
        self.commons = [
            Common(tp, zero, "even", cp, part)
            for (tp, cp, part), zero in itertools.product(
                family.shapes(cluster), family.zero_stages
            )
        ]
        self.dps = family.replicas(cluster, problem.work)
        # Of all climbs: what one has passed leads to an end that is known.
        self._seen: set[Talk] = set()

    def from_plan(self, plan: Plan, way: Exchange, rate: float, rates: Rates) -> Climbed:
        """The best plan that exchanges lead to from `plan`, which trains at `rate`; `rates` scores
        plans [P, ...] with open shares, the same in every climb."""
        now, tried, seen = self._read(plan, way), 0, self._seen
        draw = np.random.default_rng(SEED)
        while tried < MOST_TRIED:
            near = [x for x in dict.fromkeys(self.neighbours(now)) if x not in seen]
            if len(near) > MOST_AT_ONCE:
                kept = np.sort(draw.choice(len(near), MOST_AT_ONCE, replace=False))
                near = [near[i] for i in kept]
            seen.update(near)
            tried += len(near)
            best = None
            for plans, talks in self._plans(near):
                found = rates(plans)
                top = int(found.argmax())
                if found[top] > rate * (1.0 + ROUNDING):
                    rate, best = float(found[top]), (talks[top], top, plans)
            if best is None:
                break
            now, top, plans = best
            plan, way = take(plans, top), now.way
        return Climbed(plan, way, rate, tried)

    def neighbours(self, now: Talk) -> Iterator[Talk]:
        """What differs from a plan in one exchange."""
        groups, way = now
        yield from (Talk(groups, other) for other in self.ways)
        for g, own in enumerate(groups):
            for common, dp, choice in itertools.product(
                self.commons, self.dps, self.family.choices
            ):
                changed = own._replace(common=common, dp=dp, choice=choice)
                yield Talk(_with(groups, g, changed), way)
        for a, b in itertools.combinations(range(len(groups)), 2):
            swapped = list(groups)
            swapped[a], swapped[b] = groups[b], groups[a]
            yield Talk(tuple(swapped), way)
        places = (*self._moved(groups), *self._exchanged(groups), *self._joined(groups))
        yield from (Talk(moved, way) for moved in places if moved)

    def _moved(self, groups: tuple[Group, ...]) -> Iterator[tuple[Group, ...]]:
        """A domain goes elsewhere: to any place of any group, into a group of its own, or out."""
        for k in self.domains:
            left = [g._replace(order=tuple(d for d in g.order if d != k)) for g in groups]
            rest = tuple(g for g in left if g.order)
            if len(rest) < len(groups) or any(k in g.order for g in groups):
                yield rest
            for g, own in enumerate(rest):
                if len(own.order) < self.longest:
                    for at in range(len(own.order) + 1):
                        order = (*own.order[:at], k, *own.order[at:])
                        for dp in self.dps:
                            yield _with(rest, g, own._replace(order=order, dp=dp))
            choices = dict.fromkeys(g.choice for g in groups)
            for common, dp, choice in itertools.product(self.commons, self.dps, choices):
                yield (*rest, Group((k,), common, dp, choice))

    def _exchanged(self, groups: tuple[Group, ...]) -> Iterator[tuple[Group, ...]]:
        """Two domains take each other's places; one of them may be in no group."""
        for a, b in itertools.combinations(self.domains, 2):
            other = {a: b, b: a}
            yield tuple(g._replace(order=tuple(other.get(k, k) for k in g.order)) for g in groups)

    def _joined(self, groups: tuple[Group, ...]) -> Iterator[tuple[Group, ...]]:
        """Two groups become one pipeline, or one is cut in two."""
        for a, b in itertools.permutations(range(len(groups)), 2):
            order = groups[a].order + groups[b].order
            rest = tuple(g for i, g in enumerate(groups) if i not in (a, b))
            if len(order) <= self.longest:
                yield from ((*rest, groups[a]._replace(order=order, dp=dp)) for dp in self.dps)
        for g, own in enumerate(groups):
            rest = groups[:g] + groups[g + 1 :]
            for at in range(1, len(own.order)):
                for one, two in itertools.product(self.dps, repeat=2):
                    first = own._replace(order=own.order[:at], dp=one)
                    yield (*rest, first, own._replace(order=own.order[at:], dp=two))

    def _read(self, plan: Plan, way: Exchange) -> Talk:
        """The groups of a plan with NumPy leaves."""
        gpus, group = np.asarray(self.problem.cluster.gpus), np.asarray(plan.group)
        groups = []
        for g in range(int(group.max()) + 1):
            members = np.flatnonzero(group == g)
            order = tuple(int(k) for k in members[np.argsort(plan.position[members])])
            k, dp = order[0], int(plan.dp[g])
            tp, cp, zero = (int(x[k]) for x in (plan.tp, plan.cp, plan.zero_stage))
            held = int(plan.pp[k]) * tp * cp * dp
            # Stages may be fewer than the GPUs allow, where layers are few: then any part will do.
            part = max((p for p in self.family.parts if gpus[k] // p >= held), default=1)
            free = (plan.micro_batch, plan.recompute, plan.schedule)
            choice = (int(free[0][g]), int(free[1][g]), int(free[2][g]))
            groups.append(Group(order, Common(tp, zero, "even", cp, part), dp, choice))
        return Talk(tuple(groups), way)

    def _plans(self, talks: list[Talk]) -> Iterator[tuple[Plan, list[Talk]]]:
        """Those that GPUs and layers allow, by their number of groups."""
        orders = list(dict.fromkeys(g.order for talk in talks for g in talk.groups))
        if not orders:
            return
        work = self.problem.work
        pipelines = list_pipelines(self.family, self.problem.cluster, work, orders, {})
        common = {x: i for i, x in enumerate(pipelines.common)}
        dp = {int(x): i for i, x in enumerate(pipelines.dp)}
        sized: dict[int, list[Talk]] = {}
        for talk in talks:
            sized.setdefault(len(talk.groups), []).append(talk)
        for some in sized.values():
            at = np.array(
                [
                    [(pipelines.index[g.order], common[g.common], dp[g.dp]) for g in talk.groups]
                    for talk in some
                ]
            )
            possible = np.flatnonzero(pipelines.exists[tuple(np.moveaxis(at, 2, 0))].all(axis=1))
            if len(possible):
                kept = [some[i] for i in possible]
                yield self._assembled(pipelines, at[possible], kept), kept

    def _assembled(self, pipelines: Pipelines, at: np.ndarray, talks: list[Talk]) -> Plan:
        """Plans [P, ...] of talks whose pipelines are `at` [P, G, 3], shares open."""
        n_domains = self.problem.cluster.mask.shape[0]
        order, common, dp = np.moveaxis(at, 2, 0)
        plans = pipelines.mixed_plans(order, common, dp, n_domains)
        choice = np.array([[g.choice for g in talk.groups] for talk in talks], np.int32)
        fields = {}
        for i, name in enumerate(("micro_batch", "recompute", "schedule")):
            fields[name] = np.array(getattr(plans, name))
            fields[name][:, : choice.shape[1]] = choice[:, :, i]
        for name in talks[0].way.fields():
            fields[name] = np.array([getattr(talk.way, name) for talk in talks], np.int32)
        return plans.replace(**fields)


def _with(groups: tuple[Group, ...], g: int, changed: Group) -> tuple[Group, ...]:
    return (*groups[:g], changed, *groups[g + 1 :])
