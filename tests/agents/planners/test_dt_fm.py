"""DT-FM's costs and its search by hand: no simulator is asked."""

import itertools

import numpy as np
import pytest

from agents.planners.dt_fm import Costs, best_layout, improved


def two_pairs(gradient_gb, batch_gb):
    """0-1 and 2-3 are near each other (10 GB/s, 10 ms one way), all else is far (1 GB/s, 50 ms)."""
    near = np.zeros((4, 4), bool)
    near[[0, 1, 2, 3], [1, 0, 3, 2]] = True
    rtt_s = np.where(near, 0.02, 0.1) * (1 - np.eye(4))
    return Costs(rtt_s, np.where(near, 10.0, 1.0) * (1 - np.eye(4)), gradient_gb, batch_gb)


def test_costs_by_hand():
    costs = two_pairs(gradient_gb=8.0, batch_gb=2.0)
    # A set of two holds half of the model; each member sends the other half of that, twice.
    assert costs.averaging_s((0, 1), 2) == pytest.approx(2 * (0.01 + 2.0 / 10.0))
    assert costs.averaging_s((0, 2), 2) == pytest.approx(2 * (0.05 + 2.0 / 1.0))
    assert costs.averaging_s((0, 1, 2, 3), 1) == pytest.approx(2 * (0.01 + 0.2) + 4 * (0.05 + 2.0))
    assert costs.averaging_s((0,), 4) == 0.0
    # Half the batch's activations per pair; the matching finds the near partners.
    seconds, order = costs.hop((0, 2), (3, 1))
    assert order == (1, 3) and seconds == pytest.approx(0.01 + 1.0 / 10.0)
    assert costs.hop((0, 1), (2, 3))[0] == pytest.approx(0.05 + 1.0)
    # The path through four sets of one passes the far link once.
    seconds, sets = costs.path([(0,), (2,), (1,), (3,)])
    assert seconds == pytest.approx(2 * (0.01 + 2.0 / 10.0) + 0.05 + 2.0)
    assert {sets[1], sets[2]} in ({(1,), (3,)}, {(0,), (2,)}, {(0,), (3,)}, {(1,), (2,)})


def test_who_shares_a_stage_depends_on_what_is_sent():
    gradients = best_layout(two_pairs(100.0, 0.01), (0, 1, 2, 3), 2)
    assert all({0, 1} & set(pipe) and {2, 3} & set(pipe) for pipe in gradients)
    activations = best_layout(two_pairs(0.01, 100.0), (0, 1, 2, 3), 2)
    assert {frozenset(pipe) for pipe in activations} == {frozenset((0, 1)), frozenset((2, 3))}
    assert len(best_layout(two_pairs(1.0, 1.0), (0, 1, 2, 3), 1)) == 4  # replicas, all in one set
    assert len(best_layout(two_pairs(1.0, 1.0), (0, 1, 2, 3), 4)) == 1


@pytest.mark.parametrize("seed", range(2))
def test_the_search_finds_the_best_split_of_six(seed):
    rng = np.random.default_rng(seed)
    rate = rng.uniform(0.2, 5.0, (6, 6))
    costs = Costs(rng.uniform(0.01, 0.2, (6, 6)), rate, 5.0, 2.0)
    for n_sets in (2, 3):
        size = 6 // n_sets
        every = (
            [tuple(sorted(order[i : i + size])) for i in range(0, 6, size)]
            for order in itertools.permutations(range(6))
        )
        best = min(costs.split_s(sets)[0] for sets in every)
        pipes = best_layout(costs, tuple(range(6)), n_sets)
        found = costs.split_s([tuple(sorted(s)) for s in zip(*pipes, strict=True)])[0]
        assert found == pytest.approx(best, rel=0.02)


def test_an_exchange_is_made_as_long_as_it_helps():
    assert improved((3, 1, 2, 0), lambda order: sum(i * x for i, x in enumerate(order))) == (
        *(3, 2, 1, 0),
    )
