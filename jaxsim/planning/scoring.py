"""How fast plans train: training steps per second under many networks, lower choices included."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.cluster import Cluster
from jaxsim.plan import Plan, Problem
from jaxsim.planning.balance import complete
from jaxsim.step_time import NetworkView, job_step_cost

VIEWS_AT_ONCE = 16  # under which few plans are scored together


def base_view(cluster: Cluster) -> NetworkView:
    """The cluster as its file states it, all GPUs free."""
    return NetworkView(cluster.bandwidth_gb_per_s, cluster.rtt_s, cluster.gpus)


def one_view(view: NetworkView) -> NetworkView:
    """Give a view the leading axis of views that scoring asks for."""
    return jax.tree.map(lambda x: x[None], view)


def score_plans(
    plans: Plan,
    views: NetworkView,
    problem: Problem,
) -> tuple[Float[Array, "W P"], Int[Array, "W P"]]:
    """Training steps per second of P plans [P, ...] under W views [W, ...], best lower choice.

    Returns rate [W, P] (0 where nothing fits) and the choice [W, P] int32.
    """
    rates = choice_rates(plans, views, problem)
    return rates.max(axis=-1), jnp.argmax(rates, axis=-1).astype(jnp.int32)


# Traced once for all its callers, as `jaxsim.step_time.stages` is.
@functools.partial(jax.jit, inline=True)
def choice_rates(
    plans: Plan,
    views: NetworkView,
    problem: Problem,
    pairs: Int[Array, " N"] | None = None,
) -> Float[Array, "W P V"]:
    """[W, P, V] training steps per second (efficiency included), 0 where the choice is illegal.

    `pairs` [N], row x V + choice: those that are computed, all if None; the others are 0.
    """
    n_plans, n_choices = plans.group.shape[0], problem.choices.size
    row, choice = pairs_of(n_plans, n_choices, pairs)
    each = jax.tree.map(lambda x: x[row], plans)
    by_pair = jax.vmap(_rate_of(problem), in_axes=(None, 0, 0))
    rates = jax.lax.map(lambda view: by_pair(view, each, choice), views)
    return spread(rates, n_plans, n_choices, pairs)


def pairs_of(
    n_plans: int, n_choices: int, pairs: Int[Array, " N"] | None
) -> tuple[Int[Array, " N"], Int[Array, " N"]]:
    """[N] rows and [N] lower choices of `pairs`, of all if None. They stand on one axis, because nested
    ones take 1.7 times as long on CPU."""
    every = jnp.arange(n_plans * n_choices, dtype=jnp.int32)
    return jnp.divmod(every if pairs is None else pairs, n_choices)


def spread(values: Array, n_plans: int, n_choices: int, pairs: Array | None) -> Array:
    """[W, P, V] from values [W, N] of `pairs`, 0 or False elsewhere."""
    if pairs is not None:
        nothing = jnp.zeros((values.shape[0], n_plans * n_choices), values.dtype)
        values = nothing.at[:, pairs].set(values)
    return values.reshape(-1, n_plans, n_choices)


@functools.partial(jax.jit, inline=True)
def row_rates(
    plans: Plan,
    choice: Int[Array, "W P"],
    views: NetworkView,
    problem: Problem,
) -> Float[Array, "W P"]:
    """[W, P] training steps per second of plans [P, ...], each with one lower choice in each of the
    views [W, ...]."""
    by_plan = jax.vmap(_rate_of(problem), in_axes=(None, 0, 0))

    def under(one):
        return by_plan(one[0], plans, one[1])

    return jax.lax.map(under, (views, choice), batch_size=VIEWS_AT_ONCE)


def best_rate(
    plans: Plan,
    choice: Int[Array, " N"],
    views: NetworkView,
    problem: Problem,
) -> Float[Array, " W"]:
    """[W] training steps per second of the best of M plans [M, ...], each with one lower choice [M]."""
    by_plan = jax.vmap(_rate_of(problem), in_axes=(None, 0, 0))
    return jax.lax.map(lambda view: by_plan(view, plans, choice).max(), views)


def _rate_of(problem: Problem):
    """(view, plan, choice) -> [] training steps per second, 0 where the choice is illegal."""

    def rate(view, plan, choice):
        done, legal = complete(plan, choice, problem, view)
        cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
        return jnp.where(legal & cost.runs, cost.efficiency / cost.step_s, 0.0)

    return rate
