"""Hi-PPO's memory of the measured rates, and what a move gains, by hand."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

from agents.hi_ppo.features import (
    Measurement,
    gains,
    init_statistics,
    lower_inputs,
    make_reference,
    update_statistics,
    upper_inputs,
)
from jaxsim.plan.modes import Recompute, Schedule

BASE = np.array([1.0, 2.0])
update = jax.jit(update_statistics)


def measurement(rates, row=0):
    """Rates [P] of the best of two lower choices."""
    best = jnp.asarray(rates, jnp.float32)
    return Measurement(jnp.stack([0.5 * best, best], axis=1), jnp.zeros(2), jnp.int32(row))


def statistics_after(series, rows=None):
    stats = init_statistics(make_reference(jnp.asarray(BASE, jnp.float32)))
    for t, rates in enumerate(series):
        stats = update(stats, measurement(rates, 0 if rows is None else rows[t]))
    return stats


def test_the_reference_is_the_best_static_row():
    reference = make_reference(jnp.array([1.0, 3.0, 2.0], jnp.float32))
    assert float(reference.scale) == 3.0 and int(reference.static_row) == 1


def test_averages_of_a_constant_rate_are_that_rate():
    """Whatever the decays: an average is one of its values where they are all alike."""
    constant = np.array([3.0, 0.25])
    stats = statistics_after([constant] * 300)
    np.testing.assert_allclose(stats.fast, constant, rtol=1e-5)
    np.testing.assert_allclose(stats.slow, constant, rtol=1e-5)
    np.testing.assert_allclose(stats.square, 0.0, atol=1e-4)
    np.testing.assert_array_equal(stats.last, constant.astype(np.float32))


def test_first_measurements_count_fully():
    """The fast average is the plain mean of what was measured, the slow one counts the base as one
    measurement, until their decays are reached."""
    series = np.array([[3.0, 1.0], [5.0, 1.5], [1.0, 4.0]])
    for n in (1, 2, 3):
        stats = statistics_after(series[:n])
        np.testing.assert_allclose(stats.fast, series[:n].mean(axis=0), rtol=1e-6)
        slow = np.vstack([BASE, series[:n]]).mean(axis=0)
        np.testing.assert_allclose(stats.slow, slow, rtol=1e-6)
        assert float(stats.count) == n


def test_averages_settle_to_their_decays():
    """After 100 intervals at one rate, a jump shows in 3 of 10 and 1 of 20 parts."""
    calm, jump = np.array([1.0, 2.0]), np.array([2.0, 1.0])
    stats = statistics_after([calm] * 100 + [jump])
    np.testing.assert_allclose(stats.fast, calm + 0.3 * (jump - calm), rtol=1e-4)
    np.testing.assert_allclose(stats.slow, calm + 0.05 * (jump - calm), rtol=1e-4)
    # Deviations are from the new mean, 0.95 of the jump now and 0.05 the other way before it.
    np.testing.assert_allclose(stats.square, 0.05 * 0.95**2, rtol=1e-3)
    np.testing.assert_allclose(stats.product, -0.05 * 0.95 * 0.05, rtol=1e-3)


def test_successive_deviations_tell_trends_from_noise():
    def product_of(series):
        stats = statistics_after(np.repeat(np.asarray(series)[:, None], 2, axis=1))
        return float((stats.product / stats.square)[0])

    t = np.arange(400)
    assert product_of(2 + np.sin(t / 5)) > 0.8
    assert product_of(2 + (-1.0) ** t) < -0.8
    assert abs(product_of(2 + np.random.default_rng(0).normal(size=400))) < 0.5


def test_the_row_before_and_the_time_since_are_remembered():
    rows = [2, 2, 5, 5, 5, 1]
    expected = [(2, 2, 101), (2, 2, 102), (5, 2, 0), (5, 2, 1), (5, 2, 2), (1, 5, 0)]
    for n, (row, previous, since) in enumerate(expected, start=1):
        stats = statistics_after([BASE] * n, rows)
        assert (int(stats.row), int(stats.previous)) == (row, previous), n
        assert float(stats.since_switch) == since, n


def test_a_move_pays_where_the_rest_of_the_horizon_makes_up_for_the_way():
    rate, switch_s = jnp.array([1.0, 1.5, 4.0, 0.5]), jnp.array([0.0, 120.0, 900.0, 0.0])
    got = gains(rate, switch_s, jnp.int32(0), jnp.float32(10.0), jnp.float32(60.0))
    # Of 600 s the second row trains 480, the third none: it can only lose what staying brings.
    np.testing.assert_allclose(got, [0.0, 1.5 * 0.8 - 1.0, -1.0, 0.5 - 1.0], rtol=1e-5)


# Row 1 is in force; 2 is a little better and near, 3 much better and far, 4 worse, 5 padding.
RATES, SWITCH_S = np.array([0.9, 1.0, 1.1, 1.5, 0.2, 0.0]), np.array([90, 0, 6, 500, 0, 0.0])
BASE_RATES = np.array([1.4, 1.0, 1.1, 1.2, 0.2, 0.0])
STAY, NEAR, FAR, WORSE, PADDING = 1, 2, 3, 4, 5


def world(interval_s=60.0, may=True, moving=False):
    """What the features read of a setup and an observation: two domains, three lower choices."""
    groups = np.array([[0, -1], [-1, 0], [0, 0], [0, 1], [0, 0], [0, 0]])
    layers = np.array([[8, 0], [0, 8], [6, 2], [8, 8], [4, 4], [8, 0]])
    setup = SimpleNamespace(
        interval_s=jnp.float32(interval_s),
        table=SimpleNamespace(
            mask=jnp.arange(6) != PADDING,
            plans=SimpleNamespace(group=jnp.asarray(groups), layers=jnp.asarray(layers)),
        ),
        problem=SimpleNamespace(
            choices=SimpleNamespace(
                micro_batch=jnp.array([1, 2, 8], jnp.int32),
                recompute=jnp.array([Recompute.NONE, Recompute.FULL, Recompute.NONE]),
                schedule=jnp.array([Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B, Schedule.GPIPE]),
            )
        ),
    )
    ones = [jnp.ones((n, 3)) for n in (2, 4)]
    observation = SimpleNamespace(
        graph=jraph.GraphsTuple(*ones, None, None, None, None, None),
        graph_mask=jnp.ones(2, bool),
        job_nodes=7.0 * jnp.ones((1, 2, 4)),
        mask=SimpleNamespace(retarget=jnp.array([may])),
        moving=jnp.array([moving]),
    )
    return setup, observation


def upper(unit=1.0, seconds=1.0, **changes):
    """Inputs and rows after a few intervals, with rates and times in other units."""
    reference = make_reference(jnp.asarray(BASE_RATES * unit, jnp.float32))
    stats = init_statistics(reference)
    for factor in (0.8, 1.1, 1.3, 1.0):
        rates = jnp.asarray(RATES * factor * unit, jnp.float32)
        switch_s = jnp.asarray(SWITCH_S * seconds, jnp.float32)
        measured = Measurement(jnp.stack([0.5 * rates, rates], 1), switch_s, jnp.int32(STAY))
        stats = update(stats, measured)
    setup, observation = world(60.0 * seconds, **changes)
    return upper_inputs(setup, observation, stats, reference, measured)


def test_proposals_are_to_stay_and_the_best_rows_of_near_and_far_horizons():
    inputs, rows = upper()
    assert int(rows[0]) == STAY and bool(inputs.mask[0])
    allowed = np.asarray(rows)[np.asarray(inputs.mask)].tolist()
    assert len(set(allowed)) == len(allowed), "a repetition is masked"
    assert {STAY, NEAR, FAR} <= set(allowed) and WORSE not in allowed and PADDING not in allowed
    assert 0 in allowed, "the best static row"


@pytest.mark.parametrize("changes", [{"may": False}, {"moving": True}])
def test_who_may_not_move_can_only_stay(changes):
    mask = upper(**changes)[0].mask
    assert bool(mask[0]) and int(mask.sum()) == 1


def test_inputs_have_no_units():
    """Rates in tokens instead of steps, times in minutes: the policy sees the same."""
    plain, rows = upper()
    for other, other_rows in (upper(unit=1000.0), upper(seconds=1 / 60)):
        np.testing.assert_array_equal(other_rows, rows)
        np.testing.assert_allclose(other.candidates, plain.candidates, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(other.prior, plain.prior, rtol=1e-3, atol=1e-4)


def test_candidates_are_told_apart_by_what_they_promise():
    inputs, rows = upper()
    place = {int(row): i for i, row in reversed(list(enumerate(rows)))}
    stay, near, far = (np.asarray(inputs.candidates[place[r]], float) for r in (STAY, NEAR, FAR))
    # Now and before, in units of the best static rate 1.4, and what is more than in force.
    np.testing.assert_allclose(far[[0, 3]], [1.5 / 1.4, 1.2 / 1.4], rtol=1e-5)
    np.testing.assert_allclose(far[[4, 7]], [0.5 / 1.4, 0.2 / 1.4], rtol=1e-5)
    assert np.all(stay[4:8] == 0) and np.all(stay[12:17] == 0), "to stay gains nothing"
    np.testing.assert_allclose(near[11], np.log(1 + 6 / 60), rtol=1e-5)
    # Twice the gain per interval over 4, 8, 16, 32 intervals: too far is a loss at first.
    horizons = 60.0 * np.array([4, 8, 16, 32])
    gained = 1.5 * np.maximum(horizons - 500, 0) / horizons - 1.0
    np.testing.assert_allclose(far[12:16], 2 * gained / 1.4, rtol=1e-4)
    assert far[12] < 0 < near[12] and near[15] < far[15]
    # In force, before that, best static.
    for i, row in enumerate(rows.tolist()):
        expected = [row == STAY, row == STAY, row == 0]
        np.testing.assert_array_equal(inputs.candidates[i, 17:20], expected)
    np.testing.assert_allclose(inputs.candidates[:, 20], 0.2 * np.log(1 + 104), rtol=1e-5)
    np.testing.assert_allclose(inputs.candidates[:, 21], 0.2 * np.log(1 + 4), rtol=1e-5)
    # The prior is hysteresis: 20 logits for all of the best static rate, gained over 10 intervals.
    np.testing.assert_allclose(inputs.prior[place[FAR]], 20 * (1.5 / 6 - 1.0) / 1.4, rtol=1e-3)
    shares = np.asarray(inputs.domains)[[place[r] for r in (STAY, NEAR, FAR)]]
    np.testing.assert_allclose(shares, [[0, 1], [0.75, 0.25], [0.5, 0.5]])


def test_a_setting_that_is_one_per_cent_slower_starts_with_odds_of_one_to_twenty():
    setup, observation = world()
    rates = jnp.tile(jnp.array([2.0, 1.98, 0.0], jnp.float32), (6, 1))
    inputs = lower_inputs(setup, observation, rates, jnp.int32(NEAR))
    np.testing.assert_array_equal(inputs.mask, [True, True, False])
    np.testing.assert_allclose(np.exp(inputs.prior[:2]), [1.0, np.exp(-3)], rtol=1e-3)
    np.testing.assert_array_equal(inputs.in_force, [True, True])
    expected = [[1, 0, 0, 0, 0], [0.99, 1 / 3, 1, 1, 0], [0, 1, 0, 0, 1]]
    np.testing.assert_allclose(inputs.choices, expected, rtol=1e-5)
    nodes = inputs.wan.graph.nodes
    np.testing.assert_array_equal(nodes, [[1, 1, 1, 7, 7, 7, 7]] * 2)
