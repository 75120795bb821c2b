"""Predictors of bandwidth: by hand, on records whose best forecast is known, and in any unit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.network.predictors import (
    Autoregression,
    Ewma,
    Persistence,
    RunningMedian,
    Windows,
    absolute_errors,
    fit_ar,
    fit_ewma,
    fit_learned,
    window_median,
)

WIDTH = 8
HORIZONS = (1, 3)


def record(rho, white, length, seed):
    """An autoregressive record around 1 with noise on top."""
    generator = np.random.default_rng(seed)
    x = np.zeros(length)
    for t in range(1, length):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * generator.normal()
    return 1.0 + 0.1 * x + white * generator.normal(size=length)


def windows(series, missing=0.0, seed=0):
    at = np.arange(WIDTH - 1, len(series) - max(HORIZONS))
    values = series[at[:, None] + np.arange(1 - WIDTH, 1)]
    targets = series[at[:, None] + np.array(HORIZONS)]
    generator = np.random.default_rng(seed)
    valid = generator.random(values.shape) >= missing
    valid[:, -1] = True
    known = generator.random(targets.shape) >= missing
    return Windows(
        values=jnp.asarray(values, jnp.float32),
        valid=jnp.asarray(valid),
        targets=jnp.asarray(targets, jnp.float32),
        known=jnp.asarray(known),
        scale=jnp.ones(len(at), jnp.float32),
    )


def error(predictor, data):
    return np.nanmean(np.asarray(absolute_errors(predictor, data)), axis=0)


TRAIN = windows(record(0.9, 0.1, 1500, 0), missing=0.1)
TEST = windows(record(0.9, 0.1, 1500, 1))


@pytest.fixture(scope="module")
def everybody():
    return {
        "persistence": Persistence(2),
        "median": RunningMedian(2),
        "ewma": fit_ewma(TRAIN),
        "ar": fit_ar(TRAIN),
        "learned": fit_learned(jax.random.key(0), TRAIN),
    }


def test_predictions_by_hand():
    values = jnp.array([1.0, 9.0, 2.0, 4.0])
    valid = jnp.array([True, False, True, True])
    assert window_median(values, valid) == 2.0
    assert window_median(values, valid.at[1].set(True)) == 3.0
    np.testing.assert_array_equal(Persistence(2)(values, valid), [4.0, 4.0])
    np.testing.assert_array_equal(RunningMedian(2)(values, valid), [2.0, 2.0])
    halves = Ewma(jnp.array([0.5, 1.0]))(values, valid)
    np.testing.assert_allclose(halves, [(4 + 2 / 2 + 1 / 8) / (1 + 1 / 2 + 1 / 8), 4.0], rtol=1e-6)
    ar = Autoregression(jnp.array([[0.0, 0.0], [0.5, 0.25], [-9.0, -9.0]]))(values, valid)
    np.testing.assert_allclose(ar, [2.0, 2.0 * (1 + 0.25 * 1.0), 2.0 * 0.01], rtol=1e-6)


def test_fits_find_what_is_best_where_that_is_known():
    wandering = windows(1.0 + 0.01 * np.cumsum(np.random.default_rng(0).normal(size=1500)))
    np.testing.assert_array_less(0.8, fit_ewma(wandering).alpha)
    noise = windows(1.0 + 0.1 * np.random.default_rng(0).normal(size=1500))
    np.testing.assert_array_less(fit_ewma(noise).alpha, 0.1)
    np.testing.assert_allclose(fit_ar(noise).coefficients, 0.0, atol=0.1)
    coefficients = fit_ar(windows(record(0.6, 0.0, 6000, 0)), order=1).coefficients
    # Around the median of 8 intervals, itself a noisy estimate, somewhat less than rho is best.
    assert 0.35 < coefficients[0, 0] < 0.7 and abs(coefficients[1, 0]) < coefficients[0, 0]


def test_all_that_is_fitted_beats_persistence_on_another_record(everybody):
    base = error(everybody["persistence"], TEST)
    for name in ("ewma", "ar", "learned"):
        assert np.all(error(everybody[name], TEST) < 0.9 * base), name
    assert error(everybody["learned"], TEST)[0] < error(everybody["median"], TEST)[0]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_predictions_scale_with_their_unit_and_ignore_what_was_not_measured(everybody, seed, unit):
    generator = np.random.default_rng(seed)
    values = jnp.asarray(generator.lognormal(0.0, 1.0, (3, 3, WIDTH)), jnp.float32)
    valid = jnp.asarray(generator.random(values.shape) < 0.6).at[..., -1].set(True)
    rubbish = jnp.asarray(generator.lognormal(0.0, 3.0, values.shape), jnp.float32)
    for name, predictor in everybody.items():
        predicted = np.asarray(predictor(values, valid))
        assert predicted.shape == (3, 3, 2) and np.all(np.isfinite(predicted)), name
        assert np.all(predicted > 0), name
        scaled = np.asarray(predictor(values * jnp.float32(unit), valid)) / np.float32(unit)
        np.testing.assert_allclose(scaled, predicted, rtol=2e-3, err_msg=name)
        other = np.asarray(predictor(jnp.where(valid, values, rubbish), valid))
        np.testing.assert_allclose(other, predicted, rtol=1e-5, err_msg=name)


def test_a_steady_link_is_predicted_to_stay(everybody):
    values = jnp.full((WIDTH,), 5.0)
    for name, predictor in everybody.items():
        predicted = predictor(values, jnp.ones((WIDTH,), bool))
        np.testing.assert_allclose(predicted, 5.0, rtol=1e-5, err_msg=name)


def test_a_mean_of_the_window_stays_within_it(everybody):
    generator = np.random.default_rng(0)
    values = jnp.asarray(generator.lognormal(0.0, 2.0, (200, WIDTH)), jnp.float32)
    for name in ("median", "ewma", "learned"):
        predicted = np.asarray(everybody[name](values, jnp.ones(values.shape, bool)))
        low, high = np.asarray(values).min(axis=1), np.asarray(values).max(axis=1)
        assert np.all(predicted >= 0.999 * low[:, None]), name
        assert np.all(predicted <= 1.001 * high[:, None]), name


def test_gradients_are_finite_on_flat_and_wild_windows(everybody):
    wild = jnp.asarray([[1e-3] * WIDTH, [1e3, 1e-3] * (WIDTH // 2)])
    for predictor in everybody.values():
        gradient = jax.grad(lambda v, p=predictor: jnp.sum(p(v, jnp.ones(v.shape, bool))))(wild)
        assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize("order", [0, WIDTH + 1])
def test_an_order_that_the_window_cannot_hold_is_refused(order):
    with pytest.raises(ValueError, match=f"1 to {WIDTH}, got {order}"):
        fit_ar(TRAIN, order=order)
