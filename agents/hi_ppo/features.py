"""What Hi-PPO remembers and sees: statistics of every row's rate, proposals, their features."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from agents.hi_ppo.networks import GraphInputs, LowerInputs, UpperInputs
from agents.protocol import Setup
from jaxsim.env import JOB_NODE_FEATURES, NODE_FEATURES, Observation
from jaxsim.plan import Recompute, Schedule
from jaxsim.pytree import Pytree

PROPOSAL_HORIZONS = (2.0, 4.0, 6.0, 8.0, 10.0, 14.0, 20.0, 40.0)  # intervals, on measured rates
AVERAGE_HORIZONS = (6.0, 12.0, 24.0)  # intervals, on averaged rates
GAIN_HORIZONS = (4.0, 8.0, 16.0, 32.0)
PRIOR_HORIZON = 10.0  # intervals, of the hysteresis that the scorer starts from
PRIOR_SHARPNESS = 20.0  # logits per unit of relative gain over that horizon
CHOICE_SHARPNESS = 300.0  # logits per unit of relative rate
# Sizes of what the networks see: of a proposal, of a lower choice, of a domain.
CANDIDATE_FEATURES = 18 + len(GAIN_HORIZONS)
CHOICE_FEATURES = 5
GRAPH_NODE_FEATURES = NODE_FEATURES + JOB_NODE_FEATURES
FAST, SLOW = 0.7, 0.95  # decays per interval of the running averages


class Statistics(Pytree):
    """Running statistics of measured rates, [P] each; part of the scheduler's memory."""

    last: Float[Array, "*batch P"]  # [training steps / s]
    fast: Float[Array, "*batch P"]  # average over about 3 intervals
    slow: Float[Array, "*batch P"]  # average over about 20 intervals
    square: Float[Array, "*batch P"]  # average squared deviation from `slow`
    product: Float[Array, "*batch P"]  # average product of successive deviations
    count: Float[Array, "*batch"]  # intervals seen
    row: Int[Array, "*batch"]  # row in force or being moved to
    previous: Int[Array, "*batch"]  # row before that
    since_switch: Float[Array, "*batch"]  # intervals


class Measurement(Pytree):
    """One interval's measurement of the table, live or from a tape."""

    rates: Float[Array, "*batch P V"]  # [training steps / s] under the measured view
    switch_s: Float[Array, "*batch P"]  # [s] to reach each row at the measured rates
    row: Int[Array, "*batch"]  # row in force, or the target while moving


class Reference(Pytree):
    """What stays the same in a scenario, [P]."""

    base_rate: Float[Array, "*batch P"]  # under the prior view
    scale: Float[Array, "*batch"]  # the best of them: the unit of all rates
    static_row: Int[Array, "*batch"]  # where it is


def make_reference(base_rate: Float[Array, " P"]) -> Reference:
    """From the table's rates under the prior view."""
    return Reference(
        base_rate, jnp.maximum(base_rate.max(), 1e-12), jnp.argmax(base_rate).astype(jnp.int32)
    )


def init_statistics(reference: Reference) -> Statistics:
    """Before anything was measured, the base is the best guess; the row is not known yet."""
    row = jnp.int32(0)
    base = reference.base_rate
    zeros = jnp.zeros_like(base)
    return Statistics(
        last=base,
        fast=base,
        slow=base,
        square=zeros,
        product=zeros,
        count=jnp.float32(0.0),
        row=row,
        previous=row,
        since_switch=jnp.float32(100.0),
    )


def update_statistics(stats: Statistics, measured: Measurement) -> Statistics:
    """Take in one interval's measured rates."""
    rate = measured.rates.max(axis=-1)
    # Both averages start as plain means; their decays hold once enough was measured.
    fast = jnp.minimum(stats.count / (stats.count + 1.0), FAST)
    slow = jnp.minimum((stats.count + 1.0) / (stats.count + 2.0), SLOW)
    mean = slow * stats.slow + (1.0 - slow) * rate
    deviation, before = rate - mean, stats.last - mean
    moved = (measured.row != stats.row) & (stats.count > 0)
    return Statistics(
        last=rate,
        fast=fast * stats.fast + (1.0 - fast) * rate,
        slow=mean,
        square=slow * stats.square + (1.0 - slow) * deviation**2,
        product=slow * stats.product + (1.0 - slow) * deviation * before,
        count=stats.count + 1.0,
        row=measured.row,
        previous=jnp.where(
            stats.count > 0, jnp.where(moved, stats.row, stats.previous), measured.row
        ),
        since_switch=jnp.where(moved, 0.0, stats.since_switch + 1.0),
    )


def gains(rate: Array, switch_s: Array, row: Array, horizon: Array, interval_s: Array) -> Array:
    """[P] work gained over `horizon` intervals by moving to each row, per interval and in units of
    `rate`; 0 for staying."""
    span = horizon * interval_s
    work = rate * jnp.maximum(span - switch_s, 0.0) - rate[row] * span
    return work / span


def propose(
    setup: Setup, stats: Statistics, reference: Reference, measured: Measurement
) -> tuple[Array, Array]:
    """Rows on the table [C] int32 and a mask [C] that is False for repetitions; row 0 = stay."""
    rate = measured.rates.max(axis=-1)

    def best(rates, horizon):
        work = gains(rates, measured.switch_s, measured.row, horizon, setup.interval_s)
        return jnp.argmax(jnp.where(setup.table.mask, work, -jnp.inf)).astype(jnp.int32)

    by_now = jax.vmap(best, (None, 0))(rate, jnp.asarray(PROPOSAL_HORIZONS))
    by_mean = jax.vmap(best, (None, 0))(stats.slow, jnp.asarray(AVERAGE_HORIZONS))
    by_fast = best(stats.fast, jnp.float32(PRIOR_HORIZON))
    special = jnp.stack([measured.row, stats.previous, reference.static_row])
    rows = jnp.concatenate([special, by_now, by_mean, by_fast[None], jnp.argmax(rate)[None]])
    rows = rows.astype(jnp.int32)
    earlier = jnp.tril(jnp.ones((rows.size, rows.size), bool), -1)
    repeats = jnp.any((rows[:, None] == rows[None, :]) & earlier, axis=1)
    return rows, ~repeats


def graph_inputs(observation: Observation, job: int = 0) -> GraphInputs:
    """The WAN with the job's plan written on its nodes."""
    nodes = jnp.concatenate([observation.graph.nodes, observation.job_nodes[job]], axis=-1)
    return GraphInputs(observation.graph._replace(nodes=nodes), observation.graph_mask)


def upper_inputs(
    setup: Setup,
    observation: Observation,
    stats: Statistics,
    reference: Reference,
    measured: Measurement,
    job: int = 0,
) -> tuple[UpperInputs, Array]:
    """Inputs of the upper policy and the proposed rows [C]."""
    rows, mask = propose(setup, stats, reference, measured)
    may_switch = observation.mask.retarget[job] & ~observation.moving[job]
    stay_only = jnp.arange(rows.size) == 0
    rate = measured.rates.max(axis=-1)
    args = (measured.switch_s, measured.row)
    prior = gains(rate, *args, jnp.float32(PRIOR_HORIZON), setup.interval_s) / reference.scale
    plans = setup.table.plans
    share = jnp.where(plans.group >= 0, plans.layers, 0).astype(jnp.float32)
    share = share / jnp.maximum(share.sum(axis=1, keepdims=True), 1.0)
    inputs = UpperInputs(
        wan=graph_inputs(observation, job),
        candidates=_candidate_features(setup, stats, reference, measured, rows),
        domains=share[rows],
        mask=mask & (may_switch | stay_only),
        prior=PRIOR_SHARPNESS * prior[rows],
    )
    return inputs, rows


def lower_inputs(
    setup: Setup, observation: Observation, rates: Array, row: Array, job: int = 0
) -> LowerInputs:
    """Inputs of the lower policy; rates [P, V] under the measured view, `row` to be set up."""
    mine = rates[row]
    relative = mine / jnp.maximum(mine.max(), 1e-12)
    return LowerInputs(
        wan=graph_inputs(observation, job),
        in_force=setup.table.plans.group[row] >= 0,
        choices=_choice_features(setup, relative),
        mask=mine > 0,
        prior=CHOICE_SHARPNESS * (relative - 1.0),
    )


def _candidate_features(
    setup: Setup, stats: Statistics, reference: Reference, measured: Measurement, rows: Array
) -> Array:
    """[C, F] float32: rates in units of the best static one, times in intervals."""
    rate = measured.rates.max(axis=-1)
    spread = jnp.sqrt(stats.square)
    levels = jnp.stack([rate, stats.fast, stats.slow, reference.base_rate]) / reference.scale
    args = (measured.switch_s, measured.row)
    by_horizon = jax.vmap(lambda h: gains(rate, *args, h, setup.interval_s) / reference.scale)(
        jnp.asarray(GAIN_HORIZONS)
    )
    average = gains(stats.slow, *args, jnp.float32(16.0), setup.interval_s) / reference.scale
    correlation = stats.product / (stats.square + (1e-3 * reference.scale) ** 2)
    columns = [
        *levels,
        *(levels - levels[:, measured.row][:, None]),
        (rate - stats.last) / reference.scale,
        spread / reference.scale * 4.0,
        jnp.clip(correlation, -1.0, 1.0),
        jnp.log1p(measured.switch_s / setup.interval_s),
        *(2.0 * by_horizon),
        2.0 * average,
    ]
    table = jnp.stack(columns, axis=-1)[rows]  # [C, F0]
    same = [rows == r for r in (measured.row, stats.previous, reference.static_row)]
    flags = jnp.stack(same, axis=-1).astype(jnp.float32)
    age = jnp.stack([jnp.log1p(stats.since_switch), jnp.log1p(stats.count)]) * 0.2
    ages = jnp.broadcast_to(age[None, :], (rows.size, 2))
    return jnp.concatenate([jnp.clip(table, -5.0, 5.0), flags, ages], axis=-1)


def _choice_features(setup: Setup, relative: Array) -> Array:
    """[V, F'] of the lower choices; `relative` [V] rates in units of the best."""
    menu = setup.problem.choices
    return jnp.stack(
        [
            relative,
            jnp.log2(menu.micro_batch.astype(jnp.float32)) / 3.0,
            (menu.recompute == Recompute.FULL).astype(jnp.float32),
            (menu.schedule == Schedule.EAGER_1F1B).astype(jnp.float32),
            (menu.schedule == Schedule.GPIPE).astype(jnp.float32),
        ],
        axis=-1,
    )
