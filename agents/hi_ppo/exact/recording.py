"""A scenario recorded once: what rows bring when played, where moves land, what is seen before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from agents.foresight import (
    MigrationTable,
    make_course,
    migration_table,
    never_done,
    outcomes_of_moves,
)
from agents.hi_ppo import (
    Networks,
    Reference,
    Statistics,
    allowed_choices,
    balanced_on,
    forecasts_along,
    init_filter,
    init_statistics,
    layer_shares,
    reference_of,
    row_features,
    update_filter,
    update_statistics,
)
from agents.protocol import (
    Setup,
    best_choices,
    make_setup,
    nothing,
    score_rows,
    table_rates,
    usd_worths,
)
from agents.staying import losses_along, staying_rates
from jaxsim.env import EnvParams, wan_graph, world_tape
from jaxsim.planning import PlanTable, Worth, complete, plan_worth
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, job_step_cost, transition_s


class Recording(Pytree):
    """What a policy sees before each of the T intervals that it decides on, and what each of its
    decisions brings; [S, ...] in a bank.

    Decisions are taken in intervals 1 to T; here they are numbered from 0. Gains are in units of the
    progress that the best static plan makes in an interval at base, `EnvParams.progress_ref`, or
    under an objective in those of the reward. A move that is under way is never given up here; the
    environment allows that where a domain is lost.
    """

    stats: Statistics  # [T, ...] with the measurement before each decision
    reference: Reference
    rows: Float[Array, "*batch T P F"]
    nodes: Float[Array, "*batch T K N"]  # of the WAN, as measured
    edges: Float[Array, "*batch T KK E"]
    switch_s: Float[Array, "*batch T P P"]  # [s] of training that moves seem to cost
    # What a scenario's gains are to be counted in: the best row's at base where that is more than 1
    unit: Float[Array, "*batch"]
    usd: Float[Array, "*batch P P"]  # [USD] of moves' traffic
    usd_worth: Float[Array, "*batch T P"]  # [reward / USD] of it, see `agents.protocol.usd_worths`
    stayed: Float[Array, "*batch T P"]  # gained by a row that stays in force
    moved: Float[Array, "*batch T P P"]  # gained by a move, until the next decision
    after: Int[Array, "*batch T P P"]  # int16, the decision after it; T = none
    interval_s: Float[Array, "*batch"]
    mask: Bool[Array, "*batch P"]  # rows that may be in force
    domains: Float[Array, "*batch P K"]  # share of the layers
    wan_mask: Bool[Array, "*batch K"]
    # Deploying a row on idle domains, before the first decision
    start_s: Float[Array, "*batch"]  # [s] that it takes
    started: Float[Array, "*batch P"]
    after_start: Int[Array, "*batch"]


def record(
    params: EnvParams,
    table: PlanTable,
    key: Key[Array, ""],
    horizon: int,
    networks: Networks,
) -> Recording:
    """Record one scenario for policies of `networks`; jit and vmap over a bank.

    What counts is `params.objective`, progress where there is none; `params.weights` do not matter.
    """
    setup = make_setup(params, table)
    allowed = allowed_choices(setup, networks)
    reference = reference_of(setup, networks, allowed)
    views = world_tape(params, key, horizon + 1)
    rates = table_rates(setup, views)  # [T + 1, P, V] as measured
    choice = best_choices(rates, allowed, nothing(setup))
    balanced = _balanced(setup, networks, views)
    played, worth = _played(setup, params, views, (choice.choice, balanced))
    before, now = (jax.tree.map(lambda x, part=part: x[part], views) for part in _SHIFTED)
    resized = staying_rates(setup, table.plans, views, played, worth)
    stayed = (played if resized is None else resized)[1:] * setup.interval_s
    moves = migration_table(table.plans, setup.problem)
    later = jax.tree.map(lambda x: x[1:], (played, worth))
    moved, after = _moves(setup, moves, now, *later)
    start = _start(setup, *later)
    scored = score_rows(setup, table.plans, choice.choice, views)[1]
    lost = losses_along(setup, views, choice.rate, scored)
    measured = choice.rate[:-1], lost[:-1]
    if networks.forecasts:
        measured = *measured, forecasts_along(setup, before, choice.choice[:-1])
    stats, rows = _seen(setup, reference, measured)
    nodes, edges = jax.vmap(lambda view: _graph(setup, view))(before)
    return Recording(
        *(stats, reference, rows, nodes, edges),
        switch_s=jax.vmap(lambda view: _switch_s(setup, moves, view))(before),
        unit=_unit(setup, reference),
        usd=jnp.tensordot(moves.bytes_gb, setup.problem.cluster.egress_usd_per_gb, axes=2),
        usd_worth=jax.vmap(lambda view: usd_worths(setup, view))(before),
        stayed=stayed,
        moved=moved,
        after=after.astype(jnp.int16),
        interval_s=setup.interval_s,
        mask=table.mask,
        domains=layer_shares(setup),
        wan_mask=setup.problem.cluster.mask,
        start_s=setup.problem.calibration.restart_s,
        started=start[0],
        after_start=start[1],
    )


def _unit(setup: Setup, reference: Reference) -> Array:
    """[] of `Recording.unit`. What is asked for may be out of reach, and then costs many times what
    progress brings; progress is counted in that of the best static plan already."""
    if setup.objective is None:
        return jnp.float32(1.0)
    return jnp.maximum(reference.scale * setup.interval_s, 1.0)


_SHIFTED = slice(None, -1), slice(1, None)


def _played(
    setup: Setup, params: EnvParams, views: NetworkView, lower: tuple[Array, NetworkView]
) -> tuple[Array, Worth | None]:
    """[T + 1, P] gained per second by rows that are set up by what was known in the interval before, in
    the first by what is known in it: `lower` has the choices [T + 1, P] and the views [T + 1] that
    batch shares are balanced on. And what that is made of, where there is an objective.

    `score_rows` comes to the same: of eight regions it compiles in 1.4 times the time, as many views
    are scored side by side, and runs no faster here."""
    plans, problem, objective = setup.table.plans, setup.problem, setup.objective

    def gained(plan, choice, before, now):
        done, legal = complete(plan, choice, problem, before)
        cost = job_step_cost(done, problem, now, schedules=problem.choices.schedules)
        cost = cost.replace(runs=legal & cost.runs)
        if objective is None:
            rate = jnp.where(cost.runs, cost.efficiency / cost.step_s, 0.0)
            return rate / params.progress_ref[0], None
        worth = plan_worth(cost, problem, now, objective, setup.reference, setup.interval_s)
        return worth.trained + worth.held, worth

    def under(x):
        choice, before, now = x
        return jax.vmap(gained, (0, 0, None, None))(plans, choice, before, now)

    first, *_ = _SHIFTED
    seen = jax.tree.map(lambda x: jnp.concatenate([x[:1], x[first]]), lower)
    found = jax.lax.map(under, (*seen, views))
    return jax.tree.map(lambda x: jnp.where(setup.table.mask[None], x, 0.0), found)


def _balanced(setup: Setup, networks: Networks, views: NetworkView) -> NetworkView:
    """[T + 1] what batch shares are balanced on after each measurement."""

    def body(filtered, view):
        filtered = update_filter(filtered, view)
        return filtered, balanced_on(setup, networks, filtered, view)

    return jax.lax.scan(body, init_filter(setup.prior), views)[1]


def _moves(
    setup: Setup, moves: MigrationTable, views: NetworkView, played: Array, worth: Worth | None
) -> tuple[Array, Array]:
    """[T, P, P] what moves begun in each of the T intervals gain until the next decision, and [T, P, P]
    which that is."""
    length = played.shape[0]
    course = make_course(played, views.bandwidth_gb_per_s, setup, worth)

    def begun(latest, t):
        outcome = outcomes_of_moves(course, moves, t, setup, latest)
        after = jnp.where(outcome.inside, outcome.landed + 1, length)
        return outcome.carried, (outcome.gained, after)

    start = never_done(moves, length)
    return jax.lax.scan(begun, start, jnp.arange(length), reverse=True)[1]


def _start(setup: Setup, played: Array, worth: Worth | None) -> tuple[Array, Array]:
    """[P] what deploying a row on idle domains gains until the next decision, and [] which that is."""
    length, restart_s = played.shape[0], setup.problem.calibration.restart_s
    skipped = jnp.floor(restart_s / setup.interval_s).astype(jnp.int32)
    left_s = (skipped + 1).astype(jnp.float32) * setup.interval_s - restart_s
    landed = jnp.minimum(skipped, length - 1)
    gained = played[landed] * left_s
    if worth is not None:
        gained = gained + worth.held[landed] * (setup.interval_s - left_s)
    return jnp.where(skipped < length, gained, 0.0), jnp.minimum(skipped + 1, length)


def _seen(setup: Setup, reference: Reference, rates: tuple[Array, ...]) -> tuple[Statistics, Array]:
    """Statistics [T, ...] with the measurements [T, P] (and losses, and forecasts [T, A, P] where there
    are any) taken in one after the other, and features."""
    ahead = rates[2].shape[1] if len(rates) > 2 else 0

    def body(stats, rates):
        new = update_statistics(stats, *rates)
        return new, (new, row_features(setup, new, stats.last, reference))

    return jax.lax.scan(body, init_statistics(reference, ahead), rates)[1]


def _graph(setup: Setup, view: NetworkView) -> Any:
    """[K, N] and [K * K, E] of the WAN's graph."""
    n = view.gpus_available.shape[0]
    nothing = jnp.zeros((1, n, n), jnp.float32)
    graph = wan_graph(setup.problem.cluster, view, nothing, setup.interval_s)
    return graph.nodes, graph.edges


def _switch_s(setup: Setup, moves: MigrationTable, view: NetworkView) -> Array:
    """[P, P] [s] of training that moves cost if links stay as measured."""
    rate = view.bandwidth_gb_per_s * setup.problem.calibration.wan_efficiency
    lost_s = jax.vmap(jax.vmap(lambda move: transition_s(move, rate)))(moves)
    apart = ~jnp.eye(lost_s.shape[0], dtype=bool)
    return jnp.where(apart, lost_s * (1.0 - moves.goes_on), 0.0)
