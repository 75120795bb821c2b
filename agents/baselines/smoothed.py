"""Hysteresis on rates averaged over time and pulled toward those to be expected."""

from __future__ import annotations

from typing import Any, Self

import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float, Int, Key

from agents.baselines.hysteresis import Hysteresis
from agents.paying import amortised_gain
from agents.protocol import EvaluatedTable, Setup
from agents.staying import (
    Layouts,
    expected_losses,
    expected_rates,
    first_layouts,
    losses,
)
from jaxsim.pytree import Pytree

LOST = 0.05  # weight of what was lost last in its average


class Memory(Pytree):
    """What was learned so far."""

    average: Float[Array, "*batch P"]  # of measured rates
    lost: Float[Array, "*batch P"]  # the same of what is lost to laying out anew
    layouts: Layouts | None


class SmoothedHysteresis(Hysteresis):
    """Move to the row that would have done the most work `horizon` intervals from now, at rates that
    one bad measurement does not change much.

    A row is believed to go on at (1 - expected_weight) x its average + expected_weight x what it brings
    in the mean over the states of links and load that are to be expected.
    The average is exponential and starts there. Off it comes what a row loses that stays in force,
    because its domains are laid out anew when local jobs take or return GPUs: an average of its own,
    which moves by LOST of a measurement and starts at what is to be expected. A row that cannot run as
    measured counts as standing still, whatever its average. With alpha 1 and expected_weight 0 this is
    `Hysteresis`, where GPUs do not vary.

    Attributes:
        horizon: [] intervals over which a switch is spread; tuned on training scenarios, as are the
            next two
        alpha: [] weight of the last measurement in the average
        expected_weight: [] weight of the rate to be expected
        expected: [P] [training steps / s] that rate, set by `bind`
    """

    horizon: Float[Array, "*batch"] | float = 20.0
    alpha: Float[Array, "*batch"] | float = 0.2
    expected_weight: Float[Array, "*batch"] | float = 0.0
    expected: Float[Array, "*batch P"] = struct.field(default=None, kw_only=True)

    def bind(self, setup: Setup) -> Self:
        return self.replace(setup=setup, expected=expected_rates(setup, self.candidates))

    def init(self, key: Key[Array, ""]) -> Memory:
        del key
        lost = expected_losses(self.setup, self.candidates)
        return Memory(self.expected + lost, lost, first_layouts(self.setup))

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Memory]:
        del key
        now, alpha = seen.now.rate, jnp.float32(self.alpha)
        average = alpha * now + (1.0 - alpha) * memory.average
        lost, layouts = losses(self.setup, memory.layouts, seen.now, seen.view)
        lost = LOST * lost + (1.0 - LOST) * memory.lost
        weight = jnp.float32(self.expected_weight)
        believed = (1.0 - weight) * (average - lost) + weight * self.expected
        believed = jnp.where(now != 0, believed, 0.0)
        gain = amortised_gain(seen, believed, self.setup.interval_s, jnp.float32(self.horizon))
        return jnp.argmax(gain).astype(jnp.int32), Memory(average, lost, layouts)
