"""Hysteresis on rates averaged over time and pulled toward those at base."""

from __future__ import annotations

from typing import Any, Self

import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Float, Int, Key

from agents.baselines.hysteresis import Hysteresis
from agents.protocol import EvaluatedTable, Setup, amortised_gain
from agents.staying import reference_rates


class SmoothedHysteresis(Hysteresis):
    """Move to the row that would have done the most work `horizon` intervals from now, at rates that
    one bad measurement does not change much.

    A row is believed to go on at (1 - base_weight) x its average + base_weight x its rate at base, the
    mean over the load to be expected.
    The average is exponential and starts at base. A row that cannot run as measured counts as
    standing still, whatever its average. With alpha 1 and base_weight 0 this is `Hysteresis`.

    Attributes:
        horizon: [] intervals over which a switch is spread; tuned on training scenarios, as are the
            next two
        alpha: [] weight of the last measurement in the average
        base_weight: [] weight of the rate at base
        base_rate: [P] [training steps / s], set by `bind`
    """

    horizon: Float[Array, "*batch"] | float = 20.0
    alpha: Float[Array, "*batch"] | float = 0.2
    base_weight: Float[Array, "*batch"] | float = 0.0
    base_rate: Float[Array, "*batch P"] = struct.field(default=None, kw_only=True)

    def bind(self, setup: Setup) -> Self:
        return self.replace(setup=setup, base_rate=reference_rates(setup, self.candidates))

    def init(self, key: Key[Array, ""]) -> Float[Array, " P"]:
        del key
        return self.base_rate

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Float[Array, " P"]]:
        del key
        now, alpha = seen.now.rate, jnp.float32(self.alpha)
        average = alpha * now + (1.0 - alpha) * memory
        weight = jnp.float32(self.base_weight)
        believed = (1.0 - weight) * average + weight * self.base_rate
        believed = jnp.where(now != 0, believed, 0.0)
        gain = amortised_gain(seen, believed, self.setup.interval_s, jnp.float32(self.horizon))
        return jnp.argmax(gain).astype(jnp.int32), average
