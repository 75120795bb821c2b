"""Random numbers that belong to (key, time, link), whatever the padded size of the cluster.

Counter-based (Threefry-2x32, Salmon et al., SC 2011): the interval's key is the key, the indices of
the link are the counter. One call gives two 32-bit words per link; their top 24 bits make two
uniforms and their low bytes a third, coarse one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.random import threefry_2x32

_DOMAIN_COUNTER = 2**32 - 1  # as a destination: no link has it


def _words(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    bits = threefry_2x32(jax.random.key_data(key), jnp.concatenate([first, second]))
    a, b = jnp.split(bits, 2)
    return a, b


def _uniform(word: Array) -> Array:
    return (word >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2.0**-24)


def link_uniforms(key: Array, n_domains: int, block: int = 0) -> tuple[Array, Array, Array]:
    """Three independent uniforms on [0, 1) per directed link, [K, K] each (the last has 16 bits).

    Another `block` (static, 0 to 255) is another, independent draw from the same key.
    """
    index = jnp.arange(n_domains, dtype=jnp.uint32)
    shape = (n_domains, n_domains)
    source = jnp.broadcast_to(index[:, None] + jnp.uint32(block << 24), shape).ravel()
    destination = jnp.broadcast_to(index[None, :], shape).ravel()
    a, b = _words(key, source, destination)
    low = ((a & jnp.uint32(255)) << jnp.uint32(8)) | (b & jnp.uint32(255))
    coarse = low.astype(jnp.float32) * jnp.float32(2.0**-16)
    return _uniform(a).reshape(shape), _uniform(b).reshape(shape), coarse.reshape(shape)


def domain_uniforms(key: Array, n_domains: int) -> Array:
    """One uniform on [0, 1) per domain, [K], independent of the links' of the same key."""
    index = jnp.arange(n_domains, dtype=jnp.uint32)
    a, _ = _words(key, index, jnp.full_like(index, _DOMAIN_COUNTER))
    return _uniform(a)


def gaussian(uniform: Array) -> Array:
    """Map a uniform with 24 bits to a standard normal number by the inverse distribution."""
    # The half-step keeps the argument inside (-1, 1): erf_inv(-1) is -inf.
    return jnp.float32(2.0**0.5) * jax.lax.erf_inv(2.0 * uniform - 1.0 + 2.0**-24)
