"""A scenario recorded once: what rows bring when played, where moves land, what is seen before."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from agents.foresight import MigrationTable, landing, make_course, migration_table
from agents.hi_ppo import (
    Reference,
    Statistics,
    expected_view,
    init_filter,
    init_statistics,
    layer_shares,
    make_reference,
    row_features,
    update_filter,
    update_statistics,
)
from agents.protocol import Setup, best_choices, make_setup, table_rates
from agents.staying import expected_losses, losses_along, reference_rates, staying_rates
from jaxsim.env import EnvParams, wan_graph, world_tape
from jaxsim.planning import PlanTable, complete
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, job_step_cost, transition_s


class Recording(Pytree):
    """What a policy sees before each of the T intervals that it decides on, and what each of its
    decisions brings; [S, ...] in a bank.

    Decisions are taken in intervals 1 to T; here they are numbered from 0. Gains are in units of the
    progress that the best static plan makes in an interval at base, `EnvParams.progress_ref`. A move
    that is under way is never given up here; the environment allows that where a domain is lost.
    """

    stats: Statistics  # [T, ...] with the measurement before each decision
    reference: Reference
    rows: Float[Array, "*batch T P F"]
    nodes: Float[Array, "*batch T K N"]  # of the WAN, as measured
    edges: Float[Array, "*batch T KK E"]
    switch_s: Float[Array, "*batch T P P"]  # [s] of training that moves seem to cost
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


def record(params: EnvParams, table: PlanTable, key: Key[Array, ""], horizon: int) -> Recording:
    """Record one scenario; jit and vmap over a bank. Progress is what counts, whatever the weights."""
    setup = make_setup(params, table)
    reference = make_reference(reference_rates(setup), expected_losses(setup))
    views = world_tape(params, key, horizon + 1)
    rates = table_rates(setup, views)  # [T + 1, P, V] as measured
    choice = best_choices(rates)
    played = _played(setup, views, choice.choice) / params.progress_ref[0]
    before, now = (jax.tree.map(lambda x, part=part: x[part], views) for part in _SHIFTED)
    resized = staying_rates(setup, table.plans, views, played)
    stayed = (played if resized is None else resized)[1:] * setup.interval_s
    moves = migration_table(table.plans, setup.problem)
    moved, after = _moves(setup, moves, now, played[1:])
    start = _start(setup, played[1:])
    lost = losses_along(setup, views, choice.rate)
    stats, rows = _seen(setup, reference, (choice.rate[:-1], lost[:-1]))
    nodes, edges = jax.vmap(lambda view: _graph(setup, view))(before)
    return Recording(
        *(stats, reference, rows, nodes, edges),
        switch_s=jax.vmap(lambda view: _switch_s(setup, moves, view))(before),
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


_SHIFTED = slice(None, -1), slice(1, None)


def _played(setup: Setup, views: NetworkView, choice: Array) -> Array:
    """[T + 1, P] training steps per second of rows whose lower choice [T + 1, P] and batch shares are
    those that suited the interval before, the shares as the filter expects links and GPUs to be; in the
    first, those that suit it."""
    plans, problem = setup.table.plans, setup.problem

    def rate(plan, choice, before, now):
        done, legal = complete(plan, choice, problem, before)
        cost = job_step_cost(done, problem, now, schedules=problem.choices.schedules)
        return jnp.where(legal & cost.runs, cost.efficiency / cost.step_s, 0.0)

    def under(x):
        choice, before, now = x
        return jax.vmap(rate, (0, 0, None, None))(plans, choice, before, now)

    first, *_ = _SHIFTED
    held = choice, _expected(setup, views)
    seen = jax.tree.map(lambda x: jnp.concatenate([x[:1], x[first]]), held)
    rates = jax.lax.map(under, (*seen, views))
    return jnp.where(setup.table.mask[None], rates, 0.0)


def _expected(setup: Setup, views: NetworkView) -> NetworkView:
    """[T + 1] what is expected after each measurement."""

    def body(filtered, view):
        filtered = update_filter(filtered, view)
        return filtered, expected_view(filtered, view)

    return jax.lax.scan(body, init_filter(setup.prior), views)[1]


def _moves(
    setup: Setup, moves: MigrationTable, views: NetworkView, played: Array
) -> tuple[Array, Array]:
    """[T, P, P] what moves begun in each of the T intervals gain until the next decision, and [T, P, P]
    which that is."""
    length, n_rows = played.shape
    course = make_course(played, views.bandwidth_gb_per_s, setup)
    bytes_gb, restart_s = moves.bytes_gb.reshape(n_rows, n_rows, -1), moves.restart_s.max()
    total = jnp.concatenate([jnp.zeros_like(played[:1]), jnp.cumsum(played, axis=0)])
    column = jnp.broadcast_to(jnp.arange(n_rows)[None, :], (n_rows, n_rows))

    def begun(t):
        land = landing(bytes_gb, moves.fabric_s, restart_s, course, t, setup.interval_s)
        left_s = jnp.where(land.inside, land.left_s, 0.0)
        end = jnp.where(land.inside, land.landed, length)
        # What goes on meanwhile does so as the old row brings it, in the last interval as the new one.
        old = (total[end, column.T] - total[t, column.T]) * setup.interval_s
        last = jnp.where(land.inside, setup.interval_s - left_s, 0.0)
        arriving = played[land.landed, column]
        gained = arriving * left_s + moves.goes_on * (old + arriving * last)
        return gained, jnp.where(land.inside, land.landed + 1, length)

    return jax.lax.map(begun, jnp.arange(length))


def _start(setup: Setup, played: Array) -> tuple[Array, Array]:
    """[P] what deploying a row on idle domains gains until the next decision, and [] which that is."""
    length, restart_s = played.shape[0], setup.problem.calibration.restart_s
    skipped = jnp.floor(restart_s / setup.interval_s).astype(jnp.int32)
    left_s = (skipped + 1).astype(jnp.float32) * setup.interval_s - restart_s
    gained = played[jnp.minimum(skipped, length - 1)] * left_s
    return jnp.where(skipped < length, gained, 0.0), jnp.minimum(skipped + 1, length)


def _seen(
    setup: Setup, reference: Reference, rates: tuple[Array, Array]
) -> tuple[Statistics, Array]:
    """Statistics [T, ...] with the measurements [T, P] (and losses) taken in one after the
    other, and features."""

    def body(stats, rates):
        new = update_statistics(stats, *rates)
        return new, (new, row_features(setup, new, stats.last, reference))

    return jax.lax.scan(body, init_statistics(reference), rates)[1]


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
