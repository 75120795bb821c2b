"""Heavy tails, regimes and outages: statistics as stated, whatever the settings."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.link_means import mean_factor
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.network.process import (
    HeavyTail,
    TwoState,
    heavy_tail,
    init_network,
    network_process,
    step_network,
    stretched,
)
from jaxsim.trees import stack

STEPS = 4096
K = 4
LIMITS = {"low": 0.01, "high": 4.0}


@jax.jit
def factors(process, key):
    """[T, K, K] bandwidth and round-trip factors."""

    def body(state, t):
        state, bandwidth, rtt = step_network(process, state, jax.random.fold_in(key, t), t)
        return state, (bandwidth, rtt)

    _, out = jax.lax.scan(body, init_network(process, key), jnp.arange(STEPS))
    return out


def play(key=0, n=K, **changes):
    process = network_process(n, **{**LIMITS, **changes})
    return [np.asarray(x) for x in factors(process, jax.random.key(key))]


def tail(dip=0.2, dip_tail=0.0, peak=0.1, peak_tail=0.0, white=1.0, centre=1.0):
    return HeavyTail(centre, dip, dip_tail, peak, peak_tail, white)


scales = st.floats(0.0, 1.0)
tails = st.builds(
    tail, scales, st.floats(0.0, 1.0), scales, st.floats(0.0, 1.0), st.floats(0.0, 1.0),
    st.floats(0.5, 1.5),
)  # fmt: skip
chains = st.builds(
    TwoState,
    level=st.floats(0.01, 1.5),
    rtt=st.floats(0.5, 5.0),
    share=st.floats(0.0, 0.6),
    stay=st.floats(1.0, 20.0),
)


def test_processes_of_before_draw_the_same_numbers():
    """What was published with uniform jitter and drift must not move: values of the first release."""

    def some(**changes):
        process, key = network_process(3, **changes), jax.random.key(7)
        state, out = init_network(process, key), []
        for t in range(3):
            interval = jax.random.fold_in(key, t)
            state, *both = step_network(process, state, interval, jnp.int32(t))
            out.append(both)
        return [float(out[0][0][0, 1]), float(out[2][0][2, 0]), float(out[1][1][1, 2])]

    white = some(white=0.3, latency=0.1)
    np.testing.assert_allclose(white, [0.77452540, 1.03838646, 0.99514467], rtol=1e-6)
    drift = some(white=0.1, latency=0.1, ou_sigma=0.3, ou_tau=20.0)
    np.testing.assert_allclose(drift, [0.45834094, 1.13756251, 0.99514467], rtol=1e-6)


@settings(deadline=None, max_examples=30)
@given(tails, tails, chains, chains, st.floats(0.01, 100.0), st.integers(0, 2**31 - 1))
def test_factors_are_positive_and_finite(body, rtt_body, regime, outage, tau, seed):
    bandwidth, rtt = play(
        seed, tail=body, rtt_tail=rtt_body, regime=regime, outage=outage, ou_tau=tau
    )
    least = LIMITS["low"] * min(1.0, regime.level) * min(1.0, outage.level)
    assert np.all(np.isfinite(bandwidth)) and bandwidth.min() >= 0.999 * least > 0
    assert np.all(np.isfinite(rtt)) and rtt.min() > 0


BLOCKS = 32


@settings(deadline=None, max_examples=20)
@given(tails, chains, st.integers(0, 1000))
def test_the_mean_is_what_is_stated(body, regime, seed):
    body = body.replace(white=1.0)
    regime = regime.replace(stay=min(regime.stay, 4.0))
    process = network_process(K, **LIMITS, tail=body, regime=regime)
    bandwidth, _ = play(seed, tail=body, regime=regime)
    # Blocks longer than any memory; so many that five standard errors are sure.
    samples = bandwidth.reshape(BLOCKS, -1)
    sure = 5.0 * samples.mean(axis=1).std(ddof=1) / BLOCKS**0.5
    np.testing.assert_allclose(bandwidth.mean(), mean_factor(process), atol=max(sure, 0.01))


@settings(deadline=None, max_examples=20)
@given(tails, chains, chains, st.floats(0.25, 3.0), st.integers(0, 1000))
def test_stretched_the_logarithm_of_every_factor_is_so_many_times_its_own(
    body, regime, outage, by, seed
):
    """Of tails, states and replays alike; what the limits do not cut."""
    regime, outage = (chain.replace(share=min(chain.share, 0.5)) for chain in (regime, outage))
    body = body.replace(dip_tail=0.0, peak_tail=0.0)
    replay = np.exp(np.random.default_rng(seed).normal(0.0, 0.3, (5, K, K)))
    parts = {"tail": body, "regime": regime, "outage": outage, "trace": replay}
    process = network_process(K, low=1e-6, high=1e6, **parts)
    key = jax.random.key(seed)
    (plain, rtt), (moved, same) = factors(process, key), factors(stretched(process, by), key)
    np.testing.assert_allclose(np.log(moved), by * np.log(plain), atol=2e-3)
    np.testing.assert_array_equal(rtt, same)


def test_stretched_deviations_of_jitter_and_drift_are_so_many_times_their_own():
    process = network_process(K, white=0.1, latency=0.2, ou_sigma=0.1, ou_tau=20.0, low=-9, high=9)
    key = jax.random.key(3)
    (plain, rtt), (moved, same) = factors(process, key), factors(stretched(process, 2.0), key)
    np.testing.assert_allclose(moved - 1.0, 2.0 * (plain - 1.0), atol=1e-5)
    np.testing.assert_array_equal(rtt, same)
    assert stretched(process, 1.0) is process


def test_stretched_a_link_that_nearly_stands_still_does_not_stand_still():
    nearly = np.array([[[1e-9, 1e6], [1.0, 0.5]]])
    moved = stretched(network_process(2, trace=nearly), 10.0).trace
    np.testing.assert_allclose(moved, [[[1e-9, 1e9], [1.0, 0.5**10]]], rtol=1e-4)


def test_a_tail_has_its_median_scales_and_skew():
    bandwidth, _ = play(tail=tail(dip=0.3, peak=0.1, centre=0.9))
    logs = np.log(bandwidth)
    quantiles = np.quantile(logs, [0.15866, 0.5, 0.84134])
    np.testing.assert_allclose(quantiles, np.log(0.9) + np.array([-0.3, 0.0, 0.1]), atol=0.01)
    heavy, _ = play(tail=tail(dip=0.3, dip_tail=0.3, peak=0.1, centre=0.9))
    z = 2.326
    expected = np.log(0.9) - 0.3 * z * np.exp(0.15 * z**2)
    np.testing.assert_allclose(np.quantile(np.log(heavy), 0.01), expected, rtol=0.05)
    np.testing.assert_array_equal(heavy >= 0.9, bandwidth >= 0.9)


@settings(deadline=None, max_examples=50)
@given(tails, st.lists(st.floats(-6.0, 6.0, width=32), min_size=2, max_size=20))
def test_the_map_is_monotone_and_its_gradients_are_finite(body, points):
    z = jnp.sort(jnp.asarray(points, jnp.float32))
    low, high = jnp.float32(0.01), jnp.float32(4.0)
    body = jax.tree.map(jnp.float32, body)
    mapped = np.asarray(heavy_tail(z, body, low, high))
    assert np.all(np.diff(mapped) >= -1e-6)

    def total(body, z):
        return jnp.sum(heavy_tail(z, body, low, high))

    for gradient in jax.tree.leaves(jax.grad(total, argnums=(0, 1))(body, z)):
        assert np.all(np.isfinite(gradient))


def test_gradients_of_a_whole_record_are_finite():
    settings = network_process(
        K, **LIMITS, tail=tail(0.4, 1.0, 0.3, 1.0, 0.5), rtt_tail=tail(), ou_tau=5.0,
        regime=TwoState(0.5, 2.0, 0.2, 5.0), outage=TwoState(0.01, 1.0, 0.05, 2.0),
    )  # fmt: skip
    floats, treedef = jax.tree.flatten(settings)
    real = [i for i, x in enumerate(floats) if jnp.issubdtype(x.dtype, jnp.floating)]

    def total(values):
        changed = list(floats)
        for i, value in zip(real, values, strict=True):
            changed[i] = value
        bandwidth, rtt = factors(jax.tree.unflatten(treedef, changed), jax.random.key(0))
        return jnp.mean(bandwidth) + jnp.mean(rtt)

    gradients = jax.grad(total)([floats[i] for i in real])
    assert all(np.all(np.isfinite(g)) for g in gradients)
    assert any(np.any(g != 0) for g in gradients)


@pytest.mark.parametrize(("white", "tau"), [(0.0, 10.0), (0.4, 30.0), (1.0, 10.0)])
def test_memory_of_the_tail_is_as_set(white, tau):
    bandwidth, _ = play(tail=tail(0.1, 0.0, 0.1, 0.0, white), ou_tau=tau)
    x = np.log(bandwidth).reshape(STEPS, -1)
    for lag in (1, round(tau)):
        correlation = np.mean(x[lag:] * x[:-lag]) / np.mean(x**2)
        np.testing.assert_allclose(correlation, (1 - white) * np.exp(-lag / tau), atol=0.06)


@settings(deadline=None, max_examples=10)
@given(st.floats(0.05, 0.6), st.floats(3.0, 20.0), st.integers(0, 1000))
def test_states_have_their_share_stay_and_round_trip(share, stay, seed):
    bandwidth, rtt = play(seed, n=8, regime=TwoState(0.5, 3.0, share, stay))
    other = bandwidth.reshape(STEPS, -1) == 0.5
    np.testing.assert_array_equal(other, rtt.reshape(STEPS, -1) == 3.0)
    np.testing.assert_allclose(other.mean(), share, atol=0.05)
    np.testing.assert_allclose(other[0].mean(), share, atol=0.3)
    leaves = (other[:-1] & ~other[1:]).sum() / other[:-1].sum()
    # The chain lives in continuous time: it may leave and come back within an interval.
    memory = np.exp(-1.0 / ((1.0 - share) * stay))
    np.testing.assert_allclose(leaves, (1.0 - share) * (1.0 - memory), rtol=0.15)
    x = other - share
    correlation = np.mean(x[1:] * x[:-1]) / np.mean(x**2)
    np.testing.assert_allclose(correlation, memory, atol=0.05)


def test_regime_outage_and_body_are_independent():
    settings = {
        "tail": tail(0.1, 0.0, 0.1),
        "regime": TwoState(0.5, 3.0, 0.3, 4.0),
        "outage": TwoState(0.1, 5.0, 0.3, 4.0),
    }
    bandwidth, rtt = play(**settings)
    body, _ = play(tail=settings["tail"])
    columns = np.stack([
        np.isin(np.round(rtt), (3, 15)), np.isin(np.round(rtt), (5, 15)), np.log(body)
    ]).reshape(3, -1)  # fmt: skip
    assert np.abs(np.corrcoef(columns) - np.eye(3)).max() < 0.03
    states = np.where(columns[0], 0.5, 1.0) * np.where(columns[1], 0.1, 1.0)
    np.testing.assert_allclose(bandwidth.ravel(), body.ravel() * states, rtol=1e-5)


@settings(deadline=None, max_examples=8)
@given(tails, chains, chains, st.integers(0, 1000))
def test_padding_changes_no_link(body, regime, outage, seed):
    parts = {"tail": body, "rtt_tail": body, "regime": regime, "outage": outage}
    small, large = play(seed, n=3, **parts), play(seed, n=7, **parts)
    for a, b in zip(small, large, strict=True):
        np.testing.assert_array_equal(a, b[:, :3, :3])


def test_settings_can_differ_by_link_and_be_mapped_over():
    level = np.linspace(0.1, 0.9, K * K).reshape(K, K).astype(np.float32)
    bandwidth, _ = play(regime=TwoState(level, 1.0, 0.5, 3.0))
    np.testing.assert_allclose(bandwidth.min(axis=0), level, rtol=1e-6)
    batch = [network_process(K, regime=TwoState(x, 1.0, 0.5, 3.0)) for x in (0.2, 0.7)]
    stacked = stack(batch)
    out, _ = jax.vmap(factors, in_axes=(0, None))(stacked, jax.random.key(0))
    np.testing.assert_allclose(np.asarray(out).min(axis=(1, 2, 3)), [0.2, 0.7], rtol=1e-6)


def test_what_is_not_used_is_not_compiled():
    def operations(**parts):
        process, key = network_process(K, **parts), jax.random.key(0)
        state = init_network(process, key)
        text = jax.jit(step_network).lower(process, state, key, jnp.int32(0)).as_text()
        return text.count("\n")

    plain = operations(white=0.1, ou_sigma=0.1)
    assert operations(white=0.1, ou_sigma=0.1, regime=TwoState(0.5, 1.0, 0.1, 3.0)) > plain
    state = init_network(network_process(K), jax.random.key(0))
    assert len(jax.tree.leaves(state)) == 1 and state.regime is None
