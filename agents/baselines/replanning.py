"""Planners that plan again only when the free GPUs have changed."""

from __future__ import annotations

from typing import Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float, Int, Key

from agents.paying import amortised_gain
from agents.protocol import EvaluatedTable, Setup, TableScheduler, score_table
from agents.staying import expected_rates
from jaxsim.step_time import NetworkView

EVERY_GPU = 1 << 30  # above any count: all GPUs are watched


class Replanning(TableScheduler):
    """Deploy the best of the candidates; when the free GPUs differ from those at the last planning,
    move to the best again if that pays within the horizon.

    Where GPUs stay, the first plan is the best in the mean over the states of the links that are to be
    expected; where local jobs take them, the best on the links at base and the GPUs that are free.
    Plans made later see the links as they are measured then. The GPUs always count as they are. Best
    is fastest in the simulator, of what the planner's own objective found. The lower choice is the
    best candidate of every interval, planned anew or not.

    Attributes:
        horizon: [] intervals over which a switch is spread
        counted: [] GPUs of a domain that are watched, at most: with 1 the planner only sees whether
            a domain has any
        expected: [P] [training steps / s] what rows bring in the mean over the states to be expected,
            set by `bind`; None where GPUs vary
    """

    horizon: Float[Array, "*batch"] | float = 10.0
    counted: Int[Array, "*batch"] | int = EVERY_GPU
    expected: Float[Array, "*batch P"] | None = struct.field(default=None, kw_only=True)

    def bind(self, setup: Setup) -> Self:
        expected = None if setup.gpus_vary else expected_rates(setup, self.candidates)
        return self.replace(setup=setup, expected=expected)

    def watched(self, view: NetworkView) -> Int[Array, " K"]:
        """[K] int32, what makes the planner plan again when it changes."""
        return jnp.minimum(view.gpus_available, self.counted).astype(jnp.int32)

    def init(self, key: Key[Array, ""]) -> Int[Array, " K"]:
        del key
        return jnp.full_like(self.watched(self.setup.prior), -1)  # nothing was seen yet

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Int[Array, " K"]
    ) -> tuple[Int[Array, ""], Int[Array, " K"]]:
        del key
        setup, state = self.setup, self.watched(seen.view)
        rate = jnp.where(seen.idle, self._at_first(seen), seen.now.rate)
        gain = amortised_gain(seen, rate, setup.interval_s, jnp.float32(self.horizon))
        best = jnp.argmax(jnp.where(self.rows, gain, -jnp.inf)).astype(jnp.int32)
        plan_again = jnp.any(state != memory) & seen.may_switch
        memory = jnp.where(plan_again, state, memory)
        move = seen.idle | (plan_again & (gain[best] > gain[seen.row]))
        return jnp.where(move, best, seen.row), memory

    def _at_first(self, seen: EvaluatedTable) -> Float[Array, " P"]:
        """[P] rates to be expected before any were measured; needed for the first decision."""
        setup = self.setup
        if self.expected is not None:  # known already, unless somebody measures otherwise
            usual = jnp.all(seen.view.gpus_available == setup.prior.gpus_available)
            return jnp.where(usual, self.expected, seen.now.rate)
        profiled = setup.prior.replace(gpus_available=seen.view.gpus_available)
        # Of many scenarios side by side both branches are computed, in every interval.
        return jax.lax.cond(
            seen.t <= 1,
            lambda: score_table(setup, profiled, self.candidates).rate,
            lambda: seen.now.rate,
        )
