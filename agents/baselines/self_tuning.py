"""Hysteresis that tunes its own horizon: every horizon is replayed, the leader followed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from agents.paying import after_move
from agents.protocol import (
    EvaluatedTable,
    TableScheduler,
    pick_row,
    switch_times,
    switch_worths,
)
from jaxsim.pytree import Pytree

HORIZONS = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 40.0, 80.0, jnp.inf)  # intervals; inf = never move


class Replay(Pytree):
    """One imagined run per horizon, [H] each."""

    row: Int[Array, "*batch H"]
    wait_s: Float[Array, "*batch H"]  # [s] of transition left
    score: Float[Array, "*batch H"]  # discounted training steps
    started: Bool[Array, "*batch"]


class SelfTuningHysteresis(TableScheduler):
    """Follow the horizon whose replay has the best discounted progress; nothing is learned.

    Replays see what the scheduler sees: rates as measured in the last interval, transitions as long
    as they would have taken at the measured rates.

    Attributes:
        decay: [] share of a replay's score that is left after an interval; tuned on training
            scenarios
    """

    decay: Float[Array, "*batch"] | float = 0.99

    def init(self, key: Key[Array, ""]) -> Replay:
        del key
        zeros = jnp.zeros((len(HORIZONS),), jnp.float32)
        return Replay(zeros.astype(jnp.int32), zeros, zeros, jnp.array(False))

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Replay
    ) -> tuple[Int[Array, ""], Replay]:
        del key
        setup, horizons = self.setup, jnp.asarray(HORIZONS, jnp.float32)
        first = jnp.where(seen.idle, jnp.argmax(seen.now.rate).astype(jnp.int32), seen.row)
        row = jnp.where(memory.started, memory.row, first)
        # The last interval, as measured: what would each replay have done in it?
        trained_s = jnp.maximum(setup.interval_s - memory.wait_s, 0.0)
        wait_s = jnp.maximum(memory.wait_s - setup.interval_s, 0.0)
        score = self.decay * memory.score + seen.now.rate[row] * trained_s
        # And what would it decide now? Idle replays may move.
        plans = jax.vmap(lambda r: pick_row(setup.table, r))(row)
        times = jax.vmap(lambda plan: switch_times(setup, plan, seen.view))(plans)
        prices = None
        if setup.objective is not None:
            prices = jax.vmap(lambda plan: switch_worths(setup, plan, seen.view))(plans)
        wanted, wait_s = jax.vmap(_decide, (0, 0, 0, None, 0, 0, None))(
            horizons, row, wait_s, seen.now.rate, times, prices, setup.interval_s
        )
        if prices is not None:
            moved = (wanted != row)[:, None] & (
                jnp.arange(prices.shape[1])[None] == wanted[:, None]
            )
            score = score - jnp.sum(jnp.where(moved, prices, 0.0), axis=1)
        row, leader = wanted, jnp.argmax(score)
        return row[leader], Replay(row, wait_s, score, jnp.array(True))


def _decide(horizon, row, wait_s, rate, switch_s, switch_worth, interval_s):
    """One replay's move: hysteresis with its own horizon, if no transition is under way."""
    never = jnp.isinf(horizon)
    span = jnp.where(never, 1.0, horizon) * interval_s
    gain = after_move(rate, jnp.maximum(span - switch_s, 0.0), switch_worth)
    wanted = jnp.argmax(gain).astype(jnp.int32)
    move = (wait_s <= 0) & ~never & (wanted != row)
    return jnp.where(move, wanted, row), jnp.where(move, switch_s[wanted], wait_s)
