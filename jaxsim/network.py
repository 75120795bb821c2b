"""How WAN links move: one process whose settings cover steady, jittered, drifting and replayed links.

    factor_t = clip(1 + white * u_t + x_t, low, high) * trace_t,    x_t = rho x_{t-1} + noise

u is uniform on [-1, 1], x is an Ornstein-Uhlenbeck path sampled at the interval (Gaussian, standard
deviation `ou_sigma`, correlation time `ou_tau` intervals). Noise depends on (scenario key, t, link)
alone: neither actions nor padding change it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxsim.noise import gaussian, link_uniforms


@struct.dataclass
class NetworkProcess:
    """Traced settings; the length of the trace is static."""

    white_amplitude: Array  # [] uniform jitter, 0.3 = +-30 %
    latency_amplitude: Array  # [] uniform jitter of the round trip
    ou_sigma: Array  # [] standard deviation of the drift
    ou_tau: Array  # [] [intervals] correlation time of the drift
    low: Array  # [] smallest factor
    high: Array  # [] largest factor
    trace: Array  # [R, K, K] factor relative to base, replayed cyclically; ones = none
    trace_offset: Array  # [] int32, where the replay starts


@struct.dataclass
class NetworkState:
    """What the process must remember."""

    drift: Array  # [K, K] the Ornstein-Uhlenbeck path


def network_process(
    n_domains: int,
    white: float = 0.0,
    latency: float = 0.0,
    ou_sigma: float = 0.0,
    ou_tau: float = 1.0,
    low: float = 0.05,
    high: float = 3.0,
    trace: Array | None = None,
    trace_offset: int = 0,
) -> NetworkProcess:
    """Build settings from plain numbers; everything 0 is a steady network."""
    ones = jnp.ones((1, n_domains, n_domains), jnp.float32)
    return NetworkProcess(
        white_amplitude=jnp.float32(white),
        latency_amplitude=jnp.float32(latency),
        ou_sigma=jnp.float32(ou_sigma),
        ou_tau=jnp.float32(ou_tau),
        low=jnp.float32(low),
        high=jnp.float32(high),
        trace=ones if trace is None else trace,
        trace_offset=jnp.int32(trace_offset),
    )


def init_network(process: NetworkProcess, key: Array) -> NetworkState:
    """Draw the drift from its stationary distribution."""
    first, _, _ = link_uniforms(key, process.trace.shape[-1])
    return NetworkState(drift=process.ou_sigma * gaussian(first))


def step_network(
    process: NetworkProcess, state: NetworkState, key: Array, t: Array
) -> tuple[NetworkState, Array, Array]:
    """Return the next state, the bandwidth factor [K, K] and the round-trip factor [K, K].

    `key` is the interval's own key, `t` (int32) the row of the trace.
    """
    white, second, latency = link_uniforms(key, process.trace.shape[-1])
    rho = jnp.exp(-1.0 / process.ou_tau)
    innovation = process.ou_sigma * jnp.sqrt(1.0 - rho * rho) * gaussian(second)
    drift = rho * state.drift + innovation
    factor = 1.0 + process.white_amplitude * (2.0 * white - 1.0) + drift
    row = jax.lax.rem(t + process.trace_offset, jnp.int32(process.trace.shape[0]))
    replay = jax.lax.dynamic_index_in_dim(process.trace, row, keepdims=False)
    bandwidth_factor = jnp.clip(factor, process.low, process.high) * replay
    rtt_factor = 1.0 + process.latency_amplitude * (2.0 * latency - 1.0)
    return NetworkState(drift=drift), bandwidth_factor, rtt_factor
