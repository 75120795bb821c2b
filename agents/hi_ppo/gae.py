"""Generalised advantage estimation on one time scale; the upper one is semi-Markov."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax import Array


def advantages(
    rewards: Array, values: Array, last_value: Array, discounts: Array, trace_decay: float
) -> tuple[Array, Array]:
    """Return advantages [T, B] and value targets [T, B] (Schulman et al. 2016, eq. 16).

    rewards [T, B]; values [T, B] before each decision; last_value [B] after the last; discounts
    [T, B] of what follows each decision: gamma to the power of the intervals until the next one
    (Bradtke and Duff 1994), 0 where the episode terminated there.
    """
    chex.assert_rank([rewards, values, discounts], 2)
    chex.assert_equal_shape([rewards, values, discounts])
    following = jnp.concatenate([values[1:], last_value[None]])
    errors = rewards + discounts * following - values

    def backward(later, x):
        error, discount = x
        now = error + discount * trace_decay * later
        return now, now

    _, out = jax.lax.scan(backward, jnp.zeros_like(last_value), (errors, discounts), reverse=True)
    return out, out + values
