"""What a scheduler remembers as plain numbers, and whose they are."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def as_numbers(leaf: jax.Array) -> np.ndarray:
    """A leaf of a pytree on the host; a random key as the numbers that it is made of."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def from_numbers(value: np.ndarray, leaf: jax.Array) -> jax.Array:
    """What `as_numbers` gave for a leaf like `leaf`, back as such a leaf."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(leaf))
    return jnp.asarray(value)


def digest(tree: Any, name: str) -> str:
    """SHA-256 of a name and of all numbers in a pytree."""
    found = hashlib.sha256(name.encode())
    for leaf in jax.tree.leaves(tree):
        array = as_numbers(jnp.asarray(leaf))
        found.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return found.hexdigest()
