"""Orders of a ring: against all orders where they can be listed, and beyond."""

import itertools

import numpy as np
import pytest

from jaxsim.planning.exact.rings import MOST_LISTED, RINGS, improved, nearest, ring_orders


def times(n, seed, alike=True):
    """[n, n] transfer times between points of a plane, or of any kind."""
    rng = np.random.default_rng(seed)
    if not alike:
        return np.exp(rng.normal(size=(n, n)))
    at = rng.uniform(size=(n, 2))
    return np.linalg.norm(at[:, None] - at[None], axis=-1)


def slowest(between, order):
    return max(between[a, b] for a, b in zip(order, (*order[1:], order[0]), strict=True))


@pytest.mark.parametrize("alike", [True, False])
def test_exchanges_nearly_always_come_to_the_fastest_ring(alike):
    lost = []
    for seed in range(12):
        between = times(7, seed, alike)
        best = min(slowest(between, (0, *r)) for r in itertools.permutations(range(1, 7)))
        walks = [improved(between, nearest(between, start)) for start in range(RINGS)]
        lost.append(min(slowest(between, walk) for walk in walks) / best)
    assert min(lost) >= 1 - 1e-12 and np.median(lost) == pytest.approx(1.0) and max(lost) < 1.5


@pytest.mark.parametrize("n", [MOST_LISTED, MOST_LISTED + 1, 16, 40])
def test_rings_of_many_groups_are_found_in_no_time(n):
    between = times(n, n)
    found = ring_orders(between)
    assert 0 < len(found) <= RINGS and len(set(found)) == len(found)
    assert all(sorted(ring) == list(range(n)) and ring[0] == 0 for ring in found)
    each = [slowest(between, ring) for ring in found]
    assert each == sorted(each)
    assert each[0] <= min(slowest(between, nearest(between, s)) for s in range(RINGS))


def test_a_walk_goes_to_the_nearest_by_hand():
    between = np.array([[0, 5, 1, 9], [5, 0, 2, 3], [1, 2, 0, 4], [9, 3, 4, 0]], float)
    assert nearest(between, 0) == (0, 2, 1, 3)
    # 0 > 2 > 1 > 3 > 0 takes 9 at its slowest; turned, 0 > 2 > 3 > 1 > 0 takes 5.
    assert improved(between, (0, 2, 1, 3)) in {(0, 2, 3, 1), (0, 1, 3, 2)}
