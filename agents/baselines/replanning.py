"""Planners that plan again only when something they watch has changed."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from agents.baselines.static import idle_unless
from agents.protocol import Scheduler, Setup, amortised_gain, score_table, table_scheduler
from jaxsim.step_time import NetworkView


def replan_when(
    setup: Setup, admitted: Array, watched: Callable[[NetworkView], Array], horizon: float
) -> Scheduler:
    """Deploy the best of the admitted rows; when `watched` (view -> [K] int32) differs from what it
    was at the last planning, move to the best again if that pays within `horizon` intervals.

    It is deployed on the links at base, as those who never move; plans made later see the links as
    they are measured then. The GPUs always count as they are. Best is fastest in the simulator, of
    what the planner's own objective nominated; the admitted lower choice is the best of every interval,
    planned anew or not.
    """
    rows = jnp.any(admitted, axis=1) & setup.table.mask

    def init(key):
        del key
        return jnp.full_like(watched(setup.usual), -1)  # nothing was seen yet

    def choose(key, seen, memory):
        del key
        state = watched(seen.view)
        profiled = setup.usual.replace(gpus_available=seen.view.gpus_available)
        # Only the first decision needs the table under another view than the measured one.
        rate = jax.lax.cond(
            seen.t <= 1,
            lambda: jnp.where(
                seen.idle, score_table(setup, profiled, admitted).rate, seen.now.rate
            ),
            lambda: seen.now.rate,
        )
        gain = amortised_gain(seen, rate, setup.interval_s, jnp.float32(horizon))
        best = jnp.argmax(jnp.where(rows, gain, -1.0)).astype(jnp.int32)
        plan_again = jnp.any(state != memory) & seen.may_switch
        memory = jnp.where(plan_again, state, memory)
        move = seen.idle | (plan_again & (gain[best] > gain[seen.row]))
        return jnp.where(move, best, seen.row), memory

    return idle_unless(jnp.any(rows), table_scheduler(setup, init, choose, admitted))
