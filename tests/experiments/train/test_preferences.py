"""What training scenarios ask for: all kinds of it, the same for the same seed."""

import jax
import numpy as np

from experiments.train.preferences import (
    ALONE,
    PROGRESS,
    WITHIN_BUDGET,
    drawn_preferences,
    objectives_of,
)

PRICES, MANY = (20.0, 80.0), 4000
DRAWN = drawn_preferences(range(MANY), PRICES)


def test_a_seed_asks_for_the_same_whatever_others_stand_beside_it():
    assert drawn_preferences(range(7, 11), PRICES) == DRAWN[7:11]


def test_every_kind_is_asked_for_as_often_as_it_should_be():
    limited = np.array([np.isfinite(asked.budget_usd_per_hour) for asked in DRAWN])
    alone = np.array([asked.weights == PROGRESS for asked in DRAWN]) & ~limited
    error = 4 * 0.5 / np.sqrt(MANY)
    assert abs(alone.mean() - ALONE) < error and abs(limited.mean() - WITHIN_BUDGET) < error
    weighed = np.array([a.weights for a in DRAWN])[~limited & ~alone]
    np.testing.assert_allclose(weighed.sum(axis=1), 1.0, rtol=1e-6)
    assert np.all(weighed[:, 3] == 0) and np.all(weighed >= 0)
    corners = weighed.max(axis=1) == 1
    # The simplex has its mean in the middle; corners are utilisation or cost, nothing between.
    np.testing.assert_allclose(weighed[~corners, :3].mean(axis=0), 1 / 3, atol=4 * 0.24 / 30)
    assert set(map(tuple, weighed[corners])) == {(0, 1, 0, 0), (0, 0, 1, 0)}


def test_where_egress_has_no_price_to_be_set_against_cost_is_not_asked_for():
    weights = np.array([a.weights for a in drawn_preferences(range(MANY), PRICES, priced=False)])
    assert np.all(weights[:, 2] == 0) and weights[:, 1].max() == 1
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-6)


def test_budgets_lie_between_the_cheapest_plan_and_the_fastest():
    budgets = np.array([a.budget_usd_per_hour for a in DRAWN])
    budgets = budgets[np.isfinite(budgets)]
    assert 20.0 <= budgets.min() < 22.0 and 78.0 < budgets.max() <= 80.0


def test_objectives_are_of_one_kind_whatever_is_asked():
    """Progress alone is an objective too, so that one program serves all scenarios."""
    stacked = objectives_of(DRAWN[:32])
    assert {x.shape[0] for x in jax.tree.leaves(stacked)} == {32}
    for i in range(32):
        np.testing.assert_allclose(stacked.weights[i], DRAWN[i].weights, rtol=1e-6)
        assert np.float32(DRAWN[i].budget_usd_per_hour) == stacked.budget_usd_per_hour[i]
