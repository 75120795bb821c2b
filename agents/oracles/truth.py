"""What the future holds: the course of a scenario, the optimum over a plan table, and the bound."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from agents.foresight import first_deployment, migration_table, values_of_rows
from agents.protocol import Estimate, Setup, best_choices, score_rows, table_rates
from agents.staying import staying_rates
from jaxsim.env import EnvParams, world_tape
from jaxsim.plan import Plan
from jaxsim.planning import Transfers, best_rate, same_gpus
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView


class Truth(Pytree):
    """A scenario's whole course, [T + 1, ...]; interval 0 is over when decisions begin."""

    views: NetworkView
    table: Estimate  # rate, choice [T + 1, P]
    # [T + 2, P] [training steps] still to be had from interval t on, starting in p
    value: Float[Array, "*batch _ P"]
    best: Int[Array, "*batch T P"]  # [T + 1, P] int32 row to be in or move to, 0 for interval 0
    start: Int[Array, "*batch"]  # row to deploy first
    start_value: Float[Array, "*batch"]  # [] [training steps] from an idle start in interval 1
    rates: Float[Array, "*batch T P V"] | None = None  # [T + 1, P, V] what `table` is the best of


def make_truth(params: EnvParams, setup: Setup, key: Array, horizon: int) -> Truth:
    """Score the table in every interval and solve for the optimal plan sequence."""
    views = world_tape(params, key, horizon + 1)
    return solve_truth(setup, views, table_rates(setup, views))


def solve_truth(
    setup: Setup,
    views: NetworkView,
    rates: Float[Array, "T P V"],
    transfers: Transfers | None = None,
) -> Truth:
    """The optimal plan sequence, given `table_rates` of the views; sooner where the table's
    `distinct_transfers` are known."""
    estimate = best_choices(rates)
    worth, parts = None, None
    if setup.objective is not None:
        parts = score_rows(setup, setup.table.plans, estimate.choice, views)[1]
        worth = jax.tree.map(lambda x: x[None], parts)
    moves = migration_table(setup.table.plans, setup.problem, transfers)
    one_future, links = estimate.rate[None], views.bandwidth_gb_per_s[None]
    staying = staying_rates(setup, setup.table.plans, views, estimate.rate, parts)
    staying = None if staying is None else staying[None]
    args = (one_future, links, moves, setup.table.mask, setup, worth, staying)
    value, best, _ = values_of_rows(*args)
    start, start_value = first_deployment(one_future, value, setup, worth=worth)
    return Truth(views, estimate, value, best, start, start_value, rates)


def family_bound(
    params: EnvParams, plans: Plan, choice: Int[Array, " N"], truth: Truth
) -> Float[Array, ""]:
    """[] training steps over intervals 1.. of the best in each interval, with no switching cost, of the
    table and of a family's plans [M, ...], each with one lower choice [M]: nothing in the family can
    beat it, with batch shares as `complete` sets them (proportional to the groups' speed, in whole
    micro-batches). Other shares are outside it."""
    views = same_gpus(jax.tree.map(lambda x: x[1:], truth.views), unless=params.gpus_vary)
    rate = best_rate(plans, choice, views, params.problem.job(0))
    return jnp.sum(jnp.maximum(rate, truth.table.rate[1:].max(axis=1))) * params.interval_s
