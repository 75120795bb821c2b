"""What staying is worth while local jobs take and return GPUs: one interval at a time, and a course."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import PLANS, TABLE
from helpers.toy_world import JOB, calibration, cluster_spec, env_params

from agents.baselines import Replanning, SmoothedHysteresis
from agents.protocol import (
    ScoredTable,
    best_choices,
    carry_out,
    make_setup,
    measured_rates,
    prior_rates,
    table_rates,
)
from agents.staying import (
    expected_losses,
    expected_rates,
    first_layouts,
    losses,
    staying_rates,
)
from jaxsim.env import Samples, reset, step
from jaxsim.env.env import world_tape
from jaxsim.trees import stack, take

STEPS, INTERVAL_S, RESTART_S = 10, 60.0, 20.0


def toy_params(row=0):
    return env_params(
        cluster_spec(3, gpus=4, gbps=2.0),
        JOB,
        PLANS[row],
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


def in_pairs(params):
    """The course's pairs of intervals as samples, five of them."""
    views = world_tape(params, jax.random.key(3), STEPS)
    return Samples(*(take(views, jnp.arange(first, STEPS, 2)) for first in (0, 1)))


@jax.jit
def played_in_pairs(params, row):
    """[steps / s] that the row which is in force at first, and stays, brings in the later interval of
    each pair."""
    setup = make_setup(params, TABLE)

    def interval(carry, _):
        state, seen = carry
        choice = best_choices(measured_rates(setup, seen)).choice[row]
        later, timestep = step(state.key, state, carry_out(setup, row, choice, seen.view), params)
        return (later, timestep.observation), later.steps_done[0] - state.steps_done[0]

    state, timestep = reset(jax.random.key(3), params)
    done = jax.lax.scan(interval, (state, timestep.observation), None, STEPS - 1)[1]
    return done[::2] / INTERVAL_S


def test_what_is_expected_is_what_a_row_brings_in_play():
    params = toy_params()
    setup = make_setup(params, TABLE).replace(outlook=in_pairs(params))
    rows = range(TABLE.size)
    played = [played_in_pairs(toy_params(row), jnp.int32(row)).mean() for row in rows]
    assert min(played) > 0
    expected, lost = (np.asarray(f(setup)) for f in (expected_rates, expected_losses))
    np.testing.assert_allclose(expected, played, rtol=1e-5)
    # Who could balance batch shares and choose on the state itself would reach more.
    ahead = best_choices(table_rates(setup, setup.outlook.now)).rate.mean(axis=0)
    assert np.max(np.asarray(ahead) / (expected + lost)) > 1.03


def test_what_is_scored_ahead_is_expected_too():
    params = toy_params()
    setup = make_setup(params, TABLE).replace(outlook=in_pairs(params))
    now, before = setup.outlook.now, setup.outlook.before
    scored = ScoredTable(
        prior_rates(setup), table_rates(setup, now, before), table_rates(setup, before)
    )
    one = jnp.zeros((TABLE.size, setup.problem.choices.size), bool).at[:, 0].set(True)
    for candidates in (None, one):
        alone = expected_rates(setup, candidates)
        np.testing.assert_array_equal(
            expected_rates(setup.replace(scored=scored), candidates), alone
        )
    assert (np.asarray(alone) < np.asarray(expected_rates(setup))).any()


def test_where_gpus_do_not_vary_nothing_is_laid_out_anew():
    params = toy_params()
    setup = make_setup(params, TABLE).replace(outlook=in_pairs(params), gpus_vary=False)
    assert (np.asarray(expected_losses(setup)) == 0).all()


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


def test_where_gpus_do_not_vary_nothing_is_kept():
    params = env_params(cluster_spec(3, gpus=8, gbps=2.0), JOB, PLANS[0])
    setup = make_setup(params, TABLE).replace(gpus_vary=False)
    assert first_layouts(setup) is None
