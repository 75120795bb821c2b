"""A plan made better by exchanges: domains change places, groups their settings and how they talk.

A bounded search opens some partitions, of pipelines that are not too long, and combines settings up to
a limit. From its best plan on, this tries what differs in one thing, and goes on from the best of that
until nothing is better. Nothing is claimed of what is not tried.

A plan is a row of numbers, shares apart: how it talks, then a code for each group in the order of the
ring. A code is an order of domains and a setting: one row serves for the hundreds of thousands of plans
that are near one plan, of which few are scored.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from jaxsim.plan import Plan, Problem
from jaxsim.planning import Common, Exchange, Pipelines, PlanSpace, layer_pace, list_pipelines
from jaxsim.trees import take

MOST_TRIED = 30_000  # plans of one climb
MOST_AT_ONCE = 6000  # neighbours of one plan; of more, as many are drawn
SEED = 0  # of that draw
ROUNDING = 1e-6  # of a rate: a ring that is turned round is no better

Code = Any  # an int, of a group, or [N] of one in each of N plans
Rows = Int[np.ndarray, "_ W"]  # plans; -1 where there is no group
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
        self.dps, self.pace = family.replicas(cluster, problem.work), layer_pace(problem)
        self.sizes = (len(self.commons), len(self.dps), len(family.choices))  # of a setting
        self.settings = int(np.prod(self.sizes))
        self.orders: list[tuple[int, ...]] = []  # those met
        self._number: dict[tuple[int, ...], int] = {}  # of each of them
        # Of all climbs: what one has passed leads to an end that is known.
        self._seen: set[bytes] = set()

    def from_plan(self, plan: Plan, way: Exchange, rate: float, rates: Rates) -> Climbed:
        """The best plan that exchanges lead to from `plan`, which trains at `rate`; `rates` scores
        plans [P, ...] with open shares, the same in every climb."""
        now, tried = self.read(plan, way), 0
        draw = np.random.default_rng(SEED)
        while tried < MOST_TRIED:
            near = self._unseen(self.neighbours(now))
            if len(near) > MOST_AT_ONCE:
                near = near[np.sort(draw.choice(len(near), MOST_AT_ONCE, replace=False))]
            self._seen.update(_keys(near))
            tried += len(near)
            best = None
            for plans, rows in self.plans(near):
                found = rates(plans)
                top = int(found.argmax())
                if found[top] > rate * (1.0 + ROUNDING):
                    rate, best = float(found[top]), (rows[top], top, plans)
            if best is None:
                break
            now, top, plans = best
            plan, way = take(plans, top), self.ways[now[0]]
        return Climbed(plan, way, rate, tried)

    def neighbours(self, now: Int[np.ndarray, " W"]) -> Rows:
        """What differs from a plan in one exchange; some more than once."""
        way, groups = int(now[0]), [int(code) for code in now[1:] if code >= 0]
        near = [self._rows(np.arange(len(self.ways)), groups)]
        for g, code in enumerate(groups):
            any_setting = code // self.settings * self.settings + np.arange(self.settings)
            near.append(self._rows(way, _with(groups, g, any_setting)))
        for a, b in itertools.combinations(range(len(groups)), 2):
            near.append(self._rows(way, _with(_with(groups, a, groups[b]), b, groups[a])))
        places = (*self._moved(groups), *self._exchanged(groups), *self._joined(groups))
        near += [self._rows(way, moved) for moved in places if moved]
        return np.concatenate(near)

    def order(self, code: int) -> tuple[int, ...]:
        """The domains of a group, from the first stage on."""
        return self.orders[code // self.settings]

    def read(self, plan: Plan, way: Exchange) -> Int[np.ndarray, " W"]:
        """The row of a plan with NumPy leaves."""
        gpus, group = np.asarray(self.problem.cluster.gpus), np.asarray(plan.group)
        codes: list[Code] = []
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
            setting = (
                self.commons.index(Common(tp, zero, "even", cp, part)),
                list(self.dps).index(dp),
                list(self.family.choices).index(choice),
            )
            codes.append(self._code(order, int(np.ravel_multi_index(setting, self.sizes))))
        return self._rows(self.ways.index(way), codes)[0]

    def _moved(self, groups: list[int]) -> Iterator[list[Code]]:
        """A domain goes elsewhere: to any place of any group, into a group of its own, or out."""
        choices = list(dict.fromkeys(code % self.sizes[2] for code in groups))
        alone = np.arange(self.settings).reshape(self.sizes)[:, :, choices].ravel()
        for k in self.domains:
            rest: list[Code] = []
            for code in groups:
                left = tuple(d for d in self.order(code) if d != k)
                if left:
                    rest.append(self._code(left, code % self.settings))
            if rest != groups:
                yield rest
            for g, code in enumerate(rest):
                order = self.order(code)
                if len(order) < self.longest:
                    for at in range(len(order) + 1):
                        yield _with(rest, g, self._any_dp((*order[:at], k, *order[at:]), code))
            yield [*rest, self._code((k,), alone)]

    def _exchanged(self, groups: list[int]) -> Iterator[list[Code]]:
        """Two domains take each other's places; one of them may be in no group."""
        for a, b in itertools.combinations(self.domains, 2):
            other = {a: b, b: a}
            yield [
                self._code(tuple(other.get(k, k) for k in self.order(code)), code % self.settings)
                for code in groups
            ]

    def _joined(self, groups: list[int]) -> Iterator[list[Code]]:
        """Two groups become one pipeline, or one is cut in two."""
        for a, b in itertools.permutations(range(len(groups)), 2):
            order = self.order(groups[a]) + self.order(groups[b])
            if len(order) <= self.longest:
                rest = [code for i, code in enumerate(groups) if i not in (a, b)]
                yield [*rest, self._any_dp(order, groups[a])]
        for g, code in enumerate(groups):
            order, rest = self.order(code), groups[:g] + groups[g + 1 :]
            for at in range(1, len(order)):
                for first in self._any_dp(order[:at], code):
                    yield [*rest, int(first), self._any_dp(order[at:], code)]

    def _code(self, order: tuple[int, ...], setting: Code) -> Code:
        number = self._number.setdefault(order, len(self.orders))
        if number == len(self.orders):
            self.orders.append(order)
        return number * self.settings + setting

    def _any_dp(self, order: tuple[int, ...], like: int) -> Int[np.ndarray, " N"]:
        """Codes of an order with the other settings of a code, and any data parallelism."""
        common, _, choice = np.unravel_index(like % self.settings, self.sizes)
        dp = np.arange(self.sizes[1])
        return self._code(order, np.ravel_multi_index((common, dp, choice), self.sizes))

    def _rows(self, way: Code, groups: Sequence[Code]) -> Rows:
        """Plans whose groups are given; what is an array, differs from plan to plan."""
        columns = np.broadcast_arrays(way, *groups)
        rows = np.full((columns[0].size, 1 + len(self.domains)), -1)
        rows[:, : len(columns)] = np.stack([c.ravel() for c in columns], axis=1)
        return rows

    def _unseen(self, rows: Rows) -> Rows:
        """What no climb has tried, each once, in their order."""
        first: dict[bytes, int] = {}
        for i, key in enumerate(_keys(rows)):
            if key not in self._seen:
                first.setdefault(key, i)
        return rows[list(first.values())]

    def plans(self, rows: Rows) -> Iterator[tuple[Plan, Rows]]:
        """Those that GPUs and layers allow, by their number of groups; shares open."""
        if not len(rows):
            return
        codes, way = rows[:, 1:], rows[:, 0]
        size = (codes >= 0).sum(axis=1)
        met = np.unique(codes[codes >= 0] // self.settings)
        work, orders = self.problem.work, [self.orders[i] for i in met]
        pipelines = list_pipelines(self.family, self.problem.cluster, work, orders, {}, self.pace)
        listed = {x: i for i, x in enumerate(pipelines.common)}
        common_at = np.array([listed[x] for x in self.commons])
        for n in dict.fromkeys(size.tolist()):
            some = np.flatnonzero(size == n)
            order, setting = np.divmod(codes[some, :n], self.settings)
            common, dp, choice = np.unravel_index(setting, self.sizes)
            at = (np.searchsorted(met, order), common_at[common], dp)
            possible = np.flatnonzero(pipelines.exists[at].all(axis=1))
            if len(possible):
                of, chosen = [x[possible] for x in (*at, choice)], some[possible]
                yield self._assembled(pipelines, of, way[chosen]), rows[chosen]

    def _assembled(self, pipelines: Pipelines, of: list[np.ndarray], way: np.ndarray) -> Plan:
        """Plans [P, ...] of pipelines, settings and choices `of` [P, G] each that talk as `way` [P]
        says."""
        order, common, dp, choice = of
        plans = pipelines.mixed_plans(order, common, dp, self.problem.cluster.mask.shape[0])
        free, fields = np.array(self.family.choices, np.int32)[choice], {}
        for i, name in enumerate(("micro_batch", "recompute", "schedule")):
            fields[name] = np.array(getattr(plans, name))
            fields[name][:, : free.shape[1]] = free[:, :, i]
        for name in self.ways[0].fields():
            fields[name] = np.array([getattr(x, name) for x in self.ways], np.int32)[way]
        return plans.replace(**fields)


def _with(groups: Sequence[Code], g: int, changed: Code) -> list[Code]:
    return [*groups[:g], changed, *groups[g + 1 :]]


def _keys(rows: Rows) -> list[bytes]:
    """Of each row something that can be looked up."""
    return np.ascontiguousarray(rows).view(f"V{rows.shape[1] * rows.itemsize}").ravel().tolist()
