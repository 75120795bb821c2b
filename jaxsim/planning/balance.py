"""Completing a plan: micro-batches shared among groups in proportion to their speed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.plan import Plan, Problem, n_groups
from jaxsim.step_time import NetworkView, group_periods


def balanced_blocks(
    total: Int[Array, ""], block_s: Float[Array, " G"], active: Bool[Array, " G"]
) -> Int[Array, " G"]:
    """Share `total` equal blocks so that the slowest group ends early; [G] int32.

    block_s [G] [s] is each group's time per block. Every active group gets at least one block where
    there are enough: groups too slow for one get one, the others floors of their proportional
    shares of the rest, then what remains (fewer blocks than groups) goes one each to the groups
    that would end first with one more.
    """
    blocks_total = total.astype(jnp.float32)
    time_s = jnp.maximum(block_s, 1e-9)
    speed = jnp.where(active, 1.0 / time_s, 0.0)
    # Row i: what all groups take in the time in which group i does one block, one each at least.
    taken = jnp.where(active[None, :], jnp.maximum(time_s[:, None] * speed[None, :], 1.0), 0.0)
    starved = active & (taken.sum(axis=1) > blocks_total)
    speed = jnp.where(starved, 0.0, speed)
    rest = blocks_total - starved.astype(jnp.float32).sum()
    share = rest * speed / jnp.maximum(speed.sum(), 1e-9)
    floor = jnp.where(active, jnp.maximum(jnp.floor(share), 1.0), 0.0)
    give = jnp.where(active, (floor + 1.0) * block_s, jnp.inf)
    blocks = floor + jnp.where(_rank(give) < blocks_total - floor.sum(), 1.0, 0.0)
    return jnp.where(active, blocks, 0.0).astype(jnp.int32)


def _rank(values: Array) -> Array:
    """[G] float32: how many entries come before each in ascending order (ties by index)."""
    index = jnp.arange(values.shape[0])
    before = (values[None, :] < values[:, None]) | (
        (values[None, :] == values[:, None]) & (index[None, :] < index[:, None])
    )
    return before.sum(axis=1).astype(jnp.float32)


def complete(
    plan: Plan,
    choice: Int[Array, ""],
    problem: Problem,
    view: NetworkView,
) -> tuple[Plan, Bool[Array, ""]]:
    """Fill a plan's free fields (one job): the choice in all groups, shares balanced under `view`.

    Returns the plan and [] bool whether the global batch splits exactly, see `share_batch`.
    """
    choices = problem.choices
    n_domains = plan.group.shape[0]
    one_hot = jnp.arange(choices.size) == choice

    def pick(menu):
        value = jnp.sum(jnp.where(one_hot, menu, 0))
        return jnp.full((n_domains,), value, jnp.int32)

    chosen = plan.replace(
        micro_batch=pick(choices.micro_batch),
        recompute=pick(choices.recompute),
        schedule=pick(choices.schedule),
    )
    return share_batch(chosen, problem, view)


# Traced once for all its callers, as `jaxsim.step_time.stages` is.
@functools.partial(jax.jit, inline=True)
def share_batch(plan: Plan, problem: Problem, view: NetworkView) -> tuple[Plan, Bool[Array, ""]]:
    """Share the global batch among the groups of a plan whose other fields are set (one job).

    Returns the plan and [] bool whether the batch splits exactly: it must be a multiple of the block,
    the largest micro_batch x dp, with at least one block per group, and every group's must divide it.

    Shares go by the time between micro-batches, not by what fills a pipeline or gathers weights of
    ZeRO 3. They are therefore near the best ones and not the best: the step is longer by at most twice
    the first block's time (ZeRO 3 apart), and faster links, which never slow a plan whose shares stay,
    may slow one whose shares are dealt anew by as much.
    """
    work = problem.work
    active = jnp.arange(plan.group.shape[0]) < n_groups(plan)
    unit = jnp.where(active, plan.micro_batch * jnp.maximum(plan.dp, 1), 1)  # [sequences]
    block = unit.max()
    per_block = jnp.where(active, block // unit, 1)  # [G] micro-batches per replica in one block
    total = work.global_batch // block
    period = group_periods(plan, problem, view, problem.choices.schedules)
    blocks = balanced_blocks(total, period * per_block.astype(jnp.float32), active)
    legal = (total * block == work.global_batch) & (total >= n_groups(plan))
    legal = legal & jnp.all(block % unit == 0)
    return plan.replace(batch_share=blocks * per_block), legal
