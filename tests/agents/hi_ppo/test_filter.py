"""Links and GPUs as a policy expects them: what noise, drift and bursts leave of a measurement."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.hi_ppo.filter import KEPT, WEIGHTS, expected_view, init_filter, update_filter
from jaxsim.step_time import NetworkView

K, T = 3, 200


def views_of(bandwidth, gpus):
    rtt = jnp.zeros((len(bandwidth), K, K), jnp.float32)
    links, free = np.asarray(bandwidth, np.float32), np.asarray(gpus, np.int32)
    return NetworkView(jnp.asarray(links), rtt, jnp.asarray(free))


def as_expected(views):
    """[T] the view expected after each measurement, from the first as the prior."""

    def body(filtered, view):
        filtered = update_filter(filtered, view)
        return filtered, expected_view(filtered, view)

    start = init_filter(jax.tree.map(lambda x: x[0], views))
    return jax.jit(lambda x: jax.lax.scan(body, start, x)[1])(views)


def by_hand(series, kept=KEPT):
    """One series in float64, one average after the other."""
    means, errors = [series[0]] * len(WEIGHTS), [0.0] * len(WEIGHTS)
    out = []
    for value in series:
        for i, weight in enumerate(WEIGHTS):
            errors[i] = kept * errors[i] + (value - means[i]) ** 2
            means[i] += weight * (value - means[i])
        out.append(means[int(np.argmin(errors))])
    return np.array(out)


@pytest.fixture(scope="module")
def mixed():
    """Link 0>1 wanders, 0>2 is noise about 2 GB/s, 1>0 is still, 2>0 is cut for a while; GPUs of the
    first domain are noise about 40, of the second a burst, of the third all there."""
    rng = np.random.default_rng(0)
    bandwidth = np.full((T, K, K), 1.0)
    bandwidth[:, 0, 1] = np.exp(np.cumsum(0.3 * rng.standard_normal(T)))
    bandwidth[:, 0, 2] = 2.0 * np.exp(0.5 * rng.standard_normal(T))
    bandwidth[80:90, 2, 0] = 0.0
    gpus = np.full((T, K), 64)
    gpus[:, 0] = rng.integers(30, 51, T)
    gpus[50:90, 1] = 16
    return views_of(bandwidth, gpus)


def test_every_series_is_what_it_is_by_hand(mixed):
    seen = as_expected(mixed)
    for source, target in ((0, 1), (0, 2), (1, 0)):
        logs = np.log(np.asarray(mixed.bandwidth_gb_per_s, np.float64)[:, source, target])
        found = np.log(np.asarray(seen.bandwidth_gb_per_s)[:, source, target])
        # Two averages may have the same error to the last bit of float32.
        same = np.isclose(found, by_hand(logs), atol=1e-4)
        assert same.mean() > 0.99
    gpus = by_hand(np.asarray(mixed.gpus_available, np.float64)[:, 0])
    assert np.abs(np.asarray(seen.gpus_available)[:, 0] - gpus).max() <= 0.51


def test_noise_is_averaged_and_a_walk_is_followed(mixed):
    seen = as_expected(mixed)

    def logs(views, source, target):
        return np.log(np.asarray(views.bandwidth_gb_per_s)[40:, source, target])

    def surprise(views, *link):
        """What is expected next, or measured last, against what comes."""
        return np.abs(logs(views, *link)[:-1] - logs(mixed, *link)[1:]).mean()

    assert surprise(seen, 0, 2) < 0.8 * surprise(mixed, 0, 2)
    assert np.abs(logs(seen, 0, 2) - np.log(2.0)).mean() < 0.2
    assert surprise(seen, 0, 1) < 1.1 * surprise(mixed, 0, 1)
    np.testing.assert_allclose(logs(seen, 1, 0), 0.0, atol=1e-6)


def test_what_is_cut_or_taken_is_known_at_once_and_so_is_its_return(mixed):
    seen = as_expected(mixed)
    links, gpus = np.asarray(seen.bandwidth_gb_per_s), np.asarray(seen.gpus_available)
    assert np.all(links[80:90, 2, 0] == 0.0)
    np.testing.assert_allclose(links[90:, 2, 0], 1.0, rtol=1e-4)
    assert np.all(gpus[50:90, 1] == 16) and np.all(gpus[90:, 1] == 64) and np.all(gpus[:, 2] == 64)
    assert seen.gpus_available.dtype == mixed.gpus_available.dtype
