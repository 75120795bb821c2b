"""How far an average says what comes: by hand, by least squares over the future, where links forget."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.hi_ppo.features import init_statistics, make_reference, update_statistics
from agents.shrinkage import (
    HORIZONS,
    KNOWN,
    SPREAD,
    WEIGHT,
    init_shrinkage,
    shrunk,
    update_shrinkage,
    weights,
)

EXPECTED = np.array([2.0, 4.0, 3.0])
RUN = jnp.ones(3, bool)


def seen_of(averages, rates, expected=EXPECTED, unit=2.0):
    """After each `rates` [T, P] that came when `averages` [T, P] were believed."""
    seen = init_shrinkage(jnp.asarray(expected, jnp.float32), jnp.float32(unit))
    step = jax.jit(update_shrinkage)
    ran = jnp.ones(len(expected), bool)
    for average, rate in zip(averages, rates, strict=True):
        average, rate = jnp.asarray(average, jnp.float32), jnp.asarray(rate, jnp.float32)
        seen, ran = step(seen, average, ran, rate), rate != 0
    return seen


def test_before_anything_is_measured_averages_are_believed_by_the_known_weight():
    seen = init_shrinkage(jnp.asarray(EXPECTED, jnp.float32), jnp.float32(4.0))
    np.testing.assert_allclose(weights(seen), [WEIGHT] * len(HORIZONS), rtol=1e-6)
    got = shrunk(seen, jnp.asarray(EXPECTED + 1.0, jnp.float32))
    np.testing.assert_allclose(got, np.tile(EXPECTED + WEIGHT, (len(HORIZONS), 1)), rtol=1e-6)


def test_one_interval_by_hand():
    """Of a horizon of h intervals the next one weighs 1 / h. Rows are 0.5, -0.5, 0 units off their
    expectation as they are believed, and half of that when they are measured."""
    off = np.array([1.0, -1.0, 0.0])
    seen = seen_of([EXPECTED + off], [EXPECTED + off / 2])
    share, square = 1 / np.array(HORIZONS), 2 * 0.5**2 / 3
    known = KNOWN * SPREAD**2
    expected = (known * WEIGHT + share * square / 2) / (known + share * square)
    np.testing.assert_allclose(weights(seen), expected, rtol=1e-5)


def test_weights_are_those_of_a_regression_on_the_weighed_future():
    """In float64, over all pairs of an average and what came after it."""
    rng = np.random.default_rng(0)
    length, rows = 40, 5
    expected = rng.uniform(1, 2, rows)
    averages = expected + rng.normal(0, 0.3, (length, rows))
    rates = expected + rng.normal(0, 0.3, (length, rows))
    apart = averages - expected, rates - expected
    believed, came = (x - x.mean(axis=1, keepdims=True) for x in apart)
    found = weights(seen_of(averages, rates, expected, unit=1.0))
    for horizon, weight in zip(HORIZONS, found, strict=True):
        product = square = 0.0
        for t in range(length):  # the average of t says something of intervals from t on
            for later in range(t, length):
                share = (1 - 1 / horizon) ** (later - t) / horizon
                product += share * np.mean(believed[t] * came[later])
                square += share * np.mean(believed[t] ** 2)
        known = KNOWN * SPREAD**2
        np.testing.assert_allclose(weight, (known * WEIGHT + product) / (known + square), rtol=1e-4)


def walk(memory, seed, length=400, rows=6):
    """[T, P] rates around 1 that keep `memory` of their deviation from one interval to the next."""
    rng = np.random.default_rng(seed)
    off, rates = np.zeros(rows), []
    for _ in range(length):
        off = memory * off + np.sqrt(1 - memory**2) * rng.normal(0, 0.1, rows)
        rates.append(1 + off)
    return np.array(rates)


def weights_after(rates):
    ones = jnp.ones(rates.shape[1])
    stats = init_statistics(make_reference(ones, 0.0 * ones))
    step = jax.jit(lambda stats, rate: update_statistics(stats, rate, 0.0 * rate))
    for rate in rates:
        stats = step(stats, jnp.asarray(rate, jnp.float32))
    return np.asarray(weights(stats.shrinkage))


@pytest.mark.parametrize("seed", range(3))
def test_averages_are_believed_where_links_drift_and_not_where_they_forget(seed):
    """Over 20 intervals: of white noise an average says nothing; what keeps 0.98 of itself has two
    thirds of it left half way."""
    nothing, something = weights_after(walk(0.0, seed)), weights_after(walk(0.98, seed))
    assert np.all(np.abs(nothing[1:]) < 0.2)
    assert np.all(something[:3] > 0.5) and something[0] > something[3]


def test_what_all_rows_gain_together_says_nothing():
    together = walk(0.98, 0, rows=1) + np.zeros(4)
    np.testing.assert_allclose(weights_after(together), WEIGHT, rtol=1e-3)


def test_rows_that_do_not_run_say_nothing():
    """Padding, or a row whose domain is lost: weights are those of the others alone."""
    rates = walk(0.9, 1, length=60, rows=4)
    wide = np.concatenate([rates, np.zeros((60, 3))], axis=1)
    averages = np.concatenate([rates[:-1] * 0.5 + 0.5, np.full((59, 3), 7.0)], axis=1)
    wide_seen = update_from(averages, wide)
    alone = update_from(averages[:, :4], rates)
    np.testing.assert_allclose(weights(wide_seen), weights(alone), rtol=1e-4)


def update_from(averages, rates):
    """Rows that had no rate in the interval before did not run when their average was believed."""
    seen = init_shrinkage(jnp.ones(rates.shape[1]), jnp.float32(1.0))
    for before, average, rate in zip(rates, averages, rates[1:], strict=False):
        args = (jnp.asarray(x, jnp.float32) for x in (average, before, rate))
        average, before, rate = args
        seen = update_shrinkage(seen, average, before != 0, rate)
    return seen


def test_units_do_not_matter():
    rates = walk(0.9, 2, length=50)
    averages = np.roll(rates, 1, axis=0)
    plain = seen_of(averages, rates, np.ones(6), unit=1.0)
    other = seen_of(1000 * averages, 1000 * rates, 1000 * np.ones(6), unit=1000.0)
    np.testing.assert_allclose(weights(plain), weights(other), rtol=1e-4)
