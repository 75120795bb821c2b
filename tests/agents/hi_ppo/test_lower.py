"""What the lower level goes by: what is balanced on which view, and that policies are recorded as they
play."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import PLANS, TABLE, restless_world
from helpers.toy_world import make_plan

from agents.hi_ppo.exact import record
from agents.hi_ppo.filter import expected_view, init_filter, update_filter
from agents.hi_ppo.lower import allowed_choices, balanced_on
from agents.hi_ppo.scheduler import HiPPO, init_policy
from agents.hi_ppo.settings import LOWER_LEVELS, REFERENCES, Networks
from agents.protocol import make_setup, prior_rates, table_rates
from jaxsim.env import Samples, reset, step
from jaxsim.trees import stack

STEPS, KEY = 6, jax.random.key(4)
# A replica over a link and one that stands alone: how the batch suits them, the link says.
PLAN = make_plan([(0, 1), (2,)], [(4, 4), (8,)], [4, 4], 3, dp=2, micro_batch=2)
OWN = TABLE.replace(plans=stack([PLANS[0], PLANS[1], PLAN]))
ROW = 2


def networks(level):
    return Networks(hidden=4, lower_level=level)


def test_shares_are_balanced_on_what_is_expected_on_what_is_measured_or_on_the_base():
    setup = make_setup(restless_world(STEPS, restart_s=70.0), TABLE)
    slow = setup.prior.replace(bandwidth_gb_per_s=setup.prior.bandwidth_gb_per_s * 0.1)
    filtered = update_filter(init_filter(setup.prior), slow)
    found = {of: balanced_on(setup, networks(of), filtered, slow) for of in LOWER_LEVELS}
    expected = {"filtered": expected_view(filtered, slow), "measured": slow, "base": setup.prior}
    for of, view in expected.items():
        jax.tree.map(np.testing.assert_array_equal, found[of], view)


def test_without_a_lower_level_each_row_has_the_choice_that_suits_the_base():
    setup = make_setup(restless_world(STEPS, restart_s=70.0), TABLE)
    assert allowed_choices(setup, networks("filtered")) is None
    assert allowed_choices(setup, networks("measured")) is None
    allowed, rates = np.asarray(allowed_choices(setup, networks("base"))), prior_rates(setup)
    assert allowed.shape == rates.shape and (allowed.sum(axis=1) == 1).all()
    np.testing.assert_array_equal(allowed.argmax(axis=1), np.asarray(rates).argmax(axis=1))


@functools.cache
def played_and_recorded(level):
    """[STEPS] rates of rows as measured, [STEPS] progress of an interval in units of the best plan's,
    both as played by a policy that stays in PLAN, and the recording."""
    params = restless_world(STEPS, restart_s=70.0).replace(initial_plan=stack([PLAN]))
    recording = jax.jit(lambda params: record(params, OWN, KEY, STEPS, networks(level)))(params)
    scheduler = HiPPO(init_policy(KEY, networks(level)), 1, networks(level))
    scheduler = scheduler.bind(make_setup(params, OWN))
    row = jnp.int32(ROW)

    @jax.jit
    def interval(state, observation, memory):
        looked, memory = scheduler.look(observation, memory)
        plan = scheduler.carried_out(observation, looked, memory, row)
        state, timestep = step(KEY, state, plan, params)
        seen = memory.stats.last, timestep.record.progress[0] / params.progress_ref[0]
        return (state, timestep.observation, memory), seen

    state, timestep = jax.jit(reset)(KEY, params)
    held, out = (state, timestep.observation, scheduler.init(KEY)), []
    for _ in range(STEPS):
        held, seen = interval(*held)
        out.append(jax.tree.map(np.asarray, seen))
    rates, progress = (np.stack(x) for x in zip(*out, strict=True))
    return rates, progress, recording


@pytest.mark.slow
@pytest.mark.parametrize("level", LOWER_LEVELS)
def test_a_policy_is_recorded_as_it_plays(level):
    rates, progress, recording = played_and_recorded(level)
    np.testing.assert_allclose(rates, recording.stats.last, rtol=1e-4)
    np.testing.assert_allclose(progress, recording.stayed[:, ROW], rtol=1e-4)


@pytest.mark.slow
def test_what_rows_are_taken_to_bring_at_first_is_recorded_as_it_is_known_live():
    """At base, or in the mean over samples: links at a fifth of their base or twice as fast."""
    params = restless_world(STEPS, restart_s=70.0).replace(gpus_vary=False)
    prior = make_setup(params, TABLE).prior
    two = [prior.replace(bandwidth_gb_per_s=x * prior.bandwidth_gb_per_s) for x in (0.2, 2.0)]
    params = params.replace(outlook=Samples(before=stack(two), now=stack(two)))
    setup, known = make_setup(params, TABLE), {}
    for reference in REFERENCES:
        of = Networks(hidden=4, reference=reference)
        taped = jax.jit(lambda p, of=of: record(p, TABLE, KEY, 2, of).reference)(params)
        live = HiPPO(init_policy(KEY, of), 1, of).bind(setup).reference
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), live, taped)
        known[reference] = np.asarray(live.base_rate)
    rates = np.asarray(table_rates(setup, stack(two))).max(axis=-1)
    np.testing.assert_allclose(known["outlook"], rates.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(
        known["base"], np.asarray(prior_rates(setup)).max(axis=-1), rtol=1e-5
    )
    assert not np.allclose(known["base"], known["outlook"], rtol=1e-2)


@pytest.mark.slow
def test_what_the_lower_level_goes_by_changes_what_is_played():
    filtered, measured, base = (played_and_recorded(level)[1] for level in LOWER_LEVELS)
    for one, other in ((filtered, measured), (measured, base), (filtered, base)):
        assert not np.allclose(one, other, rtol=1e-4)
