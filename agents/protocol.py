"""The one protocol of all schedulers.

    scheduler = make(setup, settings)
    memory = scheduler.init(key)
    plan, memory = scheduler.decide(key, observation, memory)          # everybody
    plan, memory = scheduler.decide(key, observation, memory, truth)   # the two oracles

Both functions are pure and jit-able; `make` may run inside jit on traced params. What a scheduler
knows of the world it is told in `Setup`; what it knows of the present is the observation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxsim.env import EnvParams, Observation
from jaxsim.plan import Plan, Problem, needs_reconfiguration
from jaxsim.planning import PlanTable, choice_rates, complete
from jaxsim.scenario import mean_view
from jaxsim.step_time import NetworkView, begin_transition, transition_s


@struct.dataclass
class Setup:
    """What every scheduler is given once: the cluster file, the job, the table, the menu."""

    problem: Problem  # one job, no job axis
    table: PlanTable
    usual: NetworkView  # base bandwidth and the configured mean load
    interval_s: Array  # [] [s]


def make_setup(params: EnvParams, table: PlanTable, job: int = 0) -> Setup:
    """Collect a scenario's public facts; nothing of its future is in them.

    A load trace is future: of local jobs only the configured share is known ahead.
    """
    no_trace = params.load.replace(trace=jnp.zeros_like(params.load.trace))
    return Setup(
        problem=params.problem.job(job),
        table=table,
        usual=mean_view(params.replace(load=no_trace)),
        interval_s=params.interval_s,
    )


@struct.dataclass
class Estimate:
    """A table scored under one view of the network."""

    rate: Array  # [P] [training steps / s], 0 where the plan cannot run or the row is padding
    choice: Array  # [P] int32, the lower choice that gives this rate


@struct.dataclass
class Situation:
    """What a table-based scheduler decides on."""

    row: Array  # [] int32 of the plan in force, or of the target while moving
    idle: Array  # [] bool, nothing was deployed yet: `row` means nothing
    may_switch: Array  # [] bool
    now: Estimate  # under the measured view
    switch_s: Array  # [P] [s] to reach each row at the measured rates, 0 for the row in force
    view: NetworkView
    t: Array  # [] int32


class Scheduler(NamedTuple):
    """Pure functions; `oracle` schedulers take the truth as a fourth argument."""

    init: Callable[[Array], Any]
    decide: Callable[..., tuple[Plan, Any]]
    oracle: bool = False


def table_rates(setup: Setup, views: NetworkView) -> Array:
    """[T, P, V] training steps per second of every row and lower choice under views [T, ...], 0 where
    illegal."""
    rates = choice_rates(setup.table.plans, views, setup.problem)
    return jnp.where(setup.table.mask[None, :, None], rates, 0.0)


def measured_rates(setup: Setup, observation: Observation) -> Array:
    """[P, V] `table_rates` under the measured view."""
    if observation.rates is not None:
        return jnp.where(setup.table.mask[:, None], observation.rates, 0.0)
    return table_rates(setup, jax.tree.map(lambda x: x[None], observation.view))[0]


def best_choices(rates: Array, admitted: Array | None = None) -> Estimate:
    """Every row with the lower choice that suits it best, given rates [..., P, V]; of `admitted`
    [P, V] bool, all if None."""
    rates = rates if admitted is None else jnp.where(admitted, rates, 0.0)
    return Estimate(rates.max(axis=-1), jnp.argmax(rates, axis=-1).astype(jnp.int32))


def score_table(setup: Setup, view: NetworkView, admitted: Array | None = None) -> Estimate:
    """Score every row under a view, each with the best of its `admitted` lower choices."""
    rates = table_rates(setup, jax.tree.map(lambda x: x[None], view))[0]
    return best_choices(rates, admitted)


def admitted_plans(setup: Setup, name: str) -> Array:
    """[P, V] bool: what the rules of scheduler `name` admit. ValueError where it was not asked."""
    if name not in setup.table.admitted:
        raise ValueError(f"{name}: its plans were not nominated when the table was made")
    return setup.table.admitted[name]


def find_row(table: PlanTable, plan: Plan) -> tuple[Array, Array]:
    """[] int32 row that equals the plan but for free fields, and [] bool whether there is one."""
    same = ~jax.vmap(needs_reconfiguration, in_axes=(0, None))(table.plans, plan) & table.mask
    return jnp.argmax(same).astype(jnp.int32), jnp.any(same)


def pick_row(table: PlanTable, row: Array) -> Plan:
    """The plan of a row."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, row, keepdims=False), table.plans)


def switch_times(setup: Setup, plan: Plan, view: NetworkView) -> Array:
    """[P] [s] a reconfiguration from `plan` to each row takes at the view's rates."""
    rate = view.bandwidth_gb_per_s * setup.problem.calibration.wan_efficiency

    def one(target):
        needed = needs_reconfiguration(plan, target)
        duration = transition_s(begin_transition(plan, target, setup.problem), rate)
        return jnp.where(needed, duration, 0.0)

    return jax.vmap(one)(setup.table.plans)


def situation(
    setup: Setup, observation: Observation, job: int = 0, admitted: Array | None = None
) -> Situation:
    """Digest an observation for a table-based scheduler."""
    plan, target = (
        jax.tree.map(lambda x: x[job], p) for p in (observation.plan, observation.target)
    )
    row, found = find_row(setup.table, target)
    return Situation(
        row=row,
        idle=~found,
        may_switch=observation.mask.retarget[job] & ~observation.moving[job],
        now=best_choices(measured_rates(setup, observation), admitted),
        switch_s=switch_times(setup, plan, observation.view),
        view=observation.view,
        t=observation.t,
    )


def carry_out(setup: Setup, row: Array, choice: Array, view: NetworkView) -> Plan:
    """The row's plan with the lower choice and balanced shares, with a job axis of one."""
    plan, _ = complete(pick_row(setup.table, row), choice, setup.problem, view)
    return jax.tree.map(lambda x: x[None], plan)


def table_scheduler(
    setup: Setup,
    init: Callable[[Array], Any],
    choose: Callable[[Array, Situation, Any], tuple[Array, Any]],
    admitted: Array | None = None,
) -> Scheduler:
    """Build a scheduler from a rule that picks a row: `choose(key, situation, memory)`.

    The lower level is the same for all of them: the choice that is best under the measurement, of
    those `admitted` [P, V] bool (None: all).
    """

    def decide(key, observation, memory):
        seen = situation(setup, observation, admitted=admitted)
        wanted, memory = choose(key, seen, memory)
        row = jnp.where(seen.may_switch, wanted, seen.row)
        choice = seen.now.choice[row]
        return carry_out(setup, row, choice, observation.view), memory

    return Scheduler(init, decide)


def amortised_gain(situation: Situation, rate: Array, interval_s: Array, horizon: Array) -> Array:
    """[P] training steps over `horizon` intervals if each row were switched to now and kept.

    `rate` [P] is what the scheduler believes of the future; time spent moving is lost.
    """
    span = horizon * interval_s
    return rate * jnp.maximum(span - situation.switch_s, 0.0)
