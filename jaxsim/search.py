"""Exact search: the best plan of a family under a network, by branch and bound.

Prepared once per cluster, job and free GPUs: every pipeline of the family alone, with one micro-batch,
in a table (`jaxsim.plan_costs`); options that lack memory even then are dropped. A decision bounds all
plans from below by what their pipelines need alone, best first, and scores those that the bound cannot
rule out with the simulator itself, in blocks. Ties apart, the result is what scoring every plan gives.

The bound of a plan of groups g with w_g = dp x micro-batch sequences per beat and m_g beats (Lawler and
Wood, 1966, for the method; all of it holds of the closed form, and of any pipeline):

- m_g beats take at least m_g a_g, a_g the slowest stage or link; and fill_g + (m_g - 1) b_g, b_g the
  slower of the last stage and the slowest link. All groups end by T with sum_g w_g m_g = batch, so
  T >= batch / sum_g (w_g / a_g) and T >= (batch - sum_g w_g (1 - fill_g / b_g)) / sum_g (w_g / b_g).
- A ring sends the whole gradient from each group to the next: no faster than all their links together.
- The gradients' way inside the domains, less what hides it, and the optimizer: those of the groups alone.
- A switch takes as long as the slowest of its groups': exact.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsim.balance import complete
from jaxsim.calibration import Calibration
from jaxsim.cluster import Cluster
from jaxsim.errors import InputError
from jaxsim.layouts import Layout
from jaxsim.plan import LowerChoices, Plan, empty_plan, needs_reconfiguration
from jaxsim.plan_costs import PlanCostTable, link_times, plan_costs
from jaxsim.plan_family import PlanFamily, count_subsets, list_pipelines
from jaxsim.plan_tables import build_cost_table
from jaxsim.reconfiguration import begin_transition, transition_s
from jaxsim.step_time import NetworkView, StepCost, job_step_cost
from jaxsim.step_time.sync import GRADIENT_BYTES, ring_rate_gb_per_s
from jaxsim.workload import Workload

MOST_LAYOUTS = 200_000
BLOCK = 256  # plans that one compiled call scores
BRANCHES = 64  # (layout, common settings, choice) that are opened together
ROUNDING = 1e-4  # by which float32 may have raised a bound


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The best plan of a family and what the claim rests on."""

    plan: Plan  # complete, one job
    step_s: float  # [s]
    rate: float  # [training steps / s]
    switch_s: float  # [s] from the plan in force, 0 for staying
    value: float  # [training steps / s] on average over the horizon, the switch paid
    plans_scored: int  # by the simulator; all others are ruled out by their bound or lack memory
    plans_covered: int  # of the family searched
    plans_in_family: int  # of the same family over any number of domains and groups


class _Branch(NamedTuple):
    """All dp of a layout under common settings and one choice; indices [n] each."""

    bound: np.ndarray  # [training steps / s]
    groups: np.ndarray  # number of groups
    layout: np.ndarray  # among those of as many groups
    common: np.ndarray
    choice: np.ndarray

    def take(self, rows) -> _Branch:
        return _Branch(*(x[rows] for x in self))


@dataclasses.dataclass(frozen=True)
class _Options:
    """What pipelines need alone under one network; [N, C, D, V] [s], infinite where an option does
    not exist. `speed` and `tail` [sequences / s]."""

    weight: np.ndarray  # w [1, 1, D, V] [sequences]
    speed: np.ndarray  # w / a
    tail: np.ndarray  # w / b
    offset: np.ndarray  # w (1 - fill / b) [sequences]
    fill: np.ndarray
    slack: np.ndarray  # gradient sync inside, less what hides it
    after: np.ndarray  # optimizer
    switch: np.ndarray  # [N, C, D, 1]


class ExactSearch:
    """The best plan of `family` for one job (no job axis) on one cluster.

    Raises InputError where the family has more layouts than can be listed, or the job has virtual
    stages (the bound does not hold for them).
    """

    def __init__(
        self,
        cluster: Cluster,
        work: Workload,
        calibration: Calibration,
        family: PlanFamily | None = None,
    ):
        self.cluster, self.work, self.calibration = cluster, work, calibration
        self.family = PlanFamily() if family is None else family
        domains = tuple(np.flatnonzero(np.asarray(cluster.mask)).tolist())
        most = min(self.family.max_domains or len(domains), len(domains))
        if (count := count_subsets(len(domains), most)) > MOST_LAYOUTS:
            raise InputError(
                f"max_domains: {count} layouts over {most} of {len(domains)} domains; "
                f"expected a number with at most {MOST_LAYOUTS}"
            )
        if float(work.virtual_stages) != 1.0:
            raise InputError("virtual_stages: an exact search expects 1")
        self.choices = self.family.menu
        whole = dataclasses.replace(self.family, max_domains=None, max_groups=None)
        self.covered = self.family.count(cluster, work)
        self.in_family = whole.count(cluster, work)
        layouts = self.family.layouts(domains)
        orders = sorted({g for layout in layouts for g in layout})
        heads = {tp: self._head_share(tp) for tp in self.family.tensor_sizes(cluster)}
        self.pipelines = list_pipelines(self.family, cluster, work, orders, heads)
        self.layouts = self._by_groups(layouts)
        self._tables: dict[tuple[int, ...], _Alone] = {}
        self.prepare(cluster.gpus)

    def prepare(self, gpus_available: Array) -> None:
        """Build the table for free GPUs [K], unless it is there: what `best` does when it meets them
        for the first time."""
        self._alone(gpus_available)

    def best(
        self, view: NetworkView, in_force: Plan | None = None, horizon_s: float | None = None
    ) -> SearchResult:
        """The plan that trains most in the next `horizon_s` [s] under `view`, the switch from the plan
        in force paid first; without a horizon the fastest plan.

        The plan in force itself is always among the candidates, in the family or not.
        """
        if in_force is None:
            in_force = jax.tree.map(jnp.asarray, empty_plan(self.cluster.mask.shape[0]))
        span = jnp.float32(jnp.inf if horizon_s is None else horizon_s)
        given = (in_force, span, view, self.choices, self.work, self.cluster, self.calibration)
        every = np.arange(self.choices.size)
        stay = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(every), 0), in_force)
        best, scored = self._score(stay, every, given, None)
        options = self._options(view, in_force, horizon_s is not None)
        branches = self._branches(options, view, float(span))
        for start in range(0, len(branches.bound), BRANCHES):
            if branches.bound[start] <= best.value:
                break
            opened = branches.take(slice(start, start + BRANCHES))
            for found in self._leaves(opened, options, view, float(span), best):
                order = np.argsort(-found.bound, kind="stable")
                for begin in range(0, len(order), BLOCK):
                    rows = order[begin : begin + BLOCK]
                    if found.bound[rows[0]] <= best.value:
                        break
                    plans = self.pipelines.plans(
                        found.order[rows],
                        found.common[rows],
                        found.dp[rows],
                        self.cluster.mask.shape[0],
                    )
                    best, count = self._score(plans, found.choice[rows], given, best)
                    scored += count
        return self._result(best, scored, given)

    def _score(self, plans: Plan, choice: np.ndarray, given, best: _Best | None):
        """The better of `best` and the best of up to BLOCK plans; and how many were scored."""
        size = len(choice)
        rows = np.minimum(np.arange(BLOCK), size - 1)
        args = jax.tree.map(lambda x: x[rows], (plans, choice.astype(np.int32)))
        value = np.asarray(_score_block(*args, *given))[:size]
        top = int(value.argmax())
        if best is not None and value[top] <= best.value:
            return best, size
        plan = jax.tree.map(lambda x: x[top], plans)
        return _Best(float(value[top]), plan, int(choice[top])), size

    def _result(self, best: _Best, scored: int, given) -> SearchResult:
        plan, cost, switch_s = jax.device_get(_finish(best.plan, np.int32(best.choice), *given))
        rate = float(cost.efficiency / cost.step_s)
        return SearchResult(
            plan=plan,
            step_s=float(cost.step_s),
            rate=rate,
            switch_s=float(switch_s),
            value=best.value,
            plans_scored=scored,
            plans_covered=self.covered,
            plans_in_family=self.in_family,
        )

    def _by_groups(self, layouts: list[Layout]) -> dict[int, np.ndarray]:
        """{groups: [n, groups] index of the pipeline of each group}."""
        index = self.pipelines.index
        out: dict[int, list] = {}
        for layout in layouts:
            out.setdefault(len(layout), []).append([index[g] for g in layout])
        return {n: np.array(rows) for n, rows in out.items()}

    def _head_share(self, tp: int) -> float:
        """Time of the logits over that of a layer, from two probes of two stages each."""
        plan = empty_plan(self.cluster.mask.shape[0])
        k = int(np.argmax(np.minimum(self.cluster.gpus, self.cluster.gpus_per_node)))

        def probe(layers):
            fields = {"group": 0, "layers": 2 * layers, "pp": 2, "tp": tp}
            values = {name: np.array(getattr(plan, name)) for name in fields}
            for name, value in fields.items():
                values[name][k] = value
            share = np.array(plan.batch_share)
            share[0] = 1
            cost = _cost(
                plan.replace(**values, batch_share=share),
                self.work,
                self.cluster,
                self.calibration,
                NetworkView(
                    self.cluster.bandwidth_gb_per_s,
                    self.cluster.rtt_s,
                    jnp.full_like(self.cluster.gpus, 2 * tp),
                ),
            )
            return float(cost.compute_s) - float(self.calibration.micro_batch_s)

        one, two = probe(1), probe(2)
        return max(one / (two - one) - 1.0, 0.0)

    def _alone(self, gpus_available: Array) -> _Alone:
        key = tuple(np.asarray(gpus_available).tolist())
        if key not in self._tables:
            self._tables[key] = _Alone.build(self, gpus_available)
        return self._tables[key]

    def _options(self, view: NetworkView, in_force: Plan, pays: bool) -> _Options:
        return self._alone(view.gpus_available).options(self, view, in_force if pays else None)

    def _branches(self, options: _Options, view: NetworkView, span: float) -> _Branch:
        """All branches that may hold a plan, the most promising first."""
        speed = options.speed.max(axis=2)  # [N, C, V]
        fill, slack, after = (x.min(axis=2) for x in (options.fill, options.slack, options.after))
        switch = options.switch.min(axis=2)
        parts = []
        for n, layouts in self.layouts.items():
            total_s = float(self.work.global_batch) / np.maximum(speed[layouts].sum(axis=1), 1e-30)
            total_s = np.maximum(total_s, fill[layouts].max(axis=1))
            ring_s = self._ring_s(layouts, view)[:, None, None]
            sync_s = np.maximum(slack[layouts].min(axis=1) + ring_s, 0.0)
            step_s = total_s + sync_s + after[layouts].max(axis=1)
            bound = _value(step_s, switch[layouts].max(axis=1), span)
            layout, common, choice = np.nonzero(bound > 0.0)
            groups = np.full_like(layout, n)
            parts.append(_Branch(bound[layout, common, choice], groups, layout, common, choice))
        joined = _Branch(*(np.concatenate(x) for x in zip(*parts, strict=True)))
        return joined.take(np.argsort(-joined.bound, kind="stable"))

    def _ring_s(self, layouts: np.ndarray, view: NetworkView) -> np.ndarray:
        """[n] [s] at least, for the gradient to go round the groups of layouts [n, G]."""
        n = layouts.shape[1]
        if n == 1:
            return np.zeros(len(layouts))
        rate = ring_rate_gb_per_s(view.bandwidth_gb_per_s, jnp.int32(1), self.calibration)
        rate = np.asarray(rate)
        inside = np.zeros((len(self.pipelines.members), len(rate)), np.float32)
        held = self.pipelines.members
        inside[np.nonzero(held >= 0)[0], held[held >= 0]] = 1.0
        sent_gb = 2.0 * (n - 1) / n * GRADIENT_BYTES * float(self.work.gparams)
        pairs = zip(layouts.T, np.roll(layouts, -1, axis=1).T, strict=True)
        together = [np.einsum("ni,ij,nj->n", inside[a], rate, inside[b]) for a, b in pairs]
        return sent_gb / np.min(together, axis=0)

    def _leaves(self, branches: _Branch, options: _Options, view, span: float, best: _Best):
        """The plans of some branches that their own bound does not rule out, by number of groups."""
        for n in np.unique(branches.groups):
            mine = branches.take(branches.groups == n)
            layouts = self.layouts[int(n)][mine.layout]
            ring_s = self._ring_s(layouts, view)
            found = []
            for i, (layout, c, v) in enumerate(zip(layouts, mine.common, mine.choice, strict=True)):
                if mine.bound[i] <= best.value:
                    continue
                bound, dp = self._open(layout, c, v, options, ring_s[i], span, best.value)
                size = len(bound)
                same = (np.repeat(layout[None], size, 0), np.full(size, c), np.full(size, v))
                found.append(_Leaves(bound, same[0], same[1], same[2], dp))
            if found:
                yield _Leaves(*(np.concatenate(x) for x in zip(*found, strict=True)))

    def _open(self, layout, c: int, v: int, options: _Options, ring_s: float, span, floor: float):
        """Bounds [n] and dp [n, G] of a branch's plans that may beat `floor`."""
        batch, micro_batch = int(self.work.global_batch), self.family.choices[v][0]
        speed = options.speed[layout, c, :, v]  # [G, D]
        # With all others at their fastest, is this dp of this group fast enough?
        total_s = batch / (speed + (speed.max(axis=1).sum() - speed.max(axis=1))[:, None])
        total_s = np.maximum(total_s, options.fill[layout, c, :, v])
        step_s = total_s + max(ring_s + options.slack[layout, c, :, v].min(), 0.0)
        step_s = step_s + options.after[layout, c, :, v]
        hopeful = _value(step_s, options.switch[layout, c, :, 0], span) > floor
        kept = [np.flatnonzero(x) for x in hopeful]
        dp = np.stack(np.meshgrid(*kept, indexing="ij"), axis=-1).reshape(-1, len(layout))
        replicas = self.pipelines.dp[dp]
        largest = replicas.max(axis=1, initial=1)
        block = micro_batch * largest
        splits = (batch % block == 0) & (batch // block >= len(layout))
        dp = dp[splits & np.all(largest[:, None] % replicas == 0, axis=1)]

        def of(x):
            return x[layout[None, :], c, dp, v]

        total_s = np.maximum(batch / of(options.speed).sum(axis=1), of(options.fill).max(axis=1))
        tail_s = (batch - of(options.offset).sum(axis=1)) / of(options.tail).sum(axis=1)
        sync_s = np.maximum(of(options.slack).min(axis=1) + ring_s, 0.0)
        step_s = np.maximum(total_s, tail_s) + sync_s + of(options.after).max(axis=1)
        switch_s = options.switch[layout[None, :], c, dp, 0].max(axis=1)
        bound = _value(step_s, switch_s, span)
        return bound[bound > floor], dp[bound > floor]


class _Best(NamedTuple):
    value: float
    plan: Plan  # as enumerated
    choice: int


class _Leaves(NamedTuple):
    """Plans to score, [n] each, [n, G] for `order` and `dp` (indices into the pipelines)."""

    bound: np.ndarray
    order: np.ndarray
    common: np.ndarray
    choice: np.ndarray
    dp: np.ndarray


def _value(step_s, switch_s, span: float):
    """Upper bound of the training steps per second over `span` [s]; 0 where nothing can run."""
    share = 1.0 if np.isinf(span) else np.maximum(span - switch_s, 0.0) / span
    return (1.0 + ROUNDING) * share / step_s


@dataclasses.dataclass(frozen=True)
class _Alone:
    """Every pipeline of a family alone with one micro-batch, for given free GPUs."""

    shape: tuple[int, int, int, int]  # N, C, D, V
    where: tuple[np.ndarray, ...]  # [P] index into shape of what fits memory
    table: PlanCostTable
    rows: tuple[np.ndarray, ...]  # [R] index into shape's first three of what exists
    plans: Plan  # [R, ...]
    weight: np.ndarray  # [P] [sequences] per beat
    slowest_s: np.ndarray  # [P] of the stages
    last_s: np.ndarray  # [P] the last stage
    slack_s: np.ndarray  # [P]
    after_s: np.ndarray  # [P]

    @staticmethod
    def build(search: ExactSearch, gpus_available: Array) -> _Alone:
        pipes, choices = search.pipelines, search.family.choices
        order, common, dp = np.nonzero(pipes.exists)
        n_domains = search.cluster.mask.shape[0]
        plans = pipes.plans(order[:, None], common, dp[:, None], n_domains)
        size, menu = len(order), np.array(choices, np.int32)
        every = jax.tree.map(lambda x: np.repeat(x, len(menu), axis=0), plans)
        free = {
            name: np.repeat(np.tile(menu[:, i], size)[:, None], n_domains, axis=1)
            for i, name in enumerate(("micro_batch", "recompute", "schedule"))
        }
        share = np.zeros_like(every.batch_share)
        share[:, 0] = 1
        args = (search.work, search.cluster, search.calibration, gpus_available)
        table = build_cost_table(every.replace(**free, batch_share=share), *args)
        table = jax.tree.map(np.asarray, table)
        fits = np.flatnonzero(np.isfinite(table.after_s))
        table = jax.tree.map(lambda x: x[..., fits], table)
        row, choice = np.divmod(fits, len(menu))
        last = (pipes.members[order[row]] >= 0).sum(axis=1) - 1
        return _Alone(
            shape=(*pipes.exists.shape, len(menu)),
            where=(order[row], common[row], dp[row], choice),
            table=jax.tree.map(jnp.asarray, table),
            rows=(order, common, dp),
            plans=jax.tree.map(jnp.asarray, plans),
            weight=(pipes.dp[dp[row]] * menu[choice, 0]).astype(np.float32),
            slowest_s=table.slow_s.max(axis=0),
            last_s=table.slow_s[last, np.arange(len(last))],
            slack_s=table.slack_s,
            after_s=table.after_s,
        )

    def options(self, search: ExactSearch, view: NetworkView, in_force: Plan | None) -> _Options:
        fill_s, link_s = (np.asarray(x) for x in _fill(self.table, view, search.calibration))
        beat_s, tail_s = np.maximum(self.slowest_s, link_s), np.maximum(self.last_s, link_s)

        def dense(values, missing):
            out = np.full(self.shape, missing, np.float32)
            out[self.where] = values
            return out

        switch = np.zeros((*self.shape[:3], 1), np.float32)
        if in_force is not None:
            args = (search.work, search.calibration)
            switch[(*self.rows, 0)] = np.asarray(_switch_s(in_force, self.plans, view, *args))
        w = self.weight
        return _Options(
            weight=w,
            speed=dense(w / beat_s, 0.0),
            tail=dense(w / tail_s, 0.0),
            offset=dense(w * (1.0 - fill_s / tail_s), 0.0),
            fill=dense(fill_s, np.inf),
            slack=dense(self.slack_s, np.inf),
            after=dense(self.after_s, np.inf),
            switch=switch,
        )


_cost = jax.jit(job_step_cost)


@jax.jit
def _fill(table: PlanCostTable, view: NetworkView, calibration: Calibration):
    """[P] [s] each: one micro-batch through a pipeline and back; its time on the busiest link."""
    links = link_times(view.bandwidth_gb_per_s, view.rtt_s, calibration)
    costs = plan_costs(table, links)
    sync_s = costs.sync_s - table.sharded_s
    return costs.step_s - sync_s - table.after_s, costs.wan_busy_s


@jax.jit
def _switch_s(in_force: Plan, plans: Plan, view: NetworkView, work, calibration) -> Array:
    """[R] [s] to bring the state of pipelines where it must be, a restart first."""
    rate = view.bandwidth_gb_per_s * calibration.wan_efficiency

    def one(plan):
        return transition_s(begin_transition(in_force, plan, work, calibration), rate)

    return jax.vmap(one)(plans)


def _scored(
    plan: Plan,
    choice: Array,
    in_force: Plan,
    span: Array,
    view: NetworkView,
    choices: LowerChoices,
    work: Workload,
    cluster: Cluster,
    calibration: Calibration,
) -> tuple[Plan, StepCost, Array, Array]:
    """One plan completed, its cost, its switch [s] and its value, 0 where it is illegal."""
    done, legal = complete(plan, choices, choice, work, cluster, calibration, view)
    cost = job_step_cost(done, work, cluster, calibration, view)
    move = begin_transition(in_force, plan, work, calibration)
    switch_s = transition_s(move, view.bandwidth_gb_per_s * calibration.wan_efficiency)
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
