"""From played intervals to what both policies learn from: discounts over an upper decision's span."""

import jax.numpy as jnp
import numpy as np

from agents.hi_ppo.ppo import PPOSettings
from agents.hi_ppo.settings import TrainSettings
from agents.hi_ppo.training import _Choice, _high_batch, _low_batch

SEGMENTS, ENVS, EVERY = 3, 2, 2
SETTINGS = TrainSettings(
    every=EVERY,
    upper_discount=0.9,
    lower_discount=0.5,
    upper=PPOSettings(trace_decay=0.8),
    lower=PPOSettings(trace_decay=0.6),
)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def choices(values):
    """Decisions whose input and action number them."""
    number = np.arange(values.size).reshape(values.shape)
    value = jnp.asarray(values, jnp.float32)
    return _Choice(number, jnp.asarray(number), 0.1 * value, value, jnp.ones(values.shape))


def advantage(rewards, values, last_value, discount, trace_decay):
    """Schulman et al. 2016, eq. 16, backwards over the first axis."""
    out, later, following = np.zeros_like(values), 0.0, last_value
    for t in range(len(values) - 1, -1, -1):
        error = rewards[t] + discount * following - values[t]
        later = error + discount * trace_decay * later
        out[t], following = later, values[t]
    return out


def test_an_upper_decision_earns_what_its_intervals_bring():
    """Semi-Markov (Bradtke and Duff 1994): r1 + g r2, and g^2 on what follows."""
    rewards, values = draw(SEGMENTS, ENVS, EVERY), draw(SEGMENTS, ENVS, seed=1)
    last = draw(ENVS, seed=2)
    batch = _high_batch(
        choices(values), jnp.asarray(rewards, jnp.float32), jnp.asarray(last, jnp.float32), SETTINGS
    )
    earned = rewards[..., 0] + 0.9 * rewards[..., 1]
    expected = advantage(earned, values, last, 0.9**2, 0.8)
    np.testing.assert_allclose(batch.advantage, expected.reshape(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.target, (expected + values).reshape(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(batch.inputs, np.arange(SEGMENTS * ENVS))


def test_lower_decisions_follow_each_other_interval_by_interval():
    shape = (SEGMENTS, ENVS, EVERY)
    rewards, values, last = draw(*shape), draw(*shape, seed=1), draw(ENVS, seed=2)
    batch = _low_batch(
        choices(values), jnp.asarray(rewards, jnp.float32), jnp.asarray(last, jnp.float32), SETTINGS
    )

    def in_time(x):  # [segments, environments, every] -> [intervals, environments]
        return np.stack([x[s, :, i] for s in range(SEGMENTS) for i in range(EVERY)])

    expected = advantage(in_time(rewards), in_time(values), last, 0.5, 0.6)
    np.testing.assert_allclose(batch.advantage, expected.reshape(-1), rtol=1e-4, atol=1e-5)
    order = in_time(np.arange(values.size).reshape(shape)).reshape(-1)
    np.testing.assert_array_equal(batch.inputs, order)
    np.testing.assert_array_equal(batch.action, order)
    np.testing.assert_allclose(batch.log_prob, 0.1 * values.reshape(-1)[order], rtol=1e-5)
