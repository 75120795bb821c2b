"""What staying is worth while local jobs take and return GPUs: one interval at a time, and a course."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import PLANS, TABLE
from helpers.toy_world import JOB, calibration, cluster_spec, env_params

from agents.baselines import Replanning, SmoothedHysteresis
from agents.protocol import best_choices, make_setup, prior_rates, table_rates
from agents.staying import (
    expected_losses,
    expected_rates,
    first_layouts,
    losses,
    staying_rates,
)
from jaxsim.env import Samples
from jaxsim.env.env import world_tape
from jaxsim.trees import stack, take

STEPS, INTERVAL_S, RESTART_S = 10, 60.0, 20.0


def toy_params():
    return env_params(
        cluster_spec(3, gpus=4, gbps=2.0),
        JOB,
        PLANS[0],
        load={"share": 0.6, "swing": 0.5},
        efficiency=calibration(restart_s=RESTART_S),
        horizon=jnp.int32(STEPS),
    )


def unstacked(views, count):
    return [take(views, i) for i in range(count)]


@functools.cache
def courses():
    """Rates [T, P] as measured, along the whole course and interval by interval."""
    params = toy_params()

    @jax.jit
    def both(params):
        setup = make_setup(params, TABLE)
        views = world_tape(params, jax.random.key(3), STEPS)
        now = best_choices(table_rates(setup, views))
        whole = staying_rates(setup, TABLE.plans, views, now.rate)

        def interval(layouts, t):
            rate = take(now, t)
            lost, layouts = losses(setup, layouts, rate, take(views, t))
            return layouts, rate.rate - lost

        _, each = jax.lax.scan(interval, first_layouts(setup), jnp.arange(STEPS))
        return now.rate, whole, each, views.gpus_available

    return [np.asarray(x) for x in both(params)]


def test_interval_by_interval_it_comes_to_the_same():
    rate, whole, each, _ = courses()
    np.testing.assert_allclose(each, whole, rtol=1e-6)
    assert (each <= rate * (1 + 1e-6)).all()


def test_a_row_pays_a_restart_where_the_gpus_that_it_uses_have_changed():
    rate, _, each, free = courses()
    lost_s = (1.0 - each / np.maximum(rate, 1e-30)) * INTERVAL_S
    assert lost_s[0] == pytest.approx(0.0, abs=1e-3), "nothing is known of before"
    lost, runs = lost_s > 1e-3, rate > 0
    assert (lost & runs).any() and (~lost & runs).any()
    assert (lost_s[lost & runs] >= RESTART_S * 0.99).all()
    same = np.concatenate([[True], (free[1:] == free[:-1]).all(axis=1)])
    assert not (lost & runs)[same].any()


def test_what_is_expected_is_the_mean_over_samples_less_what_is_lost_between_them():
    """Five pairs of intervals of a course as samples: each loses what the course loses there."""
    params = toy_params()
    setup = make_setup(params, TABLE)
    views = world_tape(params, jax.random.key(3), STEPS)
    before, now = (take(views, jnp.arange(first, STEPS, 2)) for first in (0, 1))
    setup = setup.replace(outlook=Samples(before, now))
    rate = np.asarray(best_choices(table_rates(setup, now)).rate)
    lost = []
    for i, (x, y) in enumerate(
        zip(*(unstacked(v, STEPS // 2) for v in (before, now)), strict=True)
    ):
        pair = jax.tree.map(lambda *two: jnp.stack(two), x, y)
        both = best_choices(table_rates(setup, pair)).rate
        lost.append(np.asarray(both - staying_rates(setup, TABLE.plans, pair, both))[1])
        np.testing.assert_allclose(both[1], rate[i], rtol=1e-6)
    assert np.max(lost) > 0
    expected = rate.mean(axis=0) - np.mean(lost, axis=0)
    np.testing.assert_allclose(expected_rates(setup), expected, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(expected_losses(setup), np.mean(lost, axis=0), rtol=1e-4, atol=1e-9)
    # Where GPUs do not vary, nothing is laid out anew.
    still = setup.replace(gpus_vary=False)
    assert (np.asarray(expected_losses(still)) == 0).all()


def test_the_rule_and_planners_that_plan_again_begin_at_the_mean_over_samples():
    """Links at a fifth of their base or twice as fast, and GPUs that stay."""
    params = env_params(cluster_spec(3, gpus=4, gbps=2.0), JOB, PLANS[0])
    setup = make_setup(params, TABLE).replace(gpus_vary=False)
    base = setup.prior.bandwidth_gb_per_s
    two = stack([setup.prior.replace(bandwidth_gb_per_s=x * base) for x in (0.2, 2.0)])
    setup = setup.replace(outlook=Samples(two, two))
    mean = np.asarray(table_rates(setup, two)).max(axis=-1).mean(axis=0)
    assert not np.allclose(mean, np.asarray(prior_rates(setup)).max(axis=-1), rtol=1e-2)
    rule = SmoothedHysteresis().bind(setup)
    np.testing.assert_allclose(rule.init(jax.random.key(0)).average, mean, rtol=1e-5)
    candidates = jnp.ones((TABLE.size, setup.problem.choices.size), bool)
    planner = Replanning(candidates=candidates).bind(setup)
    np.testing.assert_allclose(planner.expected, mean, rtol=1e-5)
    assert planner.bind(setup.replace(gpus_vary=True)).expected is None


def test_where_gpus_do_not_vary_nothing_is_kept():
    params = env_params(cluster_spec(3, gpus=8, gbps=2.0), JOB, PLANS[0])
    setup = make_setup(params, TABLE).replace(gpus_vary=False)
    assert first_layouts(setup) is None
