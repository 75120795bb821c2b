"""What the pipelines of a plan family need alone, and the bounds on whole plans that follow.

Built once per cluster, job and free GPUs. Of a plan of groups g that send w_g = dp x micro-batch
sequences per beat and beat m_g times (all of it holds of the closed form, and of any pipeline):

- m_g beats take at least m_g a_g, a_g the slowest stage or link; and fill_g + (m_g - 1) b_g, b_g the
  slower of the last stage and the slowest link. All groups end by T with sum_g w_g m_g = batch, so
  T >= batch / sum_g (w_g / a_g) and T >= (batch - sum_g w_g (1 - fill_g / b_g)) / sum_g (w_g / b_g).
- A ring sends the whole gradient from each group to the next: no faster than all their links at once.
- Gradient sync inside the domains, less what hides it, and the optimizer: those of the groups alone.
- A switch takes as long as the slowest of its groups': exact.

Plans of one group need no bound: how often they beat is known, and the table gives their time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxsim.cluster import Calibration
from jaxsim.plan import Plan, Problem
from jaxsim.planning import Choice, Pipelines
from jaxsim.planning.exact.cost_table import build_cost_table
from jaxsim.planning.exact.costs import PlanCostTable, link_times, plan_costs
from jaxsim.step_time import (
    NetworkView,
    begin_transition,
    ring_rate_gb_per_s,
    transition_s,
)
from jaxsim.trees import take
from jaxsim.workload import SENT_GRADIENT_BYTES

ROUNDING = 1e-4  # by which float32 may have raised a bound


def average_rate(step_s, switch_s, span_s: float):
    """Upper bound of the training steps per second over `span_s` [s], the switch paid first; 0 where
    nothing can run."""
    share = 1.0 if np.isinf(span_s) else np.maximum(span_s - switch_s, 0.0) / span_s
    return (1.0 + ROUNDING) * share / step_s


@dataclasses.dataclass(frozen=True)
class Options:
    """What pipelines need alone under one network, [N, C, D, V]; where an option does not exist, no
    speed and infinite times."""

    speed: np.ndarray  # [sequences / s] w / a
    tail: np.ndarray  # [sequences / s] w / b
    offset: np.ndarray  # [sequences] w (1 - fill / b)
    fill: np.ndarray  # [s]
    slack: np.ndarray  # [s] gradient sync inside, less what hides it
    hidden: np.ndarray  # [s] of the gradient sync
    after: np.ndarray  # [s] optimizer
    switch: np.ndarray  # [N, C, D, 1] [s]
    whole: np.ndarray  # [s] a step of a plan of this one group


@dataclasses.dataclass(frozen=True)
class _Part:
    """Some options in a table: those that fit memory."""

    where: tuple[np.ndarray, ...]  # [P] index into [N, C, D, V]
    table: PlanCostTable

    @staticmethod
    def build(plans: Plan, index, args) -> _Part:
        """Options `index` of plans [P, ...]."""
        table = jax.tree.map(np.asarray, build_cost_table(plans, *args))
        fits = np.flatnonzero(np.isfinite(table.after_s))
        table = jax.tree.map(lambda x: jnp.asarray(x[..., fits]), table)
        return _Part(tuple(x[fits] for x in index), table)


@dataclasses.dataclass(frozen=True)
class PipelineTable:
    """Every pipeline of a family alone, for given free GPUs: with one micro-batch, and with all."""

    shape: tuple[int, int, int, int]  # N, C, D, V
    rows: tuple[np.ndarray, ...]  # [R] index into N, C, D of what exists
    plans: Plan  # [R, ...]
    single: _Part  # one micro-batch per replica
    whole: _Part  # the whole batch
    weight: np.ndarray  # [P] [sequences] per beat, as the next two of `single`
    slowest_s: np.ndarray  # [P] of the stages
    last_s: np.ndarray  # [P] the last stage

    @staticmethod
    def build(
        pipes: Pipelines,
        choices: tuple[Choice, ...],
        problem: Problem,
        gpus_available: Array | np.ndarray,
        fields: Mapping[str, int] | None = None,
    ) -> PipelineTable:
        """`fields`: of all plans, such as activation_bits. Raises as `build_cost_table` does."""
        rows = np.nonzero(pipes.exists)
        n_domains, menu = problem.cluster.mask.shape[0], np.array(choices, np.int32)
        plans = pipes.plans(rows[0][:, None], rows[1], rows[2][:, None], n_domains)
        said = {name: np.full_like(getattr(plans, name), x) for name, x in (fields or {}).items()}
        plans = plans.replace(**said)
        row, choice = np.divmod(np.arange(len(rows[0]) * len(menu)), len(menu))
        index = (*(x[row] for x in rows), choice)
        names = ("micro_batch", "recompute", "schedule")
        free = {n: np.repeat(menu[choice, i][:, None], n_domains, 1) for i, n in enumerate(names)}
        every = take(plans, row).replace(**free)
        weight = pipes.dp[index[2]] * menu[choice, 0]
        batch, args = int(problem.work.global_batch), (problem, gpus_available)

        def part(beats, chosen):
            share = np.zeros_like(every.batch_share)
            share[:, 0] = beats
            some = take(every.replace(batch_share=share), chosen)
            return _Part.build(some, tuple(x[chosen] for x in index), args)

        single = part(1, np.arange(len(row)))
        slow_s, (order, _, dp, choice) = np.asarray(single.table.slow_s), single.where
        last = (pipes.members[order] >= 0).sum(axis=1) - 1
        return PipelineTable(
            shape=(*pipes.exists.shape, len(menu)),
            rows=rows,
            plans=jax.tree.map(jnp.asarray, plans),
            single=single,
            whole=part(batch // weight, np.flatnonzero(batch % weight == 0)),
            weight=(pipes.dp[dp] * menu[choice, 0]).astype(np.float32),
            slowest_s=slow_s.max(axis=0),
            last_s=slow_s[last, np.arange(len(last))],
        )

    def options(self, view: NetworkView, problem: Problem, in_force: Plan | None) -> Options:
        """Under a network, from the plan in force (None: a switch costs nothing)."""
        fill_s, link_s, whole_s = _times(
            self.single.table, self.whole.table, view, problem.calibration
        )
        fill_s, link_s = np.asarray(fill_s), np.asarray(link_s)
        beat_s, tail_s = np.maximum(self.slowest_s, link_s), np.maximum(self.last_s, link_s)

        def dense(values, missing=np.inf, part=self.single):
            out = np.full(self.shape, missing, np.float32)
            out[part.where] = values
            return out

        switch = np.zeros((*self.shape[:3], 1), np.float32)
        if in_force is not None:
            moved = _switch_s(in_force, self.plans, view, problem)
            switch[(*self.rows, 0)] = np.asarray(moved)
        table, w = self.single.table, self.weight
        return Options(
            speed=dense(w / beat_s, 0.0),
            tail=dense(w / tail_s, 0.0),
            offset=dense(w * (1.0 - fill_s / tail_s), 0.0),
            fill=dense(fill_s),
            slack=dense(np.asarray(table.slack_s)),
            hidden=dense(np.asarray(table.hidden_s), 0.0),
            after=dense(np.asarray(table.after_s)),
            switch=switch,
            whole=dense(np.asarray(whole_s), part=self.whole),
        )


@jax.jit
def _times(single: PlanCostTable, whole: PlanCostTable, view: NetworkView, cal: Calibration):
    """[P] [s] each: one micro-batch through a pipeline and back; its time on the busiest link; a
    step of the whole batch."""
    links = link_times(view.bandwidth_gb_per_s, view.rtt_s, cal)
    costs = plan_costs(single, links)
    fill_s = costs.step_s - (costs.sync_s - single.sharded_s) - single.after_s
    return fill_s, costs.wan_busy_s, plan_costs(whole, links).step_s


@jax.jit
def _switch_s(in_force: Plan, plans: Plan, view: NetworkView, problem: Problem) -> Array:
    """[R] [s] to bring the state of pipelines where it must be, a restart first."""
    rate = view.bandwidth_gb_per_s * problem.calibration.wan_efficiency

    def one(plan):
        return transition_s(begin_transition(in_force, plan, problem), rate)

    return jax.vmap(one)(plans)


def ring_s(
    layouts: np.ndarray, pipes: Pipelines, view: NetworkView, work, calibration
) -> np.ndarray:
    """[n] [s] at least, for the gradient to go round the groups of layouts [n, G], indices."""
    n = layouts.shape[1]
    if n == 1:
        return np.zeros(len(layouts))
    rate = np.asarray(ring_rate_gb_per_s(view.bandwidth_gb_per_s, jnp.int32(1), calibration))
    inside = np.zeros((len(pipes.members), len(rate)), np.float32)
    inside[np.nonzero(pipes.members >= 0)[0], pipes.members[pipes.members >= 0]] = 1.0
    sent_gb = 2.0 * (n - 1) / n * SENT_GRADIENT_BYTES * float(work.gparams)
    pairs = zip(layouts.T, np.roll(layouts, -1, axis=1).T, strict=True)
    together = [np.einsum("ni,ij,nj->n", inside[a], rate, inside[b]) for a, b in pairs]
    return sent_gb / np.min(together, axis=0)
