"""Hi-PPO's memory of the measured rates, and what a move gains, by hand."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest

from agents.hi_ppo.features import (
    HORIZONS,
    Measurement,
    gains,
    init_statistics,
    lower_inputs,
    make_reference,
    update_statistics,
    upper_inputs,
)
from agents.shrinkage import init_shrinkage, update_shrinkage, weights
from jaxsim.plan.modes import Recompute, Schedule
from jaxsim.planning import Objective

BASE = np.array([1.0, 2.0])
update = jax.jit(lambda stats, rate: update_statistics(stats, rate, 0.1 * rate))


def statistics_after(series):
    stats = init_statistics(make_reference(jnp.asarray(BASE, jnp.float32), jnp.zeros(2)))
    for rates in series:
        stats = update(stats, jnp.asarray(rates, jnp.float32))
    return stats


def test_the_reference_is_the_best_static_row():
    reference = make_reference(jnp.array([1.0, 3.0, 2.0], jnp.float32), jnp.zeros(3))
    assert float(reference.scale) == 3.0 and int(reference.static_row) == 1


def test_averages_of_a_constant_rate_are_that_rate():
    """Whatever the decays: an average is one of its values where they are all alike."""
    constant = np.array([3.0, 0.25])
    stats = statistics_after([constant] * 300)
    np.testing.assert_allclose(stats.fast, constant, rtol=1e-5)
    np.testing.assert_allclose(stats.slow, constant, rtol=1e-5)
    np.testing.assert_allclose(stats.square, 0.0, atol=1e-4)
    np.testing.assert_array_equal(stats.last, constant.astype(np.float32))


def test_averages_start_at_the_base():
    """Of the fast one a fifth is what is measured; the slow one counts the base as
    one measurement, until its decay is reached."""
    series = np.array([[3.0, 1.0], [5.0, 1.5], [1.0, 4.0]])
    fast = BASE
    for n in (1, 2, 3):
        stats = statistics_after(series[:n])
        fast = 0.8 * fast + 0.2 * series[n - 1]
        np.testing.assert_allclose(stats.fast, fast, rtol=1e-6)
        slow = np.vstack([BASE, series[:n]]).mean(axis=0)
        np.testing.assert_allclose(stats.slow, slow, rtol=1e-6)
        assert float(stats.count) == n


def test_what_rows_lose_that_stay_in_force_is_averaged_from_what_is_expected_on():
    """The first row is spared, the second is laid out anew in every interval and trains half of each;
    what they bring when they are moved to is averaged apart."""
    rate, lost = jnp.array([1.0, 3.0]), jnp.array([0.0, 1.5])
    expected = jnp.array([0.2, 0.5], jnp.float32)
    stats = init_statistics(make_reference(jnp.asarray(BASE, jnp.float32), expected))
    np.testing.assert_array_equal(stats.lost, expected)
    np.testing.assert_allclose(stats.fast, BASE + expected, rtol=1e-6)
    stats = update_statistics(stats, rate, lost)
    np.testing.assert_allclose(stats.lost, 0.95 * expected + 0.05 * lost, rtol=1e-6)
    for _ in range(300):
        stats = update_statistics(stats, rate, lost)
    for average in (stats.last, stats.fast, stats.slow):
        np.testing.assert_allclose(average, rate, rtol=1e-5)
    np.testing.assert_allclose(stats.lost, lost, atol=1e-5)
    np.testing.assert_allclose(stats.square, 0.0, atol=1e-4)


def test_averages_settle_to_their_decays():
    """After 100 intervals at one rate, a jump shows in 1 of 5 and 1 of 20 parts."""
    calm, jump = np.array([1.0, 2.0]), np.array([2.0, 1.0])
    stats = statistics_after([calm] * 100 + [jump])
    np.testing.assert_allclose(stats.fast, calm + 0.2 * (jump - calm), rtol=1e-4)
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


FREE = jnp.zeros(4)


def test_a_move_pays_where_the_rest_of_the_horizon_makes_up_for_the_way():
    rate, switch_s = jnp.array([1.0, 1.5, 4.0, 0.5]), jnp.array([0.0, 120.0, 900.0, 0.0])
    got = gains(rate, switch_s, FREE, jnp.int32(0), jnp.float32(10.0), jnp.float32(60.0))
    # Of 600 s the second row trains 480, the third none: it can only lose what staying brings.
    np.testing.assert_allclose(got, [0.0, 1.5 * 0.8 - 1.0, -1.0, 0.5 - 1.0], rtol=1e-5)


def test_where_every_move_outlasts_the_horizon_a_standstill_still_ends():
    """The row in force cannot run, the quickest move takes 900 s of a horizon of 600: the horizon ends
    one interval after that move."""
    rate, switch_s = jnp.array([0.0, 2.0, 3.0]), jnp.array([0.0, 900.0, 920.0])
    got = gains(rate, switch_s, FREE[:3], jnp.int32(0), jnp.float32(10.0), jnp.float32(60.0))
    np.testing.assert_allclose(got, [0.0, 2.0 * 60 / 600, 3.0 * 40 / 600], rtol=1e-5)


def test_the_price_of_a_moves_traffic_is_paid_once():
    rate, price = jnp.array([1.0, 1.5]), jnp.array([0.0, 120.0])
    for intervals, expected in ((10.0, 0.5 - 0.2), (4.0, 0.5 - 0.5), (2.0, 0.5 - 1.0)):
        args = jnp.int32(0), jnp.float32(intervals), jnp.float32(60.0)
        got = gains(rate, jnp.zeros(2), price, *args)
        np.testing.assert_allclose(got, [0.0, expected], atol=1e-6)


# Row 1 is in force; 2 is a little better and near, 3 much better and far, 4 worse, 5 padding.
RATES, SWITCH_S = np.array([0.9, 1.0, 1.1, 1.5, 0.2, 0.0]), np.array([90, 0, 6, 500, 0, 0.0])
BASE_RATES = np.array([1.4, 1.0, 1.1, 1.2, 0.2, 0.0])
FACTORS = (0.8, 1.1, 1.3, 1.0)
STAY, NEAR, FAR, WORSE, PADDING = 1, 2, 3, 4, 5


def world(interval_s=60.0, may=True, moving=False, objective=None):
    """What the features read of a setup and an observation: two domains, three lower choices."""
    groups = np.array([[0, -1], [-1, 0], [0, 0], [0, 1], [0, 0], [0, 0]])
    layers = np.array([[8, 0], [0, 8], [6, 2], [8, 8], [4, 4], [8, 0]])
    setup = SimpleNamespace(
        interval_s=jnp.float32(interval_s),
        objective=objective,
        table=SimpleNamespace(
            mask=jnp.arange(6) != PADDING,
            plans=SimpleNamespace(
                group=jnp.asarray(groups),
                layers=jnp.asarray(layers),
                sync_period=jnp.array([1, 1, 1, 32, 1, 1], jnp.int32),
            ),
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


def lost():
    """[P] the average of what rows lose that stay in force: a tenth of what is measured."""
    average = 0.0 * RATES
    for factor in FACTORS:
        average = 0.95 * average + 0.05 * 0.1 * RATES * factor
    return average


def believed():
    """[H] how far averages are believed after these intervals: `shrinkage` has tests of its own."""
    seen = init_shrinkage(jnp.asarray(BASE_RATES, jnp.float32), jnp.float32(1.4))
    average, before = BASE_RATES, BASE_RATES
    for factor in FACTORS:
        args = (jnp.asarray(x, jnp.float32) for x in (average, RATES * factor))
        average_now, rate = args
        seen = update_shrinkage(seen, average_now, jnp.asarray(before != 0), rate)
        average, before = 0.8 * average + 0.2 * RATES * factor, RATES * factor
    return np.asarray(weights(seen))


def shrunken(horizon):
    """[P] averages as far as they are believed, less what is lost; 0 where nothing runs."""
    average = BASE_RATES
    for factor in FACTORS:
        average = 0.8 * average + 0.2 * RATES * factor
    weight = believed()[HORIZONS.index(horizon)]
    return np.where(RATES > 0, BASE_RATES + weight * (average - BASE_RATES) - lost(), 0.0)


def upper(unit=1.0, seconds=1.0, row=STAY, **changes):
    """Inputs after a few intervals, with rates and times in other units."""
    base = jnp.asarray(BASE_RATES * unit, jnp.float32)
    reference = make_reference(base, 0.0 * base)
    stats = init_statistics(reference)
    for factor in FACTORS:
        rates, before = jnp.asarray(RATES * factor * unit, jnp.float32), stats.last
        stats = update(stats, rates)
    switch_s = jnp.asarray(SWITCH_S * seconds, jnp.float32)
    both = jnp.stack([0.5 * rates, rates], 1)
    measured = Measurement(both, 0.1 * rates, switch_s, jnp.zeros(6), jnp.int32(row))
    setup, observation = world(60.0 * seconds, **changes)
    return upper_inputs(setup, observation, stats, before, reference, measured)


def test_all_rows_but_padding_may_be_chosen():
    np.testing.assert_array_equal(upper().mask, [True, True, True, True, True, False])


@pytest.mark.parametrize("changes", [{"may": False}, {"moving": True}])
def test_who_may_not_move_can_only_stay(changes):
    mask = upper(**changes).mask
    assert bool(mask[STAY]) and int(mask.sum()) == 1


def test_inputs_have_no_units():
    """Rates in tokens instead of steps, times in minutes: the policy sees the same."""
    plain = upper()
    for other in (upper(unit=1000.0), upper(seconds=1 / 60)):
        for name in ("rows", "moves", "prior"):
            close = {"rtol": 1e-3, "atol": 1e-4}
            np.testing.assert_allclose(getattr(other, name), getattr(plain, name), **close)


def test_a_rate_that_never_moved_is_correlated_with_nothing():
    rows = np.asarray(upper().rows, float)
    assert np.isfinite(rows).all() and rows[PADDING, 7] == 0.0
    assert np.all(np.abs(rows[:PADDING, 7]) > 0.05)  # those that moved are


def test_rows_look_the_same_from_wherever_one_is():
    """That lets one encoding serve a decision from every row."""
    here, there = upper(), upper(row=FAR)
    np.testing.assert_array_equal(here.rows, there.rows)
    assert np.any(np.asarray(here.moves) != np.asarray(there.moves))


def test_rows_are_told_apart_by_what_they_bring():
    rows = np.asarray(upper().rows, float)
    # Now and at base, in units of the best static rate 1.4, and what changed since the last time.
    np.testing.assert_allclose(rows[FAR, [0, 3]], [1.5 / 1.4, 1.2 / 1.4], rtol=1e-5)
    np.testing.assert_allclose(rows[:, 4], lost() / 1.4, rtol=1e-5)
    np.testing.assert_allclose(rows[FAR, 5], 1.5 * (1.0 - 1.3) / 1.4, rtol=1e-5)
    np.testing.assert_array_equal(rows[:, 8], [1, 0, 0, 0, 0, 0])  # the best static row
    np.testing.assert_allclose(rows[:, 9], 0.2 * np.array([1, 1, 2, 2, 2, 2]), rtol=1e-6)
    np.testing.assert_allclose(rows[:, 10], 0.1 * np.array([0, 0, 0, 5, 0, 0]), rtol=1e-6)
    np.testing.assert_allclose(rows[:, 11], 0.2 * np.log(1 + 4), rtol=1e-5)
    np.testing.assert_allclose(rows[:, 12:16], [believed()] * 6, rtol=1e-4)
    shares = np.asarray(upper().domains)[[STAY, NEAR, FAR]]
    np.testing.assert_allclose(shares, [[0, 1], [0.75, 0.25], [0.5, 0.5]])


def test_rows_say_what_is_asked_for():
    """The weights as shares, and whether anything is limited; progress alone by default."""
    budget = Objective.of((2.0, 0.0, 2.0, 0.0), budget_usd_per_hour=50.0)
    for objective, expected in (
        (None, [1, 0, 0, 0, 0]),
        (Objective.of((1.0, 0.0, 3.0, 0.0)), [0.25, 0, 0.75, 0, 0]),
        (budget, [0.5, 0, 0.5, 0, 1]),
    ):
        rows = upper(objective=objective).rows
        np.testing.assert_allclose(rows[:, 16:], [expected] * 6, rtol=1e-6)


def test_moves_are_told_apart_by_what_they_promise():
    inputs = upper()
    moves = np.asarray(inputs.moves, float)
    np.testing.assert_array_equal(moves[:, 0], np.arange(6) == STAY)
    assert np.all(moves[STAY, 1:] == 0), "to stay takes no time and gains nothing"
    np.testing.assert_allclose(moves[NEAR, 1], np.log(1 + 6 / 60), rtol=1e-5)
    # Five times the gain per interval over 3, 8, 20 and 60 intervals: too far is a loss at first. Over
    # 3 and 8 intervals the quickest move that can run, which takes 6 s, ends in time.
    horizons = 60.0 * np.array([3, 8, 20, 60])
    here, there = 1.0 - lost()[STAY], 1.5 - lost()[FAR]
    gained = there * np.maximum(horizons - 500, 0) / horizons - here
    np.testing.assert_allclose(moves[FAR, 2:6], 5 * gained / 1.4, rtol=1e-4)
    assert moves[FAR, 2] < moves[FAR, 4] < 0 < moves[FAR, 5] and 0 < moves[NEAR, 2] < moves[NEAR, 5]


def test_moves_promise_what_averages_do_as_far_as_they_are_believed():
    """The last four, by horizon."""
    moves = np.asarray(upper().moves, float)
    for column, horizon in zip(range(14, 18), HORIZONS, strict=True):
        rate = shrunken(horizon)
        there = rate[FAR] * max(60 * horizon - 500, 0) / (60 * horizon)
        expected = 5 * (there - rate[STAY]) / 1.4
        np.testing.assert_allclose(moves[FAR, column], expected, rtol=1e-3)


def test_the_prior_is_a_rule():
    """300 logits for all of the best static rate, gained over 20 intervals at averaged rates as far as
    they are believed, less what is lost."""
    average = shrunken(20.0)
    gained = average * (1 - SWITCH_S / 1200) - average[STAY]
    np.testing.assert_allclose(upper().prior, 300 * gained / 1.4, rtol=1e-3, atol=3e-3)


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
