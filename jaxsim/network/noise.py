"""Random numbers that belong to (key, time, link), whatever the padded size of the cluster.

Counter-based (Threefry-2x32, Salmon et al., SC 2011): the interval's key is the key, the indices of
the link are the counter. One call gives two 32-bit words per link; their top 24 bits make two
uniforms and their low bytes a third, coarse one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from jaxsim.materialise import materialised

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_DOMAIN_COUNTER = 2**32 - 1  # as a destination: no link has it


@materialised
def _words(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Two uint32 per counter (`first`, `second`), as `jax.extend.random.threefry_2x32` gives them.

    All twenty rounds in one loop over the counters: on CPU that function's loop over groups of
    rounds, with its copies, takes several times as long for the few counters of one interval.
    Materialised, since every reader of a number would go through the rounds again.
    """
    k0, k1 = jax.random.key_data(key)
    keys = (k0, k1, k0 ^ k1 ^ jnp.uint32(_PARITY))
    x, y = first + keys[0], second + keys[1]
    for i in range(5):
        for bits in _ROTATIONS[i % 2]:
            x = x + y
            y = ((y << jnp.uint32(bits)) | (y >> jnp.uint32(32 - bits))) ^ x
        x = x + keys[(i + 1) % 3]
        y = y + (keys[(i + 2) % 3] + jnp.uint32(i + 1))
    return x, y


def interval_key(key: Key[Array, ""], t: Int[Array, ""]) -> Key[Array, ""]:
    """The key of interval `t` ([] int32) of the scenario `key`: `jax.random.fold_in`, bit for bit."""
    words = _words(key, jnp.uint32(0), t.astype(jnp.uint32))
    return jax.random.wrap_key_data(jnp.stack(words), impl=jax.random.key_impl(key))


def _uniform(word: Array) -> Array:
    return (word >> jnp.uint32(8)).astype(jnp.float32) * jnp.float32(2.0**-24)


def _link_counters(n_domains: int, block: int) -> tuple[Array, Array]:
    """[K * K] source and destination of every link."""
    index = jnp.arange(n_domains, dtype=jnp.uint32)
    shape = (n_domains, n_domains)
    source = jnp.broadcast_to(index[:, None] + jnp.uint32(block << 24), shape).ravel()
    return source, jnp.broadcast_to(index[None, :], shape).ravel()


def _link_uniforms(a: Array, b: Array, n_domains: int) -> tuple[Array, Array, Array]:
    """Two words per link -> three uniforms."""
    shape = (n_domains, n_domains)
    low = ((a & jnp.uint32(255)) << jnp.uint32(8)) | (b & jnp.uint32(255))
    coarse = low.astype(jnp.float32) * jnp.float32(2.0**-16)
    return _uniform(a).reshape(shape), _uniform(b).reshape(shape), coarse.reshape(shape)


def link_uniforms(
    key: Key[Array, ""], n_domains: int, block: int = 0
) -> tuple[Float[Array, "K K"], Float[Array, "K K"], Float[Array, "K K"]]:
    """Three independent uniforms on [0, 1) per directed link, [K, K] each (the last has 16 bits).

    Another `block` (static, 0 to 255) is another, independent draw from the same key.
    """
    return _link_uniforms(*_words(key, *_link_counters(n_domains, block)), n_domains)


def domain_uniforms(key: Key[Array, ""], n_domains: int) -> Float[Array, " K"]:
    """One uniform on [0, 1) per domain, [K], independent of the links' of the same key."""
    index = jnp.arange(n_domains, dtype=jnp.uint32)
    a, _ = _words(key, index, jnp.full_like(index, _DOMAIN_COUNTER))
    return _uniform(a)


def interval_uniforms(
    key: Key[Array, ""], n_domains: int
) -> tuple[
    tuple[Float[Array, "K K"], Float[Array, "K K"], Float[Array, "K K"]], Float[Array, " K"]
]:
    """`link_uniforms` and `domain_uniforms` of one key in one call, which costs less than two."""
    source, destination = _link_counters(n_domains, 0)
    index = jnp.arange(n_domains, dtype=jnp.uint32)
    first = jnp.concatenate([source, index])
    second = jnp.concatenate([destination, jnp.full_like(index, _DOMAIN_COUNTER)])
    a, b = _words(key, first, second)
    links = n_domains * n_domains
    return _link_uniforms(a[:links], b[:links], n_domains), _uniform(a[links:])


def gaussian(uniform: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Map a uniform with 24 bits to a standard normal number by the inverse distribution."""
    # The half-step keeps the argument inside (-1, 1): erf_inv(-1) is -inf.
    return jnp.float32(2.0**0.5) * jax.lax.erf_inv(2.0 * uniform - 1.0 + 2.0**-24)
