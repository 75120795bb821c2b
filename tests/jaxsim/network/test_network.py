"""Statistics of the link processes, and that noise belongs to links and not to array sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsim.network.noise import domain_uniforms, gaussian, interval_uniforms, link_uniforms
from jaxsim.network.process import init_network, network_process, step_network

STEPS = 4096


@jax.jit
def factors(process, key):
    """[T, K, K] bandwidth and round-trip factors."""

    def body(state, t):
        state, bandwidth, rtt = step_network(process, state, jax.random.fold_in(key, t), t)
        return state, (bandwidth, rtt)

    _, out = jax.lax.scan(body, init_network(process, key), jnp.arange(STEPS))
    return out


def play(key=0, **settings):
    return [np.asarray(x) for x in factors(network_process(4, **settings), jax.random.key(key))]


def test_uniform_jitter_keeps_its_bound_and_fills_it():
    bandwidth, rtt = play(white=0.3, latency=0.1)
    for factor, bound in ((bandwidth, 0.3), (rtt, 0.1)):
        assert np.all(np.abs(factor - 1) <= bound * (1 + 1e-5))
        assert np.all(np.abs(factor - 1).max(axis=0) > 0.99 * bound)
        np.testing.assert_allclose(factor.mean(axis=0), 1, atol=0.1 * bound)
        np.testing.assert_allclose(factor.std(axis=0), bound / 3**0.5, rtol=0.05)


def test_a_steady_network_is_steady():
    bandwidth, rtt = play()
    assert np.all(bandwidth == 1) and np.all(rtt == 1)


@pytest.mark.parametrize("tau", [2.0, 20.0])
def test_drift_has_its_deviation_and_autocorrelation(tau):
    bandwidth, _ = play(ou_sigma=0.1, ou_tau=tau, low=-10.0, high=10.0)
    x = bandwidth.reshape(STEPS, 16) - 1
    np.testing.assert_allclose(x.std(), 0.1, rtol=0.06)
    for lag in (1, 2, round(tau)):
        correlation = np.mean(x[lag:] * x[:-lag]) / np.mean(x**2)
        np.testing.assert_allclose(correlation, np.exp(-lag / tau), atol=0.05)
    # Stationary from the first interval on: the spread over links and seeds is the same.
    first = np.concatenate([
        play(k, ou_sigma=0.1, ou_tau=tau, low=-10.0, high=10.0)[0][0].ravel() for k in range(20)
    ]) - 1  # fmt: skip
    np.testing.assert_allclose(first.std(), 0.1, rtol=0.15)


def test_links_move_independently():
    bandwidth, rtt = play(white=0.3, latency=0.3)
    both = np.concatenate([bandwidth.reshape(STEPS, 16), rtt.reshape(STEPS, 16)], axis=1)
    correlation = np.corrcoef(both.T) - np.eye(32)
    assert np.abs(correlation).max() < 5 / STEPS**0.5


def test_white_noise_and_drift_are_independent():
    white, _ = play(white=0.3)
    drift, _ = play(ou_sigma=0.1, ou_tau=1e-3, low=-10.0, high=10.0)
    for link in ((0, 1), (2, 3)):
        assert abs(np.corrcoef(white[:, *link], drift[:, *link])[0, 1]) < 5 / STEPS**0.5


def test_factors_stay_within_their_limits():
    bandwidth, _ = play(ou_sigma=2.0, ou_tau=3.0, low=0.05, high=3.0)
    assert bandwidth.min() == np.float32(0.05) and bandwidth.max() == np.float32(3.0)


def test_a_trace_is_replayed_exactly_and_cyclically():
    trace = np.random.default_rng(0).uniform(0.5, 2, (7, 4, 4)).astype(np.float32)
    bandwidth, _ = play(trace=jnp.asarray(trace), trace_offset=3)
    expected = trace[(np.arange(STEPS) + 3) % 7]
    np.testing.assert_array_equal(bandwidth, expected)


def test_the_scenario_decides_the_world():
    assert np.array_equal(play(5, white=0.3)[0], play(5, white=0.3)[0])
    assert not np.array_equal(play(5, white=0.3)[0], play(6, white=0.3)[0])


def test_noise_of_a_link_does_not_know_the_size_of_the_cluster():
    for seed in range(3):
        key = jax.random.key(seed)
        for small, large in zip(link_uniforms(key, 4), link_uniforms(key, 9), strict=True):
            np.testing.assert_array_equal(small, large[:4, :4])
            assert len(np.unique(large)) == 81
        np.testing.assert_array_equal(domain_uniforms(key, 4), domain_uniforms(key, 9)[:4])


def test_gaussian_is_finite_at_both_ends_and_inverts_the_distribution():
    ends = gaussian(jnp.array([0.0, 1.0 - 2.0**-24], jnp.float32))
    assert np.all(np.isfinite(ends)) and ends[0] < -5 and ends[1] > 5
    quantiles = gaussian(jnp.array([0.02275, 0.15866, 0.5, 0.84134, 0.97725], jnp.float32))
    np.testing.assert_allclose(quantiles, [-2, -1, 0, 1, 2], atol=1e-3)


def test_one_call_draws_what_two_draw():
    key = jax.random.key(12)
    links, domains = interval_uniforms(key, 5)
    for got, expected in zip(links, link_uniforms(key, 5), strict=True):
        np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(domains, domain_uniforms(key, 5))
