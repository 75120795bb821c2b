"""DT-FM: which regions hold the same stage, and in which order stages pass on their activations.

Yuan et al., "Decentralized Training of Foundation Models in Heterogeneous Environments", NeurIPS
2022: all devices are split into D_PP sets of D_DP; a set holds one stage and averages its gradients,
sets form a pipeline. The cost of a split is that of the slowest set's averaging plus twice that of
the best path through the sets (an open-loop travelling salesman over sets, a hop as slow as the worst
pair of the best matching between them). Splits are improved by exchanges of two members and bred in a
genetic search. Here members are domains, and inside a domain the simulator's best settings are used.

The search is exchange until nothing improves, from several random splits; matchings are by brute force
up to four members, beyond by repeated exchange. Of its plans for every D_PP that divides the domains
the simulator's fastest at base is deployed for good (`static.StaticPlan`).
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from agents.planners.stage_costs import fastest
from jaxsim.plan import Layout, Plan, Recompute, Schedule
from jaxsim.planning import PlanRules, TableBuilder, make_plan

STARTS = 4  # random splits that are improved
ALL_ORDERS_UP_TO = 6  # sets of which every order is tried; beyond, the next set is the nearest


class Costs:
    """What DT-FM knows: delays [s] and rates [GB/s] between domains, and bytes [GB] to be sent."""

    def __init__(
        self, rtt_s: np.ndarray, gb_per_s: np.ndarray, gradient_gb: float, batch_gb: float
    ):
        """`gradient_gb` of the whole model, `batch_gb` activations of the global batch."""
        self.delay_s = 0.25 * (rtt_s + rtt_s.T)  # one way
        self.s_per_gb = 1.0 / np.maximum(np.minimum(gb_per_s, gb_per_s.T), 1e-9)
        self.gradient_gb, self.batch_gb = gradient_gb, batch_gb
        self._hops: dict[tuple, tuple[float, tuple[int, ...]]] = {}

    def averaging_s(self, members: tuple[int, ...], n_sets: int) -> float:
        """The slowest member of a set: each sends every other its share of the stage, twice."""
        share = self.gradient_gb / n_sets / len(members)
        pair = self.delay_s + share * self.s_per_gb
        return max(sum(2 * pair[a, b] for b in members if b != a) for a in members)

    def hop(self, one: tuple[int, ...], two: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """[s] of the worst pair in the best matching of two sets, and `two` in the order of `one`."""
        if (one, two) not in self._hops:
            self._hops[one, two] = self._matched(one, two)
        return self._hops[one, two]

    def _matched(self, one: tuple[int, ...], two: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        pair = self.delay_s + self.batch_gb / len(one) * self.s_per_gb

        def worst(order) -> float:
            return max(pair[a, b] for a, b in zip(one, order, strict=True))

        if math.factorial(len(two)) <= 24:
            best = min(itertools.permutations(two), key=worst)
            return worst(best), best
        best = improved(two, worst)
        return worst(best), best

    def path(self, sets: list[tuple[int, ...]]) -> tuple[float, list[tuple[int, ...]]]:
        """[s] of the best path through all sets, and the sets along it, members matched."""
        return min((self._along(order) for order in self._orders(sets)), key=lambda found: found[0])

    def _orders(self, sets: list[tuple[int, ...]]):
        if len(sets) <= ALL_ORDERS_UP_TO:
            return itertools.permutations(sets)
        return (self._nearest_next(first, sets) for first in sets)

    def _nearest_next(self, first, sets):
        order, rest = [first], [s for s in sets if s != first]
        while rest:
            order.append(min(rest, key=lambda s: self.hop(order[-1], s)[0]))
            rest.remove(order[-1])
        return order

    def _along(self, order) -> tuple[float, list[tuple[int, ...]]]:
        total, matched = 0.0, [order[0]]
        for following in order[1:]:
            seconds, members = self.hop(matched[-1], following)
            total += seconds
            matched.append(members)
        return total, matched

    def split_s(self, sets: list[tuple[int, ...]]) -> tuple[float, list[tuple[int, ...]]]:
        """The cost of a split [s], and its sets along the best path."""
        averaging = max(self.averaging_s(s, len(sets)) for s in sets)
        passing, matched = self.path(sets)
        return averaging + 2 * passing, matched


def improved(order: tuple[int, ...], cost) -> tuple[int, ...]:
    """Exchange two entries as long as that lowers the cost."""
    best, least = tuple(order), cost(order)
    better = True
    while better:
        better = False
        for a, b in itertools.combinations(range(len(best)), 2):
            trial = list(best)
            trial[a], trial[b] = trial[b], trial[a]
            if (now := cost(trial)) < least * (1 - 1e-9):
                best, least, better = tuple(trial), now, True
    return best


def best_layout(costs: Costs, domains: tuple[int, ...], n_sets: int, seed: int = 0) -> Layout:
    """The pipelines of the cheapest split into `n_sets` that was found."""
    size = len(domains) // n_sets

    def sets(order) -> list[tuple[int, ...]]:
        return [tuple(sorted(order[i * size : (i + 1) * size])) for i in range(n_sets)]

    def cost(order) -> float:
        return costs.split_s(sets(order))[0]

    rng = np.random.default_rng(seed)
    starts = [domains, *(tuple(rng.permutation(domains).tolist()) for _ in range(STARTS - 1))]
    found = min((improved(start, cost) for start in starts), key=cost)
    along = costs.split_s(sets(found))[1]
    return tuple(zip(*along, strict=True))


def propose(builder: TableBuilder, allowed: np.ndarray) -> list[Plan]:
    """For every number of sets the fastest plan of the cheapest split of all domains."""
    problem, n = builder.problem, builder.spec.n_domains
    layers, batch = int(problem.work.layers), int(problem.work.global_batch)
    costs = Costs(
        np.asarray(problem.cluster.rtt_s, float)[:n, :n],
        np.asarray(problem.cluster.bandwidth_gb_per_s, float)[:n, :n],
        2.0 * float(problem.work.gparams),
        batch * float(problem.work.boundary_gb),
    )
    plans = []
    for n_sets in (m for m in range(1, n + 1) if n % m == 0):
        layout = best_layout(costs, tuple(range(n)), n_sets)
        room = int(builder.gpus[:n].min())
        tps = [2**i for i in range(int(min(builder.per_node[:n].min(), room)).bit_length())]
        shape = (builder.gpus, layers, builder.n_domains, builder.pace)
        trials = [
            make_plan(layout, (tp, (dp,) * len(layout)), *shape)
            for tp in tps
            for dp in range(1, room // tp + 1)
            if batch % dp == 0
        ]
        plans += fastest(builder, [plan for plan in trials if plan is not None], allowed, 1)
    return plans


RULES = PlanRules(propose, (Recompute.NONE, Recompute.FULL), (Schedule.ONE_F_ONE_B, Schedule.GPIPE))
