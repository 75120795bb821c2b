"""The scheduling library against brute force."""

from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_bench.scheduler.costs import CostModel, padded_length, prefix_costs
from ddp_bench.scheduler.counts import (
    Infeasible,
    solve_enumeration,
    solve_greedy,
    solve_order_statistic,
)
from ddp_bench.scheduler.fit import OnlineFit
from ddp_bench.scheduler.packing import karmarkar_karp
from ddp_bench.scheduler.pooled import split_pool

LENGTH_COSTS = (
    CostModel("tokens"),
    CostModel("tokens_sq"),
    CostModel("tokens", pad_to_multiple_of=8),
    CostModel("fitted", 3.0, 0.05, 0.001),
    CostModel("fitted", 0.0, 0.02, 0.0, pad_to_multiple_of=4),
)
COSTS = st.sampled_from(LENGTH_COSTS)


def drawn_problem(seed):
    """(rows, B) with caps, feasible by construction; short lengths make many ties."""
    rng = np.random.default_rng(seed)
    cost, longest = LENGTH_COSTS[rng.integers(5)], rng.choice([3, 12, 80])
    rows = [
        prefix_costs(rng.integers(1, longest + 1, rng.integers(1, 9)), cost, rng.integers(1, 9))
        for _ in range(rng.integers(1, 5))
    ]
    return rows, int(rng.integers(len(rows), sum(len(row) for row in rows) + 1))


# From a seed: drawn piece by piece, problems take longer to draw than to solve.
def count_problems():
    return st.integers(0, 2**32 - 1).map(drawn_problem)


def keys(rows, counts):
    costs = np.array([row[count - 1] for row, count in zip(rows, counts, strict=True)])
    return costs.max(), costs.sum(), (costs**2).sum()


@settings(max_examples=2500, deadline=None)
@given(count_problems())
def test_order_statistic_equals_enumeration_tie_breaks_included(problem):
    rows, total = problem
    counts = solve_order_statistic(rows, total)
    assert sum(counts) == total
    assert all(1 <= b <= len(row) for b, row in zip(counts, rows, strict=True))
    worst, cost, squares = keys(rows, counts)
    best_worst, best_cost, best_squares = keys(rows, solve_enumeration(rows, total))
    assert worst == best_worst
    assert cost == pytest.approx(best_cost, rel=1e-9)
    assert squares == pytest.approx(best_squares, rel=1e-9)


@settings(max_examples=500, deadline=None)
@given(count_problems())
def test_greedy_reaches_the_same_maximum(problem):
    rows, total = problem
    counts = solve_greedy(rows, total)
    assert sum(counts) == total
    assert keys(rows, counts)[0] == keys(rows, solve_order_statistic(rows, total))[0]


@settings(max_examples=200, deadline=None)
@given(count_problems())
def test_tokens_and_their_square_have_the_same_optimal_maximum(problem):
    rows, total = problem
    squared = [row**2 for row in rows]
    plain = keys(rows, solve_order_statistic(rows, total))[0]
    assert keys(rows, solve_order_statistic(squared, total))[0] == plain


def test_counts_scale_to_large_problems():
    rng = np.random.default_rng(0)
    rows = [prefix_costs(rng.integers(3, 66, 64), CostModel("tokens")) for _ in range(64)]
    counts = solve_order_statistic(rows, 1024)
    assert keys(rows, counts)[0] == keys(rows, solve_greedy(rows, 1024))[0]


@pytest.mark.parametrize("solver", [solve_order_statistic, solve_greedy, solve_enumeration])
@pytest.mark.parametrize(
    ("sizes", "total", "said"),
    [((2, 2), 1, "1 < 2 ranks"), ((2, 2), 5, "4 samples"), ((2, 0), 2, "rank 1")],
)
def test_counts_refuse_what_cannot_be(solver, sizes, total, said):
    rows = [np.arange(1.0, size + 1) for size in sizes]
    with pytest.raises(Infeasible, match=said):
        solver(rows, total)


def brute_force_pool(lengths, ranks, cost, caps):
    """Least largest cost over every assignment of samples to ranks with no rank empty."""
    best = np.inf
    for owner in product(range(ranks), repeat=len(lengths)):
        worst = 0.0
        for rank in range(ranks):
            mine = [n for n, who in zip(lengths, owner, strict=True) if who == rank]
            if not mine or len(mine) > caps[rank]:
                break
            worst = max(worst, float(cost(len(mine), max(mine))))
        else:
            best = min(best, worst)
    return best


@settings(max_examples=250, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=3, max_size=7), COSTS, st.data())
def test_pooled_split_equals_brute_force(lengths, cost, data):
    ranks = data.draw(st.integers(1, 3))
    caps = [data.draw(st.integers(1, 7)) for _ in range(ranks)]
    if sum(caps) < len(lengths):
        with pytest.raises(Infeasible):
            split_pool(np.array(lengths), ranks, cost, caps)
        return
    groups = split_pool(np.array(lengths), ranks, cost, caps)
    assert sorted(np.concatenate(groups).tolist()) == list(range(len(lengths)))
    assert all(1 <= len(group) <= cap for group, cap in zip(groups, caps, strict=True))
    worst = max(float(cost(len(group), np.array(lengths)[group].max())) for group in groups)
    assert worst == brute_force_pool(lengths, ranks, cost, caps)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=3, max_size=9), COSTS)
def test_pooled_tie_break_is_least_total_then_least_squares(lengths, cost):
    ordered = sorted(lengths, reverse=True)
    found = []
    for cuts in combinations(range(1, len(ordered)), 2):
        edges = [0, *cuts, len(ordered)]
        costs = [float(cost(b - a, ordered[a])) for a, b in pairwise(edges)]
        found.append((max(costs), sum(costs), sum(value**2 for value in costs)))
    groups = split_pool(np.array(lengths), 3, cost)
    costs = [float(cost(len(group), np.array(lengths)[group].max())) for group in groups]
    worst = min(found)[0]
    total = min(key[1] for key in found if key[0] == worst)
    squares = min(k[2] for k in found if k[0] == worst and k[1] <= total * (1 + 1e-9))
    assert (max(costs), sum(costs)) == pytest.approx((worst, total), rel=1e-9)
    assert sum(value**2 for value in costs) == pytest.approx(squares, rel=1e-9)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_karmarkar_karp_partitions_within_its_bound(costs, ranks):
    groups = karmarkar_karp(np.array(costs), ranks)
    assert sorted(index for group in groups for index in group) == list(range(len(costs)))
    sums = [sum(costs[i] for i in group) for group in groups]
    assert max(sums) - min(sums) <= max(costs)
    if len(costs) >= ranks:
        assert all(groups)


def test_karmarkar_karp_is_near_optimal_on_small_instances():
    rng = np.random.default_rng(1)
    gaps = []
    owners = np.array(list(product(range(3), repeat=9)))
    for _ in range(30):
        costs = rng.integers(3, 60, 9)
        best = np.max([(owners == rank) @ costs for rank in range(3)], axis=0).min()
        gaps.append(max(costs[group].sum() for group in karmarkar_karp(costs, 3)) / best)
    assert np.mean(gaps) < 1.05


def test_padding_to_a_multiple_is_part_of_the_cost():
    assert padded_length(np.array([1, 8, 9]), 8).tolist() == [8, 8, 16]
    assert CostModel("tokens", pad_to_multiple_of=8)(3, 9) == 48


def test_prefix_costs_are_strictly_increasing_and_capped():
    row = prefix_costs(np.array([5, 2, 9, 1]), CostModel("tokens"), cap=3)
    assert row.tolist() == [5, 10, 27]


@pytest.mark.parametrize("bad", [{"kind": "flops"}, {"kind": "fitted", "b": 0.0}])
def test_cost_model_refuses_what_does_not_grow(bad):
    with pytest.raises(ValueError):
        CostModel(**bad)


def test_online_fit_recovers_the_coefficients_and_reports_its_error_ahead_of_time():
    rng = np.random.default_rng(2)
    fit = OnlineFit()
    assert fit.cost().kind == "tokens" and fit.mape_pct is None
    for _ in range(200):
        count, length = rng.integers(1, 16, 4), rng.integers(4, 66, 4)
        features = np.column_stack([count * length, count * length**2]).astype(float)
        times = (4 + 0.1 * features[:, 0] + 0.001 * features[:, 1]) * rng.normal(1, 0.03, 4)
        fit.update(features, times)
    assert fit.coefficients == pytest.approx([4, 0.1, 0.001], rel=0.2)
    assert 1.5 < fit.mape_pct < 4  # the noise has a mean absolute value of 2.4 %


def test_rows_without_work_or_time_teach_nothing():
    fit = OnlineFit(window=5, warmup=2, every=1)
    features = np.array([[10.0, 100.0], [0.0, 0.0], [20.0, 300.0]])
    fit.update(features, np.array([2.0, 1.0, 0.0]))
    assert fit.rows.tolist() == [[10.0, 100.0, 2.0]] and fit.coefficients is None
    for k in range(1, 5):
        fit.update(k * features[2:], np.array([3.0 + k]))
    assert fit.rows[:, 2].tolist() == [2.0, 4.0, 5.0, 6.0, 7.0] and fit.coefficients is not None
    fit.update(features[:1], np.array([8.0]))
    assert fit.rows[:, 2].tolist() == [4.0, 5.0, 6.0, 7.0, 8.0], "the oldest goes"


def test_online_fit_state_round_trip_continues_identically():
    rng = np.random.default_rng(3)
    data = [(rng.uniform(10, 90, (4, 2)), rng.uniform(1, 9, 4)) for _ in range(60)]
    whole, first = OnlineFit(), OnlineFit()
    for row in data:
        whole.update(*row)
    for row in data[:33]:
        first.update(*row)
    second = OnlineFit()
    second.load_state_dict(first.state_dict())
    for row in data[33:]:
        second.update(*row)
    assert second.coefficients.tolist() == whole.coefficients.tolist()
    assert second.mape_pct == whole.mape_pct


def test_the_contiguous_split_does_not_depend_on_the_order_of_the_pool():
    cost = CostModel("tokens")
    worst = set()
    for lengths in permutations([9, 7, 3, 2, 2]):
        groups = split_pool(np.array(lengths), 2, cost)
        worst.add(max(float(cost(len(g), np.array(lengths)[g].max())) for g in groups))
    assert len(worst) == 1
