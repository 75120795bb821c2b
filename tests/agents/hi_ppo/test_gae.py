"""Advantages against a loop that anybody can check."""

import jax.numpy as jnp
import numpy as np
import pytest

from agents.hi_ppo.gae import advantages


def naive(rewards, values, last_value, discounts, trace_decay):
    """The sum of discounted errors, written out for every start."""
    following = np.concatenate([values[1:], last_value[None]])
    errors = rewards + discounts * following - values
    out = np.zeros_like(rewards)
    for start in range(len(rewards)):
        weight = np.ones_like(last_value)
        for t in range(start, len(rewards)):
            out[start] += weight * errors[t]
            weight = weight * discounts[t] * trace_decay
    return out


def episode(seed=0, length=7, width=3):
    """Rewards, values [T, B], last value [B] and discounts [T, B] of what lasts 1 to 4 intervals."""
    rng = np.random.default_rng(seed)
    intervals = rng.integers(1, 5, (length, width))
    return (
        rng.normal(size=(length, width)).astype(np.float32),
        rng.normal(size=(length, width)).astype(np.float32),
        rng.normal(size=width).astype(np.float32),
        (0.9**intervals).astype(np.float32),
    )


def estimate(rewards, values, last_value, discounts, trace_decay):
    args = (jnp.asarray(x, jnp.float32) for x in (rewards, values, last_value, discounts))
    return [np.asarray(x) for x in advantages(*args, trace_decay)]


@pytest.mark.parametrize("trace_decay", [0.0, 0.7, 1.0])
def test_advantages_equal_a_naive_loop_with_semi_markov_discounts(trace_decay):
    args = episode()
    got, target = estimate(*args, trace_decay)
    expected = naive(*args, trace_decay)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(target, expected + args[1], rtol=1e-5, atol=1e-6)


def test_with_full_traces_the_target_is_the_discounted_return():
    rewards, values, last_value, discounts = episode(1)
    _, target = estimate(rewards, values, last_value, discounts, 1.0)
    expected = last_value
    for t in reversed(range(len(rewards))):
        expected = rewards[t] + discounts[t] * expected
        np.testing.assert_allclose(target[t], expected, rtol=1e-5, atol=1e-6)


def test_nothing_passes_a_termination():
    rewards, values, last_value, discounts = episode(2)
    discounts[3] = 0.0
    got, target = estimate(rewards, values, last_value, discounts, 0.8)
    np.testing.assert_allclose(target[3], rewards[3], rtol=1e-5, atol=1e-6)
    other = [rewards.copy(), values.copy(), last_value + 5.0, discounts]
    other[0][4:] += 7.0
    other[1][4:] -= 3.0
    again, _ = estimate(*other, 0.8)
    np.testing.assert_array_equal(again[:4], got[:4])
    assert np.all(again[4:] != got[4:])


def test_a_truncated_episode_counts_on_what_would_have_followed():
    rewards, values, last_value, discounts = episode(3)
    _, target = estimate(rewards, values, last_value, discounts, 0.8)
    expected = rewards[-1] + discounts[-1] * last_value
    np.testing.assert_allclose(target[-1], expected, rtol=1e-5, atol=1e-6)


def test_arrays_of_different_shapes_are_refused():
    rewards, values, last_value, discounts = episode(4)
    with pytest.raises(AssertionError):
        estimate(rewards, values[:-1], last_value, discounts, 0.8)
    with pytest.raises(AssertionError):
        estimate(rewards[0], values[0], last_value, discounts[0], 0.8)
