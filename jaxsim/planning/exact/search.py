"""Exact search: the best plan of a family under a network, by branch and bound.

Prepared once per cluster, job and free GPUs (`bounds`). A decision bounds all plans by
what their pipelines need alone, opens branches (Lawler and Wood, 1966) from the most promising on, one
group's dp after the other, and scores what no bound rules out with the simulator itself, in blocks.
Ties apart, the result is what scoring every plan of the family gives.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxsim.files import InputError
from jaxsim.plan import MENU_SCHEDULES, Layout, Plan, Problem, empty_plan, needs_reconfiguration
from jaxsim.planning import PlanFamily, complete, count_subsets, layer_pace, list_pipelines
from jaxsim.planning.exact.bounds import Options, PipelineTable, average_rate, ring_s
from jaxsim.planning.exact.incumbent import BLOCK
from jaxsim.step_time import NetworkView, StepCost, begin_transition, job_step_cost, transition_s
from jaxsim.trees import take

MOST_LAYOUTS = 200_000
MOST_TABLES = 8  # cost tables, one for each state of free GPUs, that a search remembers
# Branches opened together: few at first, until there is a good plan to beat.
FIRST, MOST_BRANCHES = 64, 4096


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The best plan of a family and what the claim rests on."""

    plan: Plan  # complete, one job
    step_s: float  # [s], infinite where nothing can run
    switch_s: float  # [s] from the plan in force, 0 for staying
    rate: float  # [training steps / s] on average over the horizon, the switch paid
    plans_scored: int  # by the simulator; all others are ruled out by their bound or lack memory
    plans_covered: int  # of the family searched
    plans_in_family: int  # of the same family over any number of domains and groups


@dataclasses.dataclass
class _Incumbent:
    """The best plan so far; `rate` is what the others must beat."""

    plan: Plan  # as enumerated
    choice: int = 0
    rate: float = -1.0  # [training steps / s]
    scored: int = 0  # plans until now


class _Leaves(NamedTuple):
    """Plans of as many groups, [n] each, [n, G] for `order` and `dp`: indices into the pipelines."""

    bound: np.ndarray  # [training steps / s]
    order: np.ndarray
    common: np.ndarray
    choice: np.ndarray
    dp: np.ndarray

    def take(self, rows) -> _Leaves:
        return _Leaves(*(x[rows] for x in self))


class ExactSearch:
    """The best plan of `family` for one job (no job axis) on one cluster.

    Raises InputError where the family has more layouts than can be listed, or the job has virtual
    stages (the bounds do not hold for them).
    """

    def __init__(
        self,
        problem: Problem,
        family: PlanFamily | None = None,
    ):
        self.family = PlanFamily() if family is None else family
        self.problem = problem.replace(choices=self.family.menu)
        work, cluster = problem.work, problem.cluster
        domains = tuple(np.flatnonzero(np.asarray(cluster.mask)).tolist())
        most = min(self.family.max_domains or len(domains), len(domains))
        if (count := count_subsets(len(domains), most)) > MOST_LAYOUTS:
            raise InputError(
                f"max_domains: {count} layouts over {most} of {len(domains)} domains; "
                f"expected a number with at most {MOST_LAYOUTS}"
            )
        if float(work.virtual_stages) != 1.0:
            raise InputError("virtual_stages: an exact search expects 1")
        whole = dataclasses.replace(self.family, max_domains=None, max_groups=None)
        self.covered = self.family.count(cluster, work)
        self.in_family = whole.count(cluster, work)
        layouts = self.family.layouts(domains)
        orders = sorted({g for layout in layouts for g in layout})
        heads = {tp: self._head_share(tp) for tp in self.family.tensor_sizes(cluster)}
        pace = layer_pace(self.problem)
        self.pipelines = list_pipelines(self.family, cluster, work, orders, heads, pace)
        self.layouts = self._by_groups(layouts)
        self._tables: collections.OrderedDict[tuple[int, ...], PipelineTable] = (
            collections.OrderedDict()
        )

    def prepare(self, gpus_available: Int[Array | np.ndarray, " K"]) -> PipelineTable:
        """The table for free GPUs [K], built where it is not there: `best` does it by itself.

        The MOST_TABLES used last are remembered: under a load that changes, each is large and few
        come back.
        """
        key = tuple(np.asarray(gpus_available).tolist())
        if key not in self._tables:
            args = (self.pipelines, self.family.choices, self.problem, gpus_available)
            self._tables[key] = PipelineTable.build(*args)
            if len(self._tables) > MOST_TABLES:
                self._tables.popitem(last=False)
        self._tables.move_to_end(key)
        return self._tables[key]

    def best(
        self, view: NetworkView, in_force: Plan | None = None, horizon_s: float = np.inf
    ) -> SearchResult:
        """The plan that trains most in the next `horizon_s` [s] under `view`, the switch from the plan
        in force (None: nothing is) paid first; for ever, that is the fastest plan.

        The plan in force itself is always among the candidates, in the family or not.
        """
        if in_force is None:
            in_force = jax.tree.map(jnp.asarray, empty_plan(self.problem.cluster.mask.shape[0]))
        given = (in_force, jnp.float32(horizon_s), view, self.problem)
        pays = None if np.isinf(horizon_s) else in_force
        options = self.prepare(view.gpus_available).options(view, self.problem, pays)
        every = np.arange(self.problem.choices.size)
        stay = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(every), 0), in_force)
        best = _Incumbent(in_force)  # pyright: ignore[reportArgumentType]
        self._score(stay, every, given, best)
        for leaves in self._leaves(options, view, horizon_s, best):
            leaves = leaves.take(np.argsort(-leaves.bound, kind="stable"))
            for start in range(0, len(leaves.bound), BLOCK):
                block = leaves.take(slice(start, start + BLOCK))
                if block.bound[0] <= best.rate:
                    break
                n_domains = self.problem.cluster.mask.shape[0]
                plans = self.pipelines.plans(block.order, block.common, block.dp, n_domains)
                self._score(plans, block.choice, given, best)
        plan, cost, switch_s = jax.device_get(_finish(best.plan, np.int32(best.choice), *given))
        return SearchResult(
            plan=plan,
            step_s=float(cost.step_s),
            switch_s=float(switch_s),
            rate=best.rate,
            plans_scored=best.scored,
            plans_covered=self.covered,
            plans_in_family=self.in_family,
        )

    def _score(self, plans: Plan, choice: np.ndarray, given, best: _Incumbent) -> None:
        """Let up to BLOCK plans [P, ...] challenge the incumbent."""
        size = len(choice)
        rows = np.minimum(np.arange(BLOCK), size - 1)
        args = take((plans, choice.astype(np.int32)), rows)
        rate = np.asarray(_score_block(*args, *given))[:size]
        top = int(rate.argmax())
        best.scored += size
        if rate[top] > best.rate:
            best.plan = take(plans, top)
            best.choice, best.rate = int(choice[top]), float(rate[top])

    def _leaves(
        self, options: Options, view: NetworkView, horizon_s: float, best: _Incumbent
    ) -> Iterator[_Leaves]:
        """All plans whose bound exceeds the incumbent's rate at the time, in portions."""
        bound = average_rate(options.whole, options.switch, horizon_s)
        order, common, dp, choice = found = np.nonzero(bound > best.rate)
        yield _Leaves(bound[found], order[:, None], common, choice, dp[:, None])
        for n in sorted(set(self.layouts) - {1}):
            layouts = self.layouts[n]
            ring = ring_s(
                layouts, self.pipelines, view, self.problem.work, self.problem.calibration
            )
            bound = self._branch_bounds(layouts, options, ring, horizon_s)
            found = np.nonzero(bound > best.rate)
            found = tuple(x[np.argsort(-bound[found], kind="stable")] for x in found)
            start, size = 0, FIRST
            while start < len(found[0]) and bound[tuple(x[start] for x in found)] > best.rate:
                which, *settings = (x[start : start + size] for x in found)
                branches = layouts[which], *settings, ring[which]
                yield self._open(*branches, options, horizon_s, best.rate)  # pyright: ignore[reportCallIssue]
                start, size = start + size, min(4 * size, MOST_BRANCHES)

    def _branch_bounds(self, layouts, options: Options, ring: np.ndarray, horizon_s: float):
        """[n, C, V] over all dp of layouts [n, G]."""
        speed = options.speed.max(axis=2)  # [N, C, V]
        fill, slack, after = (x.min(axis=2) for x in (options.fill, options.slack, options.after))
        switch = options.switch.min(axis=2)
        total_s = float(self.problem.work.global_batch) / np.maximum(
            speed[layouts].sum(axis=1), 1e-30
        )
        total_s = np.maximum(total_s, fill[layouts].max(axis=1))
        sync_s = np.maximum(slack[layouts].min(axis=1) + ring[:, None, None], 0.0)
        step_s = total_s + sync_s + after[layouts].max(axis=1)
        return average_rate(step_s, switch[layouts].max(axis=1), horizon_s)

    def _open(
        self, layouts, common, choice, ring, options: Options, horizon_s: float, floor: float
    ) -> _Leaves:
        """The plans of branches [n] (layouts [n, G]) that may beat `floor`: dp is fixed group by group,
        with the groups to come at their best."""
        batch, n_groups = float(self.problem.work.global_batch), layouts.shape[1]
        at = layouts, common[:, None], slice(None), choice[:, None]
        speed, tail, offset, fill, slack, after = (
            getattr(options, name)[at]
            for name in ("speed", "tail", "offset", "fill", "slack", "after")
        )  # [n, G, D]
        switch = options.switch[layouts, common[:, None], :, 0]
        to_come = np.cumsum(speed.max(axis=2)[:, ::-1], axis=1)[:, ::-1]
        to_come = np.concatenate([to_come[:, 1:], np.zeros_like(to_come[:, :1])], axis=1)
        branch, dp = np.arange(len(layouts)), np.zeros((len(layouts), 0), np.int64)
        sums = np.zeros((len(layouts), 3), np.float32)  # of speed, tail, offset
        most = np.zeros((len(layouts), 3), np.float32)  # of fill, after, switch
        least_s = slack.min(axis=(1, 2))
        bound = np.full(len(layouts), np.inf)
        for g in range(n_groups):
            row, d = np.nonzero(speed[branch, g] > 0.0)
            pick = branch[row], g, d
            sums = sums[row] + np.stack([x[pick] for x in (speed, tail, offset)], axis=1)
            most = np.maximum(most[row], np.stack([x[pick] for x in (fill, after, switch)], axis=1))
            branch, dp = branch[row], np.concatenate([dp[row], d[:, None]], axis=1)
            total_s = np.maximum(batch / (sums[:, 0] + to_come[branch, g]), most[:, 0])
            if g == n_groups - 1:
                total_s = np.maximum(total_s, (batch - sums[:, 2]) / sums[:, 1])
                low_s = slack[branch[:, None], np.arange(n_groups), dp].min(axis=1)
            else:
                low_s = least_s[branch]
            sync_s = np.maximum(low_s + ring[branch], 0.0)
            bound = average_rate(total_s + sync_s + most[:, 1], most[:, 2], horizon_s)
            open_ = bound > floor
            branch, dp, bound = branch[open_], dp[open_], bound[open_]
            sums, most = sums[open_], most[open_]
        leaves = _Leaves(bound, layouts[branch], common[branch], choice[branch], dp)
        return leaves.take(self._splits(leaves))

    def _splits(self, leaves: _Leaves) -> np.ndarray:
        """[n] bool: the global batch splits exactly, as `complete` asks."""
        micro_batch = np.array([c[0] for c in self.family.choices])[leaves.choice]
        replicas = self.pipelines.dp[leaves.dp]
        largest = replicas.max(axis=1, initial=1)
        blocks, rest = np.divmod(int(self.problem.work.global_batch), micro_batch * largest)
        even = np.all(largest[:, None] % replicas == 0, axis=1)
        return even & (rest == 0) & (blocks >= replicas.shape[1])

    def _by_groups(self, layouts: list[Layout]) -> dict[int, np.ndarray]:
        """{groups: [n, groups] index of the pipeline of each group}."""
        index = self.pipelines.index
        out: dict[int, list] = {}
        for layout in layouts:
            out.setdefault(len(layout), []).append([index[g] for g in layout])
        return {n: np.array(rows) for n, rows in out.items()}

    def _head_share(self, tp: int) -> float:
        """Time of the logits over that of a layer, from two probes of two stages each."""
        cluster = self.problem.cluster
        plan = empty_plan(cluster.mask.shape[0])
        k = int(np.argmax(np.minimum(cluster.gpus, cluster.gpus_per_node)))
        alone_s = float(jnp.broadcast_to(self.problem.calibration.micro_batch_s, plan.tp.shape)[k])

        def probe(layers):
            fields = {"group": 0, "layers": 2 * layers, "pp": 2, "tp": tp}
            values = {name: np.array(getattr(plan, name)) for name in fields}
            for name, value in fields.items():
                values[name][k] = value
            share = np.array(plan.batch_share)
            share[0] = 1
            cost = _cost(
                plan.replace(**values, batch_share=share),
                self.problem,
                NetworkView(
                    cluster.bandwidth_gb_per_s,
                    cluster.rtt_s,
                    jnp.full_like(cluster.gpus, 2 * tp),
                ),
            )
            return float(cost.compute_s) - alone_s

        one, two = probe(1), probe(2)
        return max(one / (two - one) - 1.0, 0.0)


_cost = jax.jit(functools.partial(job_step_cost, schedules=MENU_SCHEDULES))


def _scored(
    plan: Plan,
    choice: Array,
    in_force: Plan,
    span: Array,
    view: NetworkView,
    problem: Problem,
) -> tuple[Plan, StepCost, Array, Array]:
    """One plan completed, its cost, its switch [s] and its value, 0 where it is illegal."""
    done, legal = complete(plan, choice, problem, view)
    cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
    move = begin_transition(in_force, plan, problem)
    switch_s = transition_s(move, view.bandwidth_gb_per_s * problem.calibration.wan_efficiency)
    switch_s = jnp.where(needs_reconfiguration(in_force, plan), switch_s, 0.0)
    share = jnp.where(jnp.isinf(span), 1.0, jnp.maximum(span - switch_s, 0.0) / span)
    value = jnp.where(legal & cost.runs, cost.efficiency / cost.step_s * share, 0.0)
    return done, cost, switch_s, value


@jax.jit
def _score_block(plans: Plan, choice: Array, *given) -> Array:
    """[P] values."""
    return jax.vmap(lambda p, c: _scored(p, c, *given)[3])(plans, choice)


@jax.jit
def _finish(plan: Plan, choice: Array, *given) -> tuple[Plan, StepCost, Array]:
    return _scored(plan, choice, *given)[:3]
