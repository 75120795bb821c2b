"""Hi-PPO's memory of the measured rates, and what a move gains, by hand."""

import jax
import jax.numpy as jnp
import numpy as np

from agents.hi_ppo.features import (
    Measurement,
    gains,
    init_statistics,
    make_reference,
    update_statistics,
)

BASE = np.array([1.0, 2.0])
update = jax.jit(update_statistics)


def measurement(rates, row=0):
    """Rates [P] of the best of two lower choices."""
    best = jnp.asarray(rates, jnp.float32)
    return Measurement(jnp.stack([0.5 * best, best], axis=1), jnp.zeros(2), jnp.int32(row))


def statistics_after(series, rows=None):
    stats = init_statistics(make_reference(jnp.asarray(BASE, jnp.float32)))
    for t, rates in enumerate(series):
        stats = update(stats, measurement(rates, 0 if rows is None else rows[t]))
    return stats


def test_the_reference_is_the_best_static_row():
    reference = make_reference(jnp.array([1.0, 3.0, 2.0], jnp.float32))
    assert float(reference.scale) == 3.0 and int(reference.static_row) == 1


def test_averages_of_a_constant_rate_are_that_rate():
    """Whatever the decays: an average is one of its values where they are all alike."""
    constant = np.array([3.0, 0.25])
    stats = statistics_after([constant] * 300)
    np.testing.assert_allclose(stats.fast, constant, rtol=1e-5)
    np.testing.assert_allclose(stats.slow, constant, rtol=1e-5)
    np.testing.assert_allclose(stats.square, 0.0, atol=1e-4)
    np.testing.assert_array_equal(stats.last, constant.astype(np.float32))


def test_first_measurements_count_fully():
    """The fast average is the plain mean of what was measured, the slow one counts the base as one
    measurement, until their decays are reached."""
    series = np.array([[3.0, 1.0], [5.0, 1.5], [1.0, 4.0]])
    for n in (1, 2, 3):
        stats = statistics_after(series[:n])
        np.testing.assert_allclose(stats.fast, series[:n].mean(axis=0), rtol=1e-6)
        slow = np.vstack([BASE, series[:n]]).mean(axis=0)
        np.testing.assert_allclose(stats.slow, slow, rtol=1e-6)
        assert float(stats.count) == n


def test_averages_settle_to_their_decays():
    """After 100 intervals at one rate, a jump shows in 3 of 10 and 1 of 20 parts."""
    calm, jump = np.array([1.0, 2.0]), np.array([2.0, 1.0])
    stats = statistics_after([calm] * 100 + [jump])
    np.testing.assert_allclose(stats.fast, calm + 0.3 * (jump - calm), rtol=1e-4)
    np.testing.assert_allclose(stats.slow, calm + 0.05 * (jump - calm), rtol=1e-4)
    # Deviations are from the new mean, 0.95 of the jump now and 0.05 the other way before it.
    np.testing.assert_allclose(stats.square, 0.05 * 0.95**2, rtol=1e-3)
    np.testing.assert_allclose(stats.product, -0.05 * 0.95 * 0.05, rtol=1e-3)


def test_successive_deviations_tell_trends_from_noise():
    def product_of(series):
        stats = statistics_after(np.repeat(np.asarray(series)[:, None], 2, axis=1))
        return float((stats.product / stats.square)[0])

    t = np.arange(400)
    assert product_of(2 + np.sin(t / 5)) > 0.8
    assert product_of(2 + (-1.0) ** t) < -0.8
    assert abs(product_of(2 + np.random.default_rng(0).normal(size=400))) < 0.5


def test_the_row_before_and_the_time_since_are_remembered():
    rows = [2, 2, 5, 5, 5, 1]
    expected = [(2, 2, 101), (2, 2, 102), (5, 2, 0), (5, 2, 1), (5, 2, 2), (1, 5, 0)]
    for n, (row, previous, since) in enumerate(expected, start=1):
        stats = statistics_after([BASE] * n, rows)
        assert (int(stats.row), int(stats.previous)) == (row, previous), n
        assert float(stats.since_switch) == since, n


def test_a_move_pays_where_the_rest_of_the_horizon_makes_up_for_the_way():
    rate, switch_s = jnp.array([1.0, 1.5, 4.0, 0.5]), jnp.array([0.0, 120.0, 900.0, 0.0])
    got = gains(rate, switch_s, jnp.int32(0), jnp.float32(10.0), jnp.float32(60.0))
    # Of 600 s the second row trains 480, the third none: it can only lose what staying brings.
    np.testing.assert_allclose(got, [0.0, 1.5 * 0.8 - 1.0, -1.0, 0.5 - 1.0], rtol=1e-5)
