"""Fronts, epsilon-dominance and hypervolumes, against counting by hand."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from analysis.statistics.pareto import REFERENCE, covered, front, hypervolume_ratio

FRONT = np.array([[1.0, 4.0], [2.0, 2.0], [4.0, 1.0]])


def test_the_front_is_what_nobody_dominates_each_point_once():
    points = np.array([[2, 2], [1, 4], [3, 3], [4, 1], [2, 2], [np.inf, 0.5], [np.nan, 0.0]])
    assert sorted(map(tuple, front(points))) == [(1, 4), (2, 2), (4, 1)]
    assert front(np.full((3, 2), np.inf)).shape == (0, 2)


def test_coverage_counts_the_points_reached_within_epsilon_in_every_objective():
    points = np.array([[2.03, 2.03], [1.0, 4.081]])
    assert covered(FRONT, points, 0.01).tolist() == [False, False, False]
    assert covered(FRONT, points, 0.021).tolist() == [True, True, False]
    # One point cannot borrow one objective from another point.
    assert not covered(FRONT, np.array([[2.0, 9.0], [9.0, 2.0]]), 0.02).any()
    assert not covered(FRONT, np.full((1, 2), np.inf), 0.02).any()


def test_the_hypervolume_ratio_counts_squares():
    # Relative to the worst, (4, 4), with the reference at 1.1: the front's staircase is the corner
    # of (1, 4), that of (2, 2) and that of (4, 1), in quarters.
    r = REFERENCE
    whole = (r - 0.25) * (r - 1) + (r - 0.5) * (1 - 0.5) + (r - 1) * (0.5 - 0.25)
    middle = (r - 0.5) ** 2
    assert hypervolume_ratio(FRONT, FRONT) == pytest.approx(1.0)
    assert hypervolume_ratio(FRONT, FRONT[1:2]) == pytest.approx(middle / whole)
    assert hypervolume_ratio(FRONT, np.array([[9.0, 9.0], [np.inf, 1.0]])) == 0.0
    assert hypervolume_ratio(FRONT[:1], FRONT[:1]) == pytest.approx(1.0)  # a front of one point


clouds = hnp.arrays(float, st.tuples(st.integers(1, 12), st.just(3)), elements=st.floats(0.1, 9.0))


@settings(max_examples=60, deadline=None)
@given(clouds, st.floats(0.1, 10.0))
def test_fronts_cover_themselves_and_units_do_not_matter(points, scale):
    exact = front(points)
    brute = [
        p
        for p in np.unique(points, axis=0)
        if not any((q <= p).all() and (q < p).any() for q in points)
    ]
    np.testing.assert_array_equal(np.unique(exact, axis=0), brute)
    assert covered(exact, points, 0.0).all()
    some = points[:1] * [1.0, 1.05, 1.0]
    units = np.array([1.0, scale, 1.0])
    assert hypervolume_ratio(exact * units, some * units) == pytest.approx(
        hypervolume_ratio(exact, some), abs=1e-9
    )
    assert 0.0 <= hypervolume_ratio(exact, some) <= 1.0 + 1e-12
