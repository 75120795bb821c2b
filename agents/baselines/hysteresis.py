"""Re-planning with hysteresis: the best row of the table on the measured network, the switch spread
over h intervals."""

from __future__ import annotations

import jax.numpy as jnp

from agents.protocol import Scheduler, Setup, amortised_gain, table_scheduler


def make_hysteresis(setup: Setup, horizon: float) -> Scheduler:
    """Move to the row that would have done the most work `horizon` intervals from now.

    The network is taken to stay as measured; `horizon` is tuned on training scenarios.
    """

    def choose(key, seen, memory):
        del key
        gain = amortised_gain(seen, seen.now.rate, setup.interval_s, jnp.float32(horizon))
        return jnp.argmax(gain).astype(jnp.int32), memory

    return table_scheduler(setup, lambda key: (), choose)
