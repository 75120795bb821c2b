"""Forecasts of rates: at base before anything is known, back toward it from what lasts, and seen live
as they were recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import ROWS, TABLE, restless_world

from agents.foresight import Outlook
from agents.hi_ppo.exact import record
from agents.hi_ppo.features import AHEAD, MOVE_FEATURES, ROW_FEATURES
from agents.hi_ppo.forecast import forecast, forecasts_along
from agents.hi_ppo.scheduler import HiPPO, init_policy
from agents.hi_ppo.settings import Networks
from agents.protocol import make_setup, prior_rates, score_rows
from jaxsim.env import reset, step
from jaxsim.trees import take

STEPS = 6
SEEING = Networks(hidden=4, forecasts=True)
CHOICE = jnp.zeros(ROWS, jnp.int32)


def setup():
    return make_setup(restless_world(STEPS, restart_s=70.0), TABLE)


def test_before_anything_is_measured_rates_are_those_at_base():
    known = setup()
    expected = jax.jit(lambda: forecast(known, Outlook.of(known), known.prior, CHOICE))()
    base = jnp.broadcast_to(prior_rates(known)[:, 0], (len(AHEAD), ROWS))
    np.testing.assert_allclose(expected, base, rtol=1e-5)


def test_a_slow_spell_is_expected_to_pass_and_what_it_does_not_touch_to_stay():
    """The link between the first two domains carries a third for forty intervals: a pipeline over it is
    expected to be slow at first, less slow later; one that does not use it stays as it is."""
    known = setup()
    slow = known.prior.bandwidth_gb_per_s.at[0, 1].multiply(0.3).at[1, 0].multiply(0.3)
    view = known.prior.replace(bandwidth_gb_per_s=slow)
    views = jax.tree.map(lambda x: jnp.broadcast_to(x, (40, *x.shape)), view)
    choices = jnp.broadcast_to(CHOICE, (40, ROWS))
    expected = np.asarray(jax.jit(lambda: forecasts_along(known, views, choices))()[-1])
    last = jax.tree.map(lambda x: x[None], view)
    measured = np.asarray(score_rows(known, TABLE.plans, CHOICE[None], last)[0][0])
    base = np.asarray(prior_rates(known)[:, 0])
    assert measured[0] < 0.9 * base[0]
    assert expected[0, 0] < 0.5 * (measured[0] + base[0])
    assert np.all(np.diff(expected[:, 0]) > 0) and expected[-1, 0] < base[0]
    np.testing.assert_allclose(expected[:, 1], base[1], rtol=1e-4)


def test_the_networks_have_room_for_forecasts_where_they_see_them():
    def width(networks):
        shapes = jax.eval_shape(lambda: init_policy(jax.random.key(0), networks)).upper["params"]
        return shapes["row_layers_0"]["kernel"].shape[0], shapes["way"]["kernel"].shape[0]

    blind, seeing = width(Networks(hidden=4)), width(SEEING)
    assert blind == (ROW_FEATURES + 2 * 4, MOVE_FEATURES)
    assert seeing == tuple(size + len(AHEAD) for size in blind)


@pytest.mark.slow
def test_what_is_seen_live_was_recorded_for_training():
    params, key = restless_world(STEPS, restart_s=70.0), jax.random.key(4)
    recording = jax.jit(lambda params: record(params, TABLE, key, STEPS, SEEING))(params)
    scheduler = HiPPO(init_policy(key, SEEING), 1, SEEING).bind(make_setup(params, TABLE))
    look, advance = jax.jit(scheduler.look), jax.jit(step)
    (state, timestep), memory = jax.jit(reset)(key, params), scheduler.init(key)
    plan = params.initial_plan
    for t in range(STEPS):
        looked, memory = look(timestep.observation, memory)
        live, taped = memory.stats, take(recording.stats, t)
        for field in ("last", "fast", "lost", "ahead"):
            np.testing.assert_allclose(getattr(live, field), getattr(taped, field), rtol=1e-3)
        assert live.ahead.shape == (len(AHEAD), ROWS) and np.isfinite(looked.logits).all()
        state, timestep = advance(key, state, plan, params)
    assert np.abs(np.diff(recording.stats.ahead, axis=0)).max() > 0
