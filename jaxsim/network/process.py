"""How WAN links move: one process whose settings cover steady, jittered, drifting, heavy-tailed,
regime-switching, failing and replayed links.

    factor_t = clip(body_t, low, high) * regime_t * outage_t * trace_t

body: without a `tail`, 1 + white * u_t + x_t: u uniform on [-1, 1], x an Ornstein-Uhlenbeck path
sampled at the interval (Gaussian, standard deviation `ou_sigma`, correlation time `ou_tau`). With a
`tail`, the same two draws make a Gaussian z_t of unit variance, which `heavy_tail` maps to a factor
whose dips and peaks have their own scale and weight of tail: Tukey's h transform with one h a side
(Hoaglin, "Summarizing shape numerically: the g-and-h distributions", 1985; as a distribution:
Goerg, "The Lambert way to Gaussianize heavy-tailed data", 2015).

regime, outage: a Markov chain of two states per link, the second of which multiplies the factor by
its `level`. Gilbert, "Capacity of a burst-noise channel", 1960; Elliott, "Estimates of error rates
for codes on burst-noise channels", 1963. The two differ in their settings alone: a regime lasts and
leaves much of the bandwidth, an outage is short and leaves next to none.

The round trip has a body of its own (`latency_amplitude`, or `rtt_tail`) without memory, and takes
part in the states: congestion and another route show in both.

A part that is None costs nothing, for it is not compiled. Settings are [] for all links or [K, K]
for each. Noise depends on (scenario key, t, link) alone: neither actions nor padding change it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, Key, Real

from jaxsim.network.noise import gaussian, link_uniforms
from jaxsim.pytree import Pytree
from jaxsim.trees import as_leaf

STATE_BLOCK = 1  # of link_uniforms, for the two chains
RTT_LIMITS = (0.1, 20.0)  # of the round trip's factor
FARTHEST = 1e9  # times slower or faster; a link of bandwidth 0 would never finish a transfer


class HeavyTail(Pytree):
    """A factor from a standard normal z: median `centre`, each side with its own scale and tail."""

    centre: Float[Array, "..."]  # factor at z = 0
    # [1] standard deviation of the log of the factor, below the median
    dip_scale: Float[Array, "..."]
    dip_tail: Float[Array, "..."]  # h of the dips, 0 = log-normal, larger = heavier, 0 to 1
    peak_scale: Float[Array, "..."]  # the same above the median
    peak_tail: Float[Array, "..."]
    # share of the variance of z that has no memory, 0 to 1; the rest has `ou_tau`
    white: Float[Array, "..."]


class TwoState(Pytree):
    """A Markov chain between the normal state of a link (factors 1) and another."""

    level: Float[Array, "..."]  # factor of the bandwidth in the other state, > 0
    rtt: Float[Array, "..."]  # factor of the round trip in it, > 0
    share: Float[Array, "..."]  # of the time in it, 0 to < 1
    stay: Float[Array, "..."]  # [intervals] mean time in it before the link returns


class NetworkProcess(Pytree):
    """Traced settings; which parts there are, and the length of the trace, is static."""

    white_amplitude: Float[Array, "..."]  # uniform jitter, 0.3 = +-30 %
    latency_amplitude: Float[Array, "..."]  # uniform jitter of the round trip
    ou_sigma: Float[Array, "..."]  # standard deviation of the drift; 1 with a tail
    ou_tau: Float[Array, "..."]  # [intervals] correlation time of the drift
    low: Float[Array, "*batch"]  # smallest factor of the body
    high: Float[Array, "*batch"]  # largest factor of the body
    trace: Float[Array, "*batch R K K"]  # factor relative to base, replayed cyclically; ones = none
    trace_offset: Int[Array, "*batch"]  # where the replay starts
    tail: HeavyTail | None = None
    rtt_tail: HeavyTail | None = None  # instead of latency_amplitude; `white` is not used
    regime: TwoState | None = None
    outage: TwoState | None = None


class NetworkState(Pytree):
    """What the process must remember."""

    drift: Float[Array, "*batch K K"]  # the Ornstein-Uhlenbeck path
    regime: Bool[Array, "*batch K K"] | None = None  # in the other state
    outage: Bool[Array, "*batch K K"] | None = None


def network_process(
    n_domains: int,
    white: float | Real[Array | np.ndarray, "..."] = 0.0,
    latency: float | Real[Array | np.ndarray, "..."] = 0.0,
    ou_sigma: float | Real[Array | np.ndarray, "..."] = 0.0,
    ou_tau: float | Real[Array | np.ndarray, "..."] = 1.0,
    low: float = 0.05,
    high: float = 3.0,
    trace: Float[Array | np.ndarray, "R K K"] | None = None,
    trace_offset: int = 0,
    tail: HeavyTail | None = None,
    rtt_tail: HeavyTail | None = None,
    regime: TwoState | None = None,
    outage: TwoState | None = None,
) -> NetworkProcess:
    """Build settings from plain numbers; everything 0 is a steady network.

    A `tail` takes the place of `white` and `ou_sigma`, an `rtt_tail` that of `latency`.
    """
    return NetworkProcess(
        white_amplitude=as_leaf(white),
        latency_amplitude=as_leaf(latency),
        ou_sigma=as_leaf(ou_sigma if tail is None else 1.0),
        ou_tau=as_leaf(ou_tau),
        low=as_leaf(low),
        high=as_leaf(high),
        trace=as_leaf(np.ones((1, n_domains, n_domains)) if trace is None else trace),
        trace_offset=as_leaf(trace_offset, np.int32),
        tail=jax.tree.map(as_leaf, tail),
        rtt_tail=jax.tree.map(as_leaf, rtt_tail),
        regime=jax.tree.map(as_leaf, regime),
        outage=jax.tree.map(as_leaf, outage),
    )


def stretched(process: NetworkProcess, by: float) -> NetworkProcess:
    """The process with bandwidths that move `by` times as far: the deviations of a body without a tail,
    and else the logarithm of the factor, what it replays included, up to FARTHEST. Limits of the body,
    times spent in states and round trips stay. On the host; `by` > 0, and 1 changes nothing."""
    if by == 1:
        return process
    tail, factor = process.tail, np.float32(by)

    def farther(x):
        most = FARTHEST ** (1.0 / by)
        return np.clip(x, np.float32(1.0 / most), np.float32(most)) ** factor

    def level(chain):
        return None if chain is None else chain.replace(level=farther(chain.level))

    if tail is not None:
        tail = tail.replace(
            centre=tail.centre**factor,
            dip_scale=tail.dip_scale * factor,
            peak_scale=tail.peak_scale * factor,
        )
    return process.replace(
        white_amplitude=process.white_amplitude * factor,
        ou_sigma=process.ou_sigma * factor if tail is None else process.ou_sigma,
        trace=farther(process.trace),
        tail=tail,
        regime=level(process.regime),
        outage=level(process.outage),
    )


def heavy_tail(
    z: Float[Array, "..."],
    tail: HeavyTail,
    low: Float[Array | np.ndarray, ""],
    high: Float[Array | np.ndarray, ""],
) -> Float[Array, "..."]:
    """Map standard normal numbers to factors between `low` and `high`, monotone in z."""
    dips = z < 0
    scale = jnp.where(dips, tail.dip_scale, tail.peak_scale)
    weight = jnp.where(dips, tail.dip_tail, tail.peak_tail)
    log_factor = scale * z * jnp.exp(0.5 * weight * z * z) + jnp.log(tail.centre)
    # Limited as a logarithm: exp would overflow, and its gradient with it.
    return jnp.exp(jnp.clip(log_factor, jnp.log(low), jnp.log(high)))


def init_network(process: NetworkProcess, key: Key[Array, ""]) -> NetworkState:
    """Draw the drift and the states from their stationary distributions."""
    n_domains = process.trace.shape[-1]
    first, _, _ = link_uniforms(key, n_domains)
    drift = process.ou_sigma * gaussian(first)
    if process.regime is None and process.outage is None:
        return NetworkState(drift=drift)
    uniforms = link_uniforms(key, n_domains, STATE_BLOCK)
    regime, outage = (
        None if chain is None else uniform < chain.share
        for chain, uniform in zip((process.regime, process.outage), uniforms, strict=False)
    )
    return NetworkState(drift=drift, regime=regime, outage=outage)


def step_network(
    process: NetworkProcess,
    state: NetworkState,
    key: Key[Array, ""],
    t: Int[Array, ""],
    uniforms: tuple[Float[Array, "K K"], Float[Array, "K K"], Float[Array, "K K"]] | None = None,
) -> tuple[NetworkState, Float[Array, "K K"], Float[Array, "K K"]]:
    """Return the next state, the bandwidth factor [K, K] and the round-trip factor [K, K].

    `key` is the interval's own key, `t` (int32) the row of the trace; `uniforms` are the key's
    `link_uniforms` where they are drawn already.
    """
    if uniforms is None:
        uniforms = link_uniforms(key, process.trace.shape[-1])
    white, second, latency = uniforms
    rho = jnp.exp(-1.0 / process.ou_tau)
    innovation = process.ou_sigma * jnp.sqrt(1.0 - rho * rho) * gaussian(second)
    drift = rho * state.drift + innovation
    bandwidth_factor = _body(process, drift, white)
    rtt_factor = _rtt_body(process, latency)
    row = jax.lax.rem(t + process.trace_offset, jnp.int32(process.trace.shape[0]))
    replay = jax.lax.dynamic_index_in_dim(process.trace, row, keepdims=False)
    bandwidth_factor = bandwidth_factor * replay
    state = state.replace(drift=drift)
    if process.regime is None and process.outage is None:
        return state, bandwidth_factor, rtt_factor
    first, second, _ = link_uniforms(key, process.trace.shape[-1], STATE_BLOCK)
    if process.regime is not None:
        regime = _next(process.regime, state.regime, first)  # pyright: ignore[reportArgumentType]
        state = state.replace(regime=regime)
        bandwidth_factor *= jnp.where(regime, process.regime.level, 1.0)
        rtt_factor *= jnp.where(regime, process.regime.rtt, 1.0)
    if process.outage is not None:
        outage = _next(process.outage, state.outage, second)  # pyright: ignore[reportArgumentType]
        state = state.replace(outage=outage)
        bandwidth_factor *= jnp.where(outage, process.outage.level, 1.0)
        rtt_factor *= jnp.where(outage, process.outage.rtt, 1.0)
    return state, bandwidth_factor, rtt_factor


def _body(process: NetworkProcess, drift: Array, white: Array) -> Array:
    if process.tail is None:
        factor = 1.0 + process.white_amplitude * (2.0 * white - 1.0) + drift
        return jnp.clip(factor, process.low, process.high)
    share = process.tail.white
    z = jnp.sqrt(1.0 - share) * drift + jnp.sqrt(share) * gaussian(white)
    return heavy_tail(z, process.tail, process.low, process.high)


def _rtt_body(process: NetworkProcess, uniform: Array) -> Array:
    if process.rtt_tail is None:
        return 1.0 + process.latency_amplitude * (2.0 * uniform - 1.0)
    low, high = (jnp.float32(x) for x in RTT_LIMITS)
    # Half a step of the 16 bits: the lowest number must not look like one of 24 bits.
    return heavy_tail(gaussian(uniform + 2.0**-17), process.rtt_tail, low, high)


def _memory(chain: TwoState) -> Array:
    """The chain's lag-1 autocorrelation: a chain in continuous time, seen once an interval."""
    return jnp.exp(-1.0 / jnp.maximum((1.0 - chain.share) * chain.stay, 1e-3))


def _next(chain: TwoState, state: Array, uniform: Array) -> Array:
    memory = _memory(chain)
    enter = chain.share * (1.0 - memory)
    return uniform < jnp.where(state, enter + memory, enter)
