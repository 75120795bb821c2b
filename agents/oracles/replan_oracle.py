"""The best row of the table on the true present network, the switch spread over a horizon."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agents.protocol import Scheduler, Setup, amortised_gain, carry_out, situation


def make_replan_oracle(setup: Setup, horizon: float) -> Scheduler:
    """Exact search over the table on the true present network; the switch is spread over
    `horizon` intervals. Reads the coming interval, as its argument says."""

    def decide(key, observation, memory, truth):
        del key
        t = observation.t
        view = jax.tree.map(lambda x: x[t], truth.views)
        # Where the measured rates are at hand, the true ones are: else it scores as everybody does.
        rates = None if observation.rates is None else truth.rates[t]
        seen = situation(setup, observation.replace(view=view, rates=rates))
        gain = amortised_gain(seen, seen.now.rate, setup.interval_s, jnp.float32(horizon))
        row = jnp.where(seen.may_switch, jnp.argmax(gain).astype(jnp.int32), seen.row)
        return carry_out(setup, row, seen.now.choice[row], view), memory

    return Scheduler(lambda key: (), decide, oracle=True)
