"""A legal plan at random: the floor that any decision must beat."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agents.protocol import Scheduler, Setup, table_scheduler


def make_random(setup: Setup, mean_stay: float) -> Scheduler:
    """Draw a new row with probability 1 / mean_stay per interval, uniformly among those that run."""

    def choose(key, seen, memory):
        when, which = jax.random.split(key)
        legal = jnp.where(seen.now.rate > 0, 0.0, jnp.finfo(jnp.float32).min)
        row = jax.random.categorical(which, legal).astype(jnp.int32)
        move = seen.idle | (jax.random.uniform(when) < 1.0 / mean_stay)
        return jnp.where(move, row, seen.row), memory

    return table_scheduler(setup, lambda key: (), choose)
