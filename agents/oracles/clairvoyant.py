"""The optimal plan sequence with the future known, by dynamic programme over (time x plan table).

The optimum is exact over sequences of table rows that finish each move before the next begins. The
environment also lets a move be given up when its target loses a domain; where local jobs take whole
domains in the midst of moves, a schedule that uses this could do better.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float, Key

from agents.protocol import Scheduler, Setup, carry_out, find_row
from jaxsim.env import Observation
from jaxsim.plan import Plan
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, begin_transition
from jaxsim.trees import take


class MigrationTable(Pytree):
    """Reconfigurations between all rows of a table."""

    restart_s: Float[Array, "*batch P P"]  # [s], 0 on the diagonal
    bytes_gb: Float[Array, "*batch P P K K"]  # [GB]


def migration_table(setup: Setup) -> MigrationTable:
    """What each row-to-row reconfiguration costs, before any network is known."""
    plans = setup.table.plans

    def one(old, new):
        return begin_transition(old, new, setup.problem)

    every = jax.vmap(jax.vmap(one, (None, 0)), (0, None))(plans, plans)
    size = setup.table.size
    apart = ~jnp.eye(size, dtype=bool)
    return MigrationTable(
        restart_s=jnp.where(apart, every.restart_s, 0.0),
        bytes_gb=jnp.where(apart[:, :, None, None], every.bytes_gb, 0.0),
    )


def clairvoyant_values(
    setup: Setup, views: NetworkView, rate: Array, moves: MigrationTable
) -> tuple[Array, Array]:
    """Dynamic programme over (interval x row), the future known; exact but for moves that are given
    up halfway, which the environment allows where a move's target has lost a domain.

    From row p at the start of interval t one either stays, rate[t, p] x interval steps richer, or
    moves to q: a restart, then each link carries its bytes through the intervals as they come; the
    job trains at rate[a, q] for what is left of the interval a of arrival, and decides again at
    a + 1. Links work in parallel, the slowest decides: `_arrival_s`.

    rate is [T + 1, P]; returns value [T + 2, P] and best [T + 1, P]. Padded rows (rate 0, masked)
    are never moved to.
    """
    interval = setup.interval_s
    n_rows = rate.shape[1]
    length = rate.shape[0]
    speed = views.bandwidth_gb_per_s * setup.problem.calibration.wan_efficiency  # [T + 1, K, K]
    done_gb = jnp.concatenate([jnp.zeros_like(speed[:1]), jnp.cumsum(speed * interval, axis=0)])
    n_links = speed.shape[1] * speed.shape[2]
    speed, done_gb = speed.reshape(length, n_links), done_gb.reshape(length + 1, n_links)
    bytes_gb = moves.bytes_gb.reshape(n_rows, n_rows, n_links)
    restart_s = moves.restart_s.max()  # the same for every move; the diagonal (stay) is zero

    def backward(values, t):
        # values [T + 2, P]: filled from t + 1 on.
        start = t.astype(jnp.float32) * interval + restart_s
        arrival = _arrival_s(bytes_gb, speed, done_gb, start, interval)
        landed = jnp.floor(arrival / interval).astype(jnp.int32)
        inside = landed < length
        landed = jnp.minimum(landed, length - 1)
        left_s = (landed + 1).astype(jnp.float32) * interval - arrival
        column = jnp.broadcast_to(jnp.arange(n_rows)[None, :], landed.shape)
        gained = rate[landed, column] * left_s + values[landed + 1, column]
        move = jnp.where(inside & setup.table.mask[None, :], gained, 0.0)
        stay = rate[t] * interval + values[t + 1]
        options = jnp.where(jnp.eye(n_rows, dtype=bool), stay[None, :], move)
        # Ties go to staying: argmax alone would prefer a lower row.
        best = jnp.argmax(options, axis=1).astype(jnp.int32)
        best = jnp.where(options.max(axis=1) > stay, best, jnp.arange(n_rows, dtype=jnp.int32))
        value = jnp.maximum(options.max(axis=1), stay)
        return values.at[t].set(value), best

    empty = jnp.zeros((length + 1, n_rows), jnp.float32)
    values, best = jax.lax.scan(backward, empty, jnp.arange(length), reverse=True)
    return values, best


def _arrival_s(
    load_gb: Array, speed: Array, done_gb: Array, start: Array, interval: Array
) -> Array:
    """[P, P] [s] when all links have carried their loads [P, P, E], begun at `start` []; an interval
    after the last where they never do.

    `speed` [T, E] [GB/s] is constant within an interval, `done_gb` [T + 1, E] is what a link carries
    until each interval begins. The interval of arrival is found by bisection: what counts is whether
    all links are done by its end, so one test serves them all.
    """
    length = speed.shape[0]
    begun = jnp.minimum(jnp.floor(start / interval).astype(jnp.int32), length - 1)
    before_gb = done_gb[begun] + speed[begun] * (start - begun.astype(jnp.float32) * interval)
    since_gb = done_gb - before_gb[None]

    def narrow(_, bounds):
        low, high = bounds  # inclusive; `length` = never
        middle = (low + high) // 2
        enough = jnp.all(load_gb <= since_gb[middle + 1], axis=-1)
        low = jnp.where(enough, low, jnp.minimum(middle + 1, length))
        return low, jnp.where(enough, middle, high)

    pairs = load_gb.shape[:2]
    bounds = jnp.broadcast_to(begun, pairs), jnp.full(pairs, length, jnp.int32)
    last, _ = jax.lax.fori_loop(0, length.bit_length(), narrow, bounds)
    inside = jnp.minimum(last, length - 1)
    rest_gb = jnp.where(load_gb > 0, load_gb - since_gb[inside], 0.0)
    rest_s = (rest_gb / jnp.maximum(speed[inside], 1e-30)).max(axis=-1)
    arrival = jnp.maximum(inside.astype(jnp.float32) * interval + rest_s, start)
    return jnp.where(last < length, arrival, (length + 1) * interval)


def first_deployment(setup: Setup, rate: Array, value: Array) -> tuple[Array, Array]:
    """The best row to deploy on idle domains in interval 1: a restart, nothing to move.

    Returns the row [] int32 and what can be had from there [] [training steps].
    """
    skipped = jnp.floor(setup.problem.calibration.restart_s / setup.interval_s).astype(jnp.int32)
    landed = jnp.minimum(1 + skipped, rate.shape[0] - 1)
    inside = 1 + skipped < rate.shape[0]
    left_s = (skipped + 1).astype(
        jnp.float32
    ) * setup.interval_s - setup.problem.calibration.restart_s
    gained = jnp.where(inside, rate[landed] * left_s + value[landed + 1], 0.0)
    return jnp.argmax(gained).astype(jnp.int32), gained.max()


class Clairvoyant(Pytree, Scheduler):
    """Follow the optimum of `clairvoyant_values`. It reads the whole future."""

    oracle: ClassVar[bool] = True

    setup: Setup = struct.field(default=None)  # set by `bind`

    def bind(self, setup: Setup) -> Self:
        return self.replace(setup=setup)

    def init(self, key: Key[Array, ""]) -> Any:
        del key
        return ()

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: Any, *truth: Any
    ) -> tuple[Plan, Any]:
        """`truth` is the scenario's `Truth`."""
        del key
        (known,) = truth
        t = observation.t
        row, found = find_row(self.setup.table, take(observation.target, 0))
        best = jnp.where(found, known.best[t, row], known.start)
        row = jnp.where(observation.moving[0], row, best)
        view = take(known.views, t)
        return carry_out(self.setup, row, known.table.choice[t, row], view), memory
