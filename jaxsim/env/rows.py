"""Plans prepared once as rows of a table, for environments that play nothing else.

What a plan needs of neither links nor free GPUs is looked up: times of stages, memory, masks,
features, the layers that a move carries. A row whose replicas do not all find GPUs is computed by
`job_step_cost` like any other plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.custom_batching import custom_vmap
from jaxtyping import Bool, Float, Int

from jaxsim.plan import Plan, Problem
from jaxsim.planning.exact import StepTable, all_replicas_run, row_step_cost
from jaxsim.pytree import Pytree
from jaxsim.step_time import LayerSpan, NetworkView, StepCost, choice_fits, job_step_cost
from jaxsim.trees import take

GENERAL_BLOCK = 32  # environments that compute their plan at a time, where rows lack replicas


class PlanRows(Pytree):
    """P plans of one job; the last is the one in force at reset."""

    plans: Plan  # [P]
    costs: StepTable
    lower: Bool[Array, "*batch P V"]  # lower choices that fit with all replicas
    span: LayerSpan  # [P]
    job_nodes: Float[Array, "*batch P K F"]  # as observed while the job is active
    restart_class: Int[Array, "*batch P"]  # equal where going from one to the other is free
    local_sgd: bool = struct.field(pytree_node=False)  # does any plan sync less than every step?
    # How many environments at a time compute the cost of their plan anew, where local jobs leave too
    # few GPUs for all replicas. 0: none does, and the cost there is NaN.
    block: int = struct.field(pytree_node=False, default=GENERAL_BLOCK)

    @property
    def size(self) -> int:
        return self.costs.size


def row_cost(
    rows: PlanRows, row: Array, problem: Problem, view: NetworkView, schedules: tuple[int, ...]
) -> tuple[StepCost, Array]:
    """Cost of one step of the plan in `row` ([] int32) for the one job of `problem` (no job axis), and
    [V] the lower choices that fit."""

    def known(rows, row, problem, view):
        return all_replicas_run(rows.costs, row, view.gpus_available)

    def looked_up(rows, row, problem, view):
        return row_step_cost(rows.costs, row, view, problem.calibration), rows.lower[row]

    def computed(rows, row, problem, view):
        plan = take(rows.plans, row)
        cost = job_step_cost(plan, problem, view, schedules=schedules)
        return cost, choice_fits(plan, problem, view.gpus_available, schedules)

    args = (rows, row, problem, view)
    if rows.block == 0:  # static
        cost, lower = looked_up(*args)
        return cost.replace(step_s=jnp.where(known(*args), cost.step_s, jnp.nan)), lower
    return where_needed(known, looked_up, computed, rows.block)(*args)


def where_needed(
    known: Callable[..., Array],
    short: Callable[..., Any],
    general: Callable[..., Any],
    at_once: int,
) -> Callable[..., Any]:
    """A function that is `short` where `known` says so and else `general`.

    A conditional under vmap computes both for everybody. Here a batch takes the short way together,
    then those for whom it does not hold take the general way, `at_once` (static) at a time.
    """

    @custom_vmap
    def either(*args):
        return jax.lax.cond(known(*args), short, general, *args)

    @either.def_vmap
    def rule(size, batched, *args):
        axes = jax.tree.map(lambda mapped: 0 if mapped else None, tuple(batched))
        block = min(size, at_once)

        def more(carry):
            return jnp.any(carry[1])

        def next_block(carry):
            out, left = carry
            index = jnp.nonzero(left, size=block, fill_value=size)[0]
            some = jax.tree.map(
                lambda x, mapped: x.at[index].get(mode="clip") if mapped else x,
                args,
                tuple(batched),
            )
            new = jax.vmap(general, axes)(*some)
            out = jax.tree.map(lambda x, y: x.at[index].set(y, mode="drop"), out, new)
            return out, left.at[index].set(False, mode="drop")

        left = ~jax.vmap(known, axes)(*args)
        out = jax.lax.while_loop(more, next_block, (jax.vmap(short, axes)(*args), left))[0]
        return out, jax.tree.map(lambda x: True, out)

    return either
