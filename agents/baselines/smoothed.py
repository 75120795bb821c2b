"""Hysteresis on rates averaged over time and pulled toward those to be expected."""

from __future__ import annotations

from typing import Any, Self

import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from agents.baselines.hysteresis import Hysteresis
from agents.paying import amortised_gain
from agents.protocol import EvaluatedTable, Setup
from agents.shrinkage import Shrinkage, init_shrinkage, shrunk, update_shrinkage
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
    shrinkage: Shrinkage | None  # where the weight of what is to be expected is learned
    ran: Bool[Array, "*batch P"]  # rows that could, as measured last


class SmoothedHysteresis(Hysteresis):
    """Move to the row that would have done the most work `horizon` intervals from now, at rates that
    one bad measurement does not change much.

    A row is believed to go on at (1 - expected_weight) x its average + expected_weight x what it brings
    in the mean over the states of links and load that are to be expected.
    The average is exponential and starts there. Off it comes what a row loses that stays in force,
    because its domains are laid out anew when local jobs take or return GPUs: an average of its own,
    which moves by LOST of a measurement and starts at what is to be expected. A row that cannot run as
    measured counts as standing still, whatever its average. With alpha 1 and expected_weight 0 this is
    `Hysteresis`, where GPUs do not vary. Without an `expected_weight` it is what suits this network:
    rates are regressed on the averages before them as they are measured (`agents.shrinkage`).

    Attributes:
        horizon: [] intervals over which a switch is spread; tuned on training scenarios, as are the
            next two
        alpha: [] weight of the last measurement in the average
        expected_weight: [] weight of the rate to be expected; None = learned while it plays
        expected: [P] [training steps / s] that rate, set by `bind`
    """

    horizon: Float[Array, "*batch"] | float = 20.0
    alpha: Float[Array, "*batch"] | float = 0.2
    expected_weight: Float[Array, "*batch"] | float | None = 0.0
    expected: Float[Array, "*batch P"] = struct.field(default=None, kw_only=True)

    def bind(self, setup: Setup) -> Self:
        return self.replace(setup=setup, expected=expected_rates(setup, self.candidates))

    def init(self, key: Key[Array, ""]) -> Memory:
        del key
        lost = expected_losses(self.setup, self.candidates)
        average = self.expected + lost
        shrinkage = None
        if self.expected_weight is None:
            unit = jnp.maximum(jnp.abs(self.expected.max()), 1e-12)
            shrinkage = init_shrinkage(average, unit, jnp.float32(self.horizon)[None])
        return Memory(average, lost, first_layouts(self.setup), shrinkage, average != 0)

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Memory]:
        del key
        memory = self._measured(memory, seen)
        believed = jnp.where(memory.ran, self._believed(memory), 0.0)
        gain = amortised_gain(seen, believed, self.setup.interval_s, jnp.float32(self.horizon))
        return jnp.argmax(gain).astype(jnp.int32), memory

    def _measured(self, memory: Memory, seen: EvaluatedTable) -> Memory:
        """With the last measurement in it."""
        now, alpha = seen.now.rate, jnp.float32(self.alpha)
        lost, layouts = losses(self.setup, memory.layouts, seen.now, seen.view)
        shrinkage = memory.shrinkage
        if shrinkage is not None:
            shrinkage = update_shrinkage(shrinkage, memory.average, memory.ran, now)
        return Memory(
            average=alpha * now + (1.0 - alpha) * memory.average,
            lost=LOST * lost + (1.0 - LOST) * memory.lost,
            layouts=layouts,
            shrinkage=shrinkage,
            ran=now != 0,
        )

    def _believed(self, memory: Memory) -> Float[Array, " P"]:
        """[P] the rates at which rows are taken to go on."""
        if memory.shrinkage is not None:
            return shrunk(memory.shrinkage, memory.average)[0] - memory.lost
        weight = jnp.float32(self.expected_weight)
        return (1.0 - weight) * (memory.average - memory.lost) + weight * self.expected
