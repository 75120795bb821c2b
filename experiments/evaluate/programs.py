"""What an evaluation compiles: each program once for all banks of scenarios of one size."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from agents.oracles import Truth, family_bound, solve_truth
from agents.protocol import Scheduler, Setup, make_setup, measured_rates, table_rates
from jaxsim.env import EnvParams, Observation, reset
from jaxsim.learning import TokenEfficiency
from jaxsim.plan import Plan
from jaxsim.planning import PlanTable, choice_rates, in_front, same_gpus
from jaxsim.short_axes import ShortAxes, threadsafe
from jaxsim.step_time import NetworkView


def wide(plans: Plan) -> bool:
    """Are these plans of so many domains that `ShortAxes` is worth its while?"""
    return in_front(plans.group.shape[-1])


@ShortAxes
def truths(table, transfers, params, rates: jax.Array) -> Truth:
    """What the future of each scenario holds, [S, ...]; `rates` [S, T, P, V] are the table's, and
    `transfers` its `distinct_transfers`."""

    def one(params, rates):
        return solve_truth(true_setup(params, table), params.tape, rates, transfers)

    return jax.vmap(one)(params, rates)


@ShortAxes
def truths_for(table, transfers, params, asked: tuple, rates: jax.Array) -> Truth:
    """[S, A, ...] `truths` for A preferences: `asked` are weights [S, A, 4] and objectives [S, A, ...],
    `rates` [S, A, T, P, V]. When moves end depends on none of them, and is looked at once for all."""

    def one(params, asked, rates):
        def told(asked, rates):
            weights, objective = asked
            here = params.replace(weights=weights, objective=objective)
            return solve_truth(true_setup(here, table), params.tape, rates, transfers)

        return jax.vmap(told)(asked, rates)

    return jax.vmap(one)(params, asked, rates)


@functools.partial(ShortAxes, where=lambda table, *_: wide(table.plans))
def rates_under(table, params, worth, views: NetworkView, balanced=None) -> jax.Array:
    """[S, T, P, V] the table's rates under views [S, T, ...] of each scenario, where tokens are worth
    `worth` [S, ...]; `balanced` as in `table_rates`. The one program that scores the table, and with
    `balanced` another: it is long to compile."""

    def one(params, worth, views, balanced):
        setup = make_setup(params, table)
        setup = setup.replace(problem=setup.problem.replace(learning=worth))
        return table_rates(setup, views, balanced)

    return jax.vmap(one)(params, worth, views, balanced)


@threadsafe
def worths(table, params) -> tuple[TokenEfficiency, TokenEfficiency]:
    """[S, ...] what a token is worth, and what those take for it who do not know."""

    def one(params):
        return tuple(s(params, table).problem.learning for s in (true_setup, make_setup))

    return jax.vmap(one)(params)


@threadsafe
def expected_views(table, params) -> NetworkView:
    """[S, 1 + W, ...] the prior of each scenario, then the samples of its outlook: the states before
    them where free GPUs change."""

    def one(params):
        prior = jax.tree.map(lambda x: x[None], make_setup(params, table).prior)
        samples = params.outlook.before if params.gpus_vary else params.outlook.now
        return jax.tree.map(lambda x, y: jnp.concatenate([x, y]), prior, samples)

    return jax.vmap(one)(params)


def true_setup(params: EnvParams, table: PlanTable) -> Setup:
    """The setup of those who know what a token is worth in this scenario."""
    return make_setup(params, table).replace(problem=params.problem.job(0))


@threadsafe
def bound_scheduler(scheduler: Scheduler, setup: Any) -> tuple[Scheduler, Any]:
    """The scheduler with all that it computes once, and its first memory."""
    bound = scheduler.bind(setup)
    return bound, bound.init(jax.random.key(0))


@functools.partial(ShortAxes, where=lambda _, __, seen, ___: in_front(seen.graph_mask.shape[-1]))
def decide(scheduler: Scheduler, truth: tuple, observation: Observation, memory: Any):
    return scheduler.decide(jax.random.key(1), observation, memory, *truth)


first_timestep = threadsafe(inspect.unwrap(reset))  # as `playing` traces it
rates_now = ShortAxes(measured_rates, where=lambda setup, _: wide(setup.table.plans))
bound_of_family = ShortAxes(family_bound, where=lambda _, plans, *__: wide(plans))


@functools.partial(ShortAxes, where=lambda _, plans, __: wide(plans))
def plan_rates(params: EnvParams, plans: Plan, views: NetworkView):
    """[W, P, V] training steps per second."""
    views = same_gpus(views, unless=params.gpus_vary)
    return choice_rates(plans, views, params.problem.job(0))


def decision_times_ms(
    scheduler: Scheduler,
    setup: Any,
    truth: Any,
    params: EnvParams,
    key: jax.Array,
    calls: int,
    score: Callable[[Observation], jax.Array] | None = None,
) -> np.ndarray:
    """[calls] time of one decision on what is observed at reset [ms]: from an observation on the host
    to a plan on the host. `setup` and `truth` are those of one job or of many. `score` gives the
    table's rates [P, V] to a decision that does not score it itself."""
    observation = jax.tree.map(np.asarray, first_timestep(key, params)[1].observation)
    bound, memory = bound_scheduler(scheduler, setup)
    extra = (truth,) if bound.oracle else ()
    taken = []
    for call in range(calls + 3):
        start = time.perf_counter()
        seen = observation if score is None else observation.replace(rates=score(observation))
        plan, memory = decide(bound, extra, seen, memory)
        jax.tree.map(np.asarray, plan)
        if call >= 3:  # the first calls compile
            taken.append(1e3 * (time.perf_counter() - start))
    return np.array(taken)
