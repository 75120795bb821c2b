"""What is imagined of links: it fits what was measured, link by link, and knows nothing more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.foresight.futures import GPUS, LINKS, Filter, Prospect, grid, sample_paths

REAL = jnp.array([True, True, True, False])


def drifting(tau, drift, noise, length, seed):
    """[T] an autoregression of order one, seen through noise."""
    rng = np.random.default_rng(seed)
    kept, x, out = np.exp(-1 / tau), rng.normal(0, drift), []
    for _ in range(length):
        out.append(x + rng.normal(0, noise))
        x = kept * x + rng.normal(0, drift * np.sqrt(1 - kept**2))
    return np.array(out)


@jax.jit
def learned(seen):
    """The filter of links after measurements [T, E]."""

    def body(known, now):
        return known.measured(now, LINKS), None

    return jax.lax.scan(body, Filter.of(seen.shape[1], LINKS), jnp.asarray(seen, jnp.float32))[0]


def series(length=120):
    """A slow drift, noise alone, nothing at all, and an entry that is no link."""
    slow = drifting(60.0, 0.4, 0.02, length, 1)
    noise = np.random.default_rng(2).normal(0, 0.2, length)
    return np.stack([slow, noise, np.zeros(length), np.full(length, 9.0)], axis=1)


def test_one_hypothesis_is_the_kalman_filter_by_hand():
    one = grid((2.0,), (0.3,), (0.1,))
    kept = np.exp(-0.5)
    known = Filter.of(1, one).measured(jnp.array([0.2], jnp.float32), one)
    gain = 0.09 / (0.09 + 0.01)
    np.testing.assert_allclose(known.mean, [[0.2 * gain]], rtol=1e-5)
    np.testing.assert_allclose(known.variance, [[0.09 * (1 - gain)]], rtol=1e-4)
    expected = known.expected(jnp.array([True]), one)
    np.testing.assert_allclose(expected, [[0.2 * gain * kept]], rtol=1e-5)
    later = known.expected(jnp.array([True]), one, (2.0, 200.0))
    np.testing.assert_allclose(later, [[0.2 * gain * np.exp(-1)], [0.0]], rtol=1e-5, atol=1e-7)


def test_a_link_that_drifts_is_followed_and_one_that_jumps_about_is_averaged():
    seen = series()
    expected = np.asarray(learned(seen).expected(REAL, LINKS))[0]
    assert abs(expected[0] - seen[-1, 0]) < 0.1
    assert abs(expected[1]) < 0.07 and abs(expected[2]) < 0.01
    # What is no link teaches nothing.
    other = seen.copy()
    other[:, 3] = 0.0
    np.testing.assert_array_equal(learned(other).expected(REAL, LINKS)[0, :3], expected[:3])


def test_sampled_paths_have_the_spread_of_what_is_to_come():
    """Of the slow drift after 20 intervals: sd 0.4 sqrt(1 - exp(-40 / 60)) = 0.28 about its mean."""
    prospect = Prospect(learned(series()), LINKS, REAL)
    paths = np.asarray(sample_paths(jax.random.key(0), prospect, 2000, 20))
    assert paths.shape == (2000, 20, 4)
    spread = paths.std(axis=0)
    assert 0.2 < spread[19, 0] < 0.4 and spread[0, 0] < 0.15
    np.testing.assert_allclose(spread[[0, 19], 1], 0.2, atol=0.05)
    assert spread[:, 2].max() < 0.1
    # The noise has no memory, the drift has one.
    after = [np.corrcoef(paths[:, 5, e], paths[:, 6, e])[0, 1] for e in (0, 1)]
    assert after[0] > 0.8 and after[1] < 0.5


def test_every_second_future_mirrors_the_one_before():
    one = grid((5.0,), (0.3,), (0.1,))
    prospect = Prospect(Filter.of(4, one), one, REAL)
    paths = np.asarray(sample_paths(jax.random.key(1), prospect, 6, 3))
    np.testing.assert_allclose(paths[::2], -paths[1::2], rtol=1e-5, atol=1e-6)
    assert np.abs(paths[0] - paths[2]).max() > 0.01
    odd = np.asarray(sample_paths(jax.random.key(1), prospect, 5, 3))
    np.testing.assert_array_equal(odd, paths[:5])


@pytest.mark.parametrize("hypotheses", [LINKS, GPUS])
def test_hypotheses_are_every_combination(hypotheses):
    rows = set(zip(*(np.asarray(x).tolist() for x in hypotheses), strict=True))
    sizes = [len(set(np.asarray(x).tolist())) for x in hypotheses]
    assert len(rows) == len(hypotheses.tau) == np.prod(sizes)
