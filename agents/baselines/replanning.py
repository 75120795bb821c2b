"""Planners that plan again only when the free GPUs have changed."""

from __future__ import annotations

from typing import Self

import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float, Int, Key

from agents.paying import amortised_gain
from agents.protocol import EvaluatedTable, Setup, TableScheduler
from agents.staying import expected_rates
from jaxsim.step_time import NetworkView

EVERY_GPU = 1 << 30  # above any count: all GPUs are watched


class Replanning(TableScheduler):
    """Deploy the best of the candidates; when the free GPUs differ from those at the last planning,
    move to the best again if that pays within the horizon.

    Best is fastest in the simulator, of what the planner's own objective found, in the mean over the
    states of links and load that are to be expected; what cannot run as measured is out of the
    question. By `expected_weight` plans after the first may go by the links and GPUs as they are
    measured then. The lower choice is the best candidate of every interval, planned anew or not.

    Attributes:
        horizon: [] intervals over which a switch is spread
        counted: [] GPUs of a domain that are watched, at most: with 1 the planner only sees whether
            a domain has any
        expected_weight: [] weight, after the first plan, of what rows bring in that mean; the rest is
            what they bring as measured
        expected: [P] [training steps / s] that mean, set by `bind`
    """

    horizon: Float[Array, "*batch"] | float = 10.0
    counted: Int[Array, "*batch"] | int = EVERY_GPU
    expected_weight: Float[Array, "*batch"] | float = 1.0
    expected: Float[Array, "*batch P"] = struct.field(default=None, kw_only=True)

    def bind(self, setup: Setup) -> Self:
        return self.replace(setup=setup, expected=expected_rates(setup, self.candidates))

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
        # Where GPUs are not expected to change and have, nothing is known but what is measured.
        known = setup.gpus_vary | jnp.all(seen.view.gpus_available == setup.prior.gpus_available)
        weight = jnp.where(seen.idle, 1.0, jnp.float32(self.expected_weight))
        believed = (1.0 - weight) * seen.now.rate + weight * self.expected
        rate = jnp.where(known & (seen.now.rate > 0), believed, seen.now.rate)
        gain = amortised_gain(seen, rate, setup.interval_s, jnp.float32(self.horizon))
        best = jnp.argmax(jnp.where(self.rows, gain, -jnp.inf)).astype(jnp.int32)
        plan_again = jnp.any(state != memory) & seen.may_switch
        memory = jnp.where(plan_again, state, memory)
        move = seen.idle | (plan_again & (gain[best] > gain[seen.row]))
        return jnp.where(move, best, seen.row), memory
