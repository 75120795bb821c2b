"""What links come to on average, from the formulas of their processes."""

import jax
import jax.numpy as jnp

from jaxsim.network.process import heavy_tail


def mean_factor(process):
    """Stationary mean of the bandwidth factor, [] or [K, K], a trace left out.

    Without a tail it is that of a body which its limits do not cut: 1 before the states.
    """
    mean = jnp.float32(1.0)
    if process.tail is not None:
        z = jnp.linspace(-6.0, 6.0, 481, dtype=jnp.float32)
        weight = jnp.exp(-0.5 * z * z)
        weight = weight / jnp.sum(weight)

        def add(total, at):
            point, mass = at
            return total + mass * heavy_tail(point, process.tail, process.low, process.high), None

        start = jnp.zeros(jnp.broadcast_shapes(*map(jnp.shape, jax.tree.leaves(process.tail))))
        mean, _ = jax.lax.scan(add, start.astype(jnp.float32), (z, weight))
    for chain in (process.regime, process.outage):
        if chain is not None:
            mean = mean * (1.0 + chain.share * (chain.level - 1.0))
    return mean
