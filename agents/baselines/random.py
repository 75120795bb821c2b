"""A legal plan at random: the floor that any decision must beat."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from agents.protocol import EvaluatedTable, TableScheduler


class Random(TableScheduler):
    """Draw a new row with probability 1 / mean_stay per interval, uniformly among those that run.

    Attributes:
        mean_stay: [] intervals between two draws
    """

    mean_stay: Float[Array, "*batch"] | float = 20.0

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Any]:
        when, which = jax.random.split(key)
        legal = jnp.where(seen.now.rate > 0, 0.0, jnp.finfo(jnp.float32).min)
        row = jax.random.categorical(which, legal).astype(jnp.int32)
        move = seen.idle | (jax.random.uniform(when) < 1.0 / self.mean_stay)
        return jnp.where(move, row, seen.row), memory
