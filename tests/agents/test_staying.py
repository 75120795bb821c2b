"""What staying is worth while local jobs take and return GPUs: one interval at a time, and a course."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import PLANS, TABLE
from helpers.toy_world import JOB, calibration, cluster_spec, env_params

from agents.protocol import best_choices, make_setup, table_rates
from agents.staying import first_layouts, losses, staying_rates
from jaxsim.env.env import world_tape
from jaxsim.trees import take

STEPS, INTERVAL_S, RESTART_S = 10, 60.0, 20.0


@functools.cache
def courses():
    """Rates [T, P] as measured, along the whole course and interval by interval."""
    params = env_params(
        cluster_spec(3, gpus=4, gbps=2.0),
        JOB,
        PLANS[0],
        load={"share": 0.6, "swing": 0.5},
        efficiency=calibration(restart_s=RESTART_S),
        horizon=jnp.int32(STEPS),
    )

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


def test_where_gpus_do_not_vary_nothing_is_kept():
    params = env_params(cluster_spec(3, gpus=8, gbps=2.0), JOB, PLANS[0])
    setup = make_setup(params, TABLE).replace(gpus_vary=False)
    assert first_layouts(setup) is None
