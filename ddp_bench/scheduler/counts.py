"""How many samples every rank pops from its own FIFO buffer.

    minimise  max_g c_g(b_g)   subject to   sum_g b_g = B,   1 <= b_g <= n_g

c_g(k) is the cost of rank g's first k samples, strictly increasing in k; n_g is what the buffer
holds or the memory cap allows, whichever is less. Among optima: least total cost, then least
variance (variance alone would prefer more total work).

Order statistic: every rank takes c_g(1) in any case, and exactly B - G of the other entries are
taken. Under a threshold T these are entries <= T. So the least feasible T is
max(max_g c_g(1), (B - G)-th smallest of all c_g(k) with k >= 2): one partial sort, O(GK).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

Rows = Sequence[np.ndarray]  # rank g: [n_g] costs c_g(1..n_g), strictly increasing


class Infeasible(ValueError):
    """No integer counts satisfy the constraints."""


def _check(rows: Rows, total: int) -> list[int]:
    """Buffer sizes n_g; Infeasible when 1 <= b_g <= n_g cannot sum to `total`."""
    sizes = [len(row) for row in rows]
    if total < len(rows):
        raise Infeasible(f"global batch {total} < {len(rows)} ranks: every rank needs one sample")
    if min(sizes) < 1:
        raise Infeasible(f"rank {sizes.index(min(sizes))} has an empty buffer or a cap of 0")
    if sum(sizes) < total:
        raise Infeasible(
            f"the ranks can take {sum(sizes)} samples (buffers and memory caps), fewer than the "
            f"global batch {total}"
        )
    return sizes


def solve_order_statistic(rows: Rows, total: int) -> list[int]:
    """Exact counts in O(GK), plus the tie-break where the optimum is not unique.

    Args:
        rows: one cost row per rank.
        total: the global batch B.

    Returns:
        b_g per rank.

    Raises:
        Infeasible: when no counts satisfy the constraints.
    """
    _check(rows, total)
    ranks = len(rows)
    threshold = max(row[0] for row in rows)
    if total > ranks:
        rest = np.concatenate([row[1:] for row in rows])
        kth = total - ranks - 1
        rest.partition(kth)
        threshold = max(threshold, rest[kth])
    counts = [int(row.searchsorted(threshold, "right")) for row in rows]
    excess = sum(counts) - total
    return _drop(rows, counts, excess) if excess else counts


def _drop(rows: Rows, counts: list[int], excess: int) -> list[int]:
    """Give back `excess` samples at least total cost, then least sum of squares.

    Both keys add up over ranks and, at equal total cost, least sum of squares is least variance,
    so a dynamic programme over ranks is exact. drop[d] is the best for the ranks so far when they
    gave back d samples.
    """
    options = []
    for row, count in zip(rows, counts, strict=True):
        most = min(excess, count - 1)
        options.append(row[count - 1 - most : count][::-1])  # cost after giving back 0..most
    if excess == 1:
        return _drop_one(options, counts)
    cost, square = np.zeros(1), np.zeros(1)
    choices: list[np.ndarray] = []
    for option in options:
        width = min(excess, len(cost) - 1 + len(option) - 1) + 1
        given = np.arange(width)[:, None] - np.arange(len(option))  # by the earlier ranks
        valid = (given >= 0) & (given < len(cost))
        before = np.clip(given, 0, len(cost) - 1)
        costs = np.where(valid, cost[before] + option, np.inf)
        least = costs.min(axis=1)
        tied = costs <= least[:, None] * (1 + 1e-12)
        squares = np.where(tied, square[before] + option * option, np.inf)
        choice = squares.argmin(axis=1)
        choices.append(choice)
        at = np.arange(width)
        cost, square = costs[at, choice], squares[at, choice]
    left = excess
    result = list(counts)
    for rank in range(len(rows) - 1, -1, -1):
        given = int(choices[rank][left])
        result[rank] -= given
        left -= given
    return result


def _drop_one(options: list[np.ndarray], counts: list[int]) -> list[int]:
    """The common case of `_drop`: one sample too many."""
    best, saved, squares = -1, 0.0, 0.0
    for rank, option in enumerate(options):
        if len(option) < 2:
            continue
        here = option[0] - option[1]
        here_squares = here * (option[0] + option[1])
        rounding = 1e-12 * option[0]
        if here > saved + rounding or (here >= saved - rounding and here_squares > squares):
            best, saved, squares = rank, here, here_squares
    result = list(counts)
    result[best] -= 1
    return result


def solve_greedy(rows: Rows, total: int) -> list[int]:
    """Exact min-max by a heap: the next sample goes where the resulting cost is least.

    O(B log G). Same maximum as the order statistic; ties are broken by rank, not by total cost.

    Raises:
        Infeasible: when no counts satisfy the constraints.
    """
    sizes = _check(rows, total)
    counts = [1] * len(rows)
    heap = [(row[1], rank) for rank, row in enumerate(rows) if sizes[rank] > 1]
    heapq.heapify(heap)
    for _ in range(total - len(rows)):
        _, rank = heapq.heappop(heap)
        counts[rank] += 1
        if counts[rank] < sizes[rank]:
            heapq.heappush(heap, (rows[rank][counts[rank]], rank))
    return counts


def solve_enumeration(rows: Rows, total: int) -> list[int]:
    """The oracle: every composition of B into G parts, compared by (max, total, squares).

    Exponential in G; for tests and small problems only.

    Raises:
        Infeasible: when no counts satisfy the constraints.
    """
    sizes = _check(rows, total)
    ranks = len(rows)
    cuts = np.array(list(combinations(range(1, total), ranks - 1)), dtype=int)
    cuts = cuts.reshape(len(cuts), ranks - 1)
    edges = np.hstack([np.zeros((len(cuts), 1), int), cuts, np.full((len(cuts), 1), total)])
    counts = np.diff(edges, axis=1)  # [compositions, G]
    counts = counts[(counts <= np.array(sizes)).all(axis=1)]
    costs = np.stack([rows[g][counts[:, g] - 1] for g in range(ranks)], axis=1)
    worst = costs.max(axis=1)
    keep = worst <= worst.min()
    counts, costs = counts[keep], costs[keep]
    totals = costs.sum(axis=1)
    keep = totals <= totals.min() * (1 + 1e-12)
    counts, costs = counts[keep], costs[keep]
    return counts[(costs**2).sum(axis=1).argmin()].tolist()


COUNT_SOLVERS: dict[str, Callable[[Rows, int], list[int]]] = {
    "order_statistic": solve_order_statistic,
    "greedy": solve_greedy,
    "enumeration": solve_enumeration,
}
