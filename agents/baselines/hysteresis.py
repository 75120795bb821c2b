"""Re-planning with hysteresis: the best row of the table on the measured network, the switch spread
over h intervals."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from agents.paying import amortised_gain
from agents.protocol import EvaluatedTable, TableScheduler


class Hysteresis(TableScheduler):
    """Move to the row that would have done the most work `horizon` intervals from now.

    The network is taken to stay as measured.

    Attributes:
        horizon: [] intervals over which a switch is spread; tuned on training scenarios
    """

    horizon: Float[Array, "*batch"] | float = 10.0

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Any]:
        del key
        horizon = jnp.float32(self.horizon)
        gain = amortised_gain(seen, seen.now.rate, self.setup.interval_s, horizon)
        return jnp.argmax(gain).astype(jnp.int32), memory
