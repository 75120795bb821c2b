"""What Hi-PPO remembers and sees: statistics of every row's rate, features of rows and of moves."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from agents.hi_ppo.networks import GraphInputs, LowerInputs, UpperInputs
from agents.hi_ppo.settings import Networks
from agents.paying import amortised_span
from agents.protocol import Setup
from agents.shrinkage import (
    HORIZONS,
    Shrinkage,
    init_shrinkage,
    shrunk,
    update_shrinkage,
    weights,
)
from agents.staying import expected_losses, expected_rates, reference_rates
from jaxsim.env import JOB_NODE_FEATURES, NODE_FEATURES, Observation
from jaxsim.plan import Recompute, Schedule
from jaxsim.pytree import Pytree

PRIOR_HORIZON = HORIZONS[2]  # intervals, of the rule that the scorer starts from
PRIOR_SHARPNESS = 300.0  # logits per unit of relative gain over that horizon
CHOICE_SHARPNESS = 300.0  # logits per unit of relative rate
# What is asked for: the four weights as shares of their sum, and whether there is a limit.
PREFERENCE_FEATURES = 5
# Intervals after which rates are forecast, where the networks see forecasts: amid each horizon.
AHEAD = tuple(horizon / 2 for horizon in HORIZONS)
# Sizes of what the networks see: of a row, of a move to it, of a lower choice, of a domain; a forecast
# is one more of a row and of a move.
ROW_FEATURES = 12 + len(HORIZONS) + PREFERENCE_FEATURES
MOVE_FEATURES = 2 + 4 * len(HORIZONS)
CHOICE_FEATURES = 5
GRAPH_NODE_FEATURES = NODE_FEATURES + JOB_NODE_FEATURES
# Decays per interval of the running averages. The fast one is that of `smoothed_hysteresis`.
FAST, SLOW = 0.8, 0.95


class Statistics(Pytree):
    """Running statistics of measured rates, [P] each; part of the scheduler's memory. They are the same
    whatever row is in force. Under an objective rates are [reward / s], here and below."""

    last: Float[Array, "*batch P"]  # [training steps / s]
    fast: Float[Array, "*batch P"]  # average over about 5 intervals, from the base on
    slow: Float[Array, "*batch P"]  # average over about 20 intervals
    square: Float[Array, "*batch P"]  # average squared deviation from `slow`
    product: Float[Array, "*batch P"]  # average product of successive deviations
    lost: Float[Array, "*batch P"]  # average of `Measurement.lost`, from what is to be expected on
    count: Float[Array, "*batch"]  # intervals seen
    shrinkage: Shrinkage  # how far `fast` says what comes
    # [A, P] as they are expected to be AHEAD, of the lower choices that suit now; A = 0: no forecasts
    ahead: Float[Array, "*batch A P"]


class Measurement(Pytree):
    """One interval's measurement of the table, live or from a tape."""

    rates: Float[Array, "*batch P V"]  # [training steps / s] under the measured view
    # [training steps / s] of these that a row loses that stays in force, because its domains are laid
    # out anew when local jobs take or return GPUs
    lost: Float[Array, "*batch P"]
    switch_s: Float[Array, "*batch P"]  # [s] to reach each row at the measured rates
    price: Float[
        Array, "*batch P"
    ]  # [reward] of a move's traffic to each row, 0 without an objective
    row: Int[Array, "*batch"]  # row in force, or the target while moving


class Reference(Pytree):
    """What stays the same in a scenario, [P]."""

    base_rate: Float[Array, "*batch P"]  # see `reference_of`
    lost: Float[Array, "*batch P"]  # and what of it is lost, `agents.staying.expected_losses`
    scale: Float[Array, "*batch"]  # the size of the best of them: the unit of all rates
    static_row: Int[Array, "*batch"]  # where it is


def reference_of(
    setup: Setup, networks: Networks, allowed: Bool[Array, "P V"] | None = None
) -> Reference:
    """What is known of the table's rows before anything is measured, of the `allowed` lower choices
    (None = all): in the mean over the setup's outlook, or at base. A plan whose stages wait for one
    another is slower over links that move than over their mean."""
    rates = reference_rates if networks.reference == "base" else expected_rates
    return make_reference(rates(setup, allowed), expected_losses(setup, allowed))


def make_reference(base_rate: Float[Array, " P"], lost: Float[Array, " P"]) -> Reference:
    """From what the table's rows bring and lose at base."""
    scale = jnp.maximum(jnp.abs(base_rate.max()), 1e-12)
    return Reference(base_rate, lost, scale, jnp.argmax(base_rate).astype(jnp.int32))


def init_statistics(reference: Reference, ahead: int = 0) -> Statistics:
    """Before anything was measured, the base is the best guess, of `ahead` forecasts too."""
    base = reference.base_rate + reference.lost
    zeros = jnp.zeros_like(base)
    forecast = jnp.broadcast_to(base, (ahead, *base.shape))
    shrinkage = init_shrinkage(base, reference.scale)
    averages = base, base, base, zeros, zeros, reference.lost
    return Statistics(*averages, jnp.float32(0.0), shrinkage, forecast)


def update_statistics(
    stats: Statistics,
    rate: Float[Array, " P"],
    lost: Float[Array, " P"],
    ahead: Float[Array, "A P"] | None = None,
) -> Statistics:
    """Take in one interval's measured rates, each of the row's best lower choice, what of them is
    lost by rows that stay in force, and what they are expected to be (None: there are no forecasts)."""
    # The slow average starts as a plain mean; its decay holds once enough was measured.
    slow = jnp.minimum((stats.count + 1.0) / (stats.count + 2.0), SLOW)
    mean = slow * stats.slow + (1.0 - slow) * rate
    deviation, before = rate - mean, stats.last - mean
    return Statistics(
        last=rate,
        fast=FAST * stats.fast + (1.0 - FAST) * rate,
        slow=mean,
        square=slow * stats.square + (1.0 - slow) * deviation**2,
        product=slow * stats.product + (1.0 - slow) * deviation * before,
        lost=SLOW * stats.lost + (1.0 - SLOW) * lost,
        count=stats.count + 1.0,
        shrinkage=update_shrinkage(stats.shrinkage, stats.fast, stats.last != 0, rate),
        ahead=stats.ahead if ahead is None else ahead,
    )


def row_features(
    setup: Setup, stats: Statistics, before: Float[Array, " P"], reference: Reference
) -> Float[Array, "P F"]:
    """What is known of each row, whatever is in force: rates in units of the best static one.

    `before` [P] are the rates of the measurement before the last.
    """
    levels = stats.last, stats.fast, stats.slow, reference.base_rate, stats.lost
    levels = jnp.stack(levels) / reference.scale
    correlation = stats.product / (stats.square + (1e-3 * reference.scale) ** 2)
    plans = setup.table.plans
    used = plans.group >= 0
    n_rows = stats.last.size
    columns = [
        *levels,
        (stats.last - before) / reference.scale,
        jnp.sqrt(stats.square) / reference.scale * 4.0,
        jnp.clip(correlation, -1.0, 1.0),
        (jnp.arange(n_rows) == reference.static_row).astype(jnp.float32),
        jnp.sum(used, axis=1).astype(jnp.float32) * 0.2,
        jnp.log2(plans.sync_period.astype(jnp.float32)) * 0.1,
        jnp.broadcast_to(jnp.log1p(stats.count) * 0.2, (n_rows,)),
        *jnp.broadcast_to(weights(stats.shrinkage)[:, None], (len(HORIZONS), n_rows)),
        *stats.ahead / reference.scale,
        *jnp.broadcast_to(_preference(setup)[:, None], (PREFERENCE_FEATURES, n_rows)),
    ]
    return jnp.clip(jnp.stack(columns, axis=-1), -5.0, 5.0)


def _preference(setup: Setup) -> Float[Array, " F"]:
    """[F] what is asked for."""
    objective = setup.objective
    if objective is None:
        return jnp.zeros((PREFERENCE_FEATURES,), jnp.float32).at[0].set(1.0)
    shares = objective.weights / jnp.sum(objective.weights)
    limits = jnp.stack([objective.budget_usd_per_hour, objective.deadline_s])
    return jnp.append(shares, jnp.any(jnp.isfinite(limits)).astype(jnp.float32))


def move_features(
    stats: Statistics,
    reference: Reference,
    switch_s: Float[Array, " P"],
    price: Float[Array, " P"],
    row: Int[Array, ""],
    interval_s: Float[Array, ""],
) -> tuple[Float[Array, "P M"], Float[Array, " P"]]:
    """What a move from `row` to each row takes and promises, and the logits [P] of the rule that the
    scorer starts from; `switch_s` and `price` are those of `Measurement`."""
    args = (switch_s, price, row)

    def gained(rate, horizon):
        # A row that cannot run as measured counts as standing still, whatever its average. What it
        # will lose while it stays in force is not in what is measured.
        rate = jnp.where(stats.last != 0, rate - stats.lost, 0.0)
        return gains(rate, *args, jnp.float32(horizon), interval_s) / reference.scale

    averages = stats.last, stats.fast, stats.slow
    promised = [5.0 * gained(rate, h) for rate in averages for h in HORIZONS]
    believed = dict(zip(HORIZONS, shrunk(stats.shrinkage, stats.fast), strict=True))
    promised += [5.0 * gained(rate, horizon) for horizon, rate in believed.items()]
    # What is expected amid a horizon stands for all of it. Without forecasts there is nothing to pair.
    for rate, horizon in zip(stats.ahead, HORIZONS, strict=False):
        promised.append(5.0 * gained(rate, horizon))
    here = (jnp.arange(switch_s.size) == row).astype(jnp.float32)
    columns = [here, jnp.log1p(switch_s / interval_s), *promised]
    prior = PRIOR_SHARPNESS * gained(believed[PRIOR_HORIZON], PRIOR_HORIZON)
    return jnp.clip(jnp.stack(columns, axis=-1), -5.0, 5.0), prior


def gains(
    rate: Float[Array, " P"],
    switch_s: Float[Array, " P"],
    price: Float[Array, " P"],
    row: Int[Array, ""],
    horizon: Float[Array, ""],
    interval_s: Float[Array, ""],
) -> Float[Array, " P"]:
    """[P] work gained by moving to each row, its price paid, per interval of the horizon and in units
    of `rate`; 0 for staying. The horizon is `amortised_span`'s."""
    span = amortised_span(rate, switch_s, horizon * interval_s, interval_s)
    work = rate * jnp.maximum(span - switch_s, 0.0) - price
    return (work - work[row]) / (horizon * interval_s)


def graph_inputs(observation: Observation, job: int = 0) -> GraphInputs:
    """The WAN with the job's plan written on its nodes."""
    nodes = jnp.concatenate([observation.graph.nodes, observation.job_nodes[job]], axis=-1)
    return GraphInputs(observation.graph._replace(nodes=nodes), observation.graph_mask)


def layer_shares(setup: Setup) -> Float[Array, "P K"]:
    """[P, K] share of each plan's layers in each domain."""
    plans = setup.table.plans
    share = jnp.where(plans.group >= 0, plans.layers, 0).astype(jnp.float32)
    return share / jnp.maximum(share.sum(axis=1, keepdims=True), 1.0)


def upper_inputs(
    setup: Setup,
    observation: Observation,
    stats: Statistics,
    before: Float[Array, " P"],
    reference: Reference,
    measured: Measurement,
    job: int = 0,
) -> UpperInputs:
    """Inputs of the upper policy; `stats` holds the measurement, `before` the rates before it."""
    may_switch = observation.mask.retarget[job] & ~observation.moving[job]
    stay = jnp.arange(setup.table.mask.size) == measured.row
    args = measured.switch_s, measured.price, measured.row, setup.interval_s
    moves, prior = move_features(stats, reference, *args)
    return UpperInputs(
        wan=GraphInputs(observation.graph, observation.graph_mask),
        rows=row_features(setup, stats, before, reference),
        domains=layer_shares(setup),
        moves=moves,
        row=measured.row,
        mask=(setup.table.mask & may_switch) | stay,
        prior=prior,
    )


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
