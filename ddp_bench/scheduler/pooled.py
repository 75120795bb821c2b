"""How one shared pool of B samples is split over G ranks so that the slowest rank is fastest.

The cost of a group depends on its size and its longest sample only, and grows with both. Then
some optimal split is contiguous in sorted order: take the group that holds the longest sample;
exchanging its other members for the longest remaining ones leaves its own cost unchanged and
cannot raise anybody else's. Caps differ by rank: a group of longer samples never wants more
members than one of shorter samples, so the smallest cap goes with the longest samples.

For a threshold T a greedy sweep (every group takes as many as T and its cap allow, longest
first) decides whether T is feasible; T* is the least cost for which it is.
"""

from __future__ import annotations

import numpy as np

from ddp_bench.scheduler.costs import CostModel
from ddp_bench.scheduler.counts import Infeasible


def split_pool(
    lengths: np.ndarray, ranks: int, cost: CostModel, caps: list[int] | None = None
) -> list[np.ndarray]:
    """Indices into `lengths` for every rank; minimal largest cost, every rank gets at least one.

    Ties: least total cost, then least variance, among contiguous splits.

    Args:
        lengths: [B] tokens.
        ranks: G.
        cost: the cost of a group.
        caps: most samples per rank, or None.

    Returns:
        G index arrays that partition 0..B-1.

    Raises:
        Infeasible: when B < G or the caps hold fewer than B samples.
    """
    lengths = np.asarray(lengths)
    size = len(lengths)
    limits = [size] * ranks if caps is None else [min(int(cap), size) for cap in caps]
    if size < ranks:
        raise Infeasible(f"global batch {size} < {ranks} ranks: every rank needs one sample")
    if min(limits) < 1 or sum(limits) < size:
        raise Infeasible(f"memory caps {limits} hold fewer than the global batch {size}")
    by_cap = sorted(range(ranks), key=limits.__getitem__)
    ordered_caps = [limits[rank] for rank in by_cap]
    order = np.argsort(-lengths, kind="stable")
    table = cost(np.arange(1, max(limits) + 1)[None, :], lengths[order][:, None])  # [B, k]
    threshold = _least_threshold(table, ordered_caps)
    groups: list[np.ndarray] = [order] * ranks
    start = 0
    for rank, count in zip(by_cap, _best_counts(table, ordered_caps, threshold), strict=True):
        groups[rank] = order[start : start + count]
        start += count
    return groups


def _sweep(table: np.ndarray, caps: list[int], threshold: float) -> tuple[bool, float]:
    """(True, largest cost used) if `threshold` is feasible, else (False, next one worth trying).

    No threshold below the least cost that was refused changes the sweep, so that is the next.
    """
    size = len(table)
    start, used, refused = 0, 0.0, np.inf
    for position, cap in enumerate(caps):
        row = table[start]
        most = min(cap, size - start - (len(caps) - position - 1))  # leave one for each after
        count = min(int(row.searchsorted(threshold, "right")), most)
        if count < most:
            refused = min(refused, row[count])
        if count == 0:
            return False, refused
        used = max(used, row[count - 1])
        start += count
    return (True, used) if start == size else (False, refused)


def _least_threshold(table: np.ndarray, caps: list[int]) -> float:
    """T*: bisection on the cost axis that jumps between costs that occur, so it ends exactly."""
    low = table[0, 0]
    feasible, value = _sweep(table, caps, low)
    if feasible:
        return value
    low = value
    high = _sweep(table, caps, table[0, -1])[1]
    while low < high:
        middle = 0.5 * (low + high)
        feasible, value = _sweep(table, caps, middle if middle < high else low)
        if feasible:
            high = value
        else:
            low = value
    return high


def _best_counts(table: np.ndarray, caps: list[int], threshold: float) -> list[int]:
    """Group sizes of the contiguous split with costs <= `threshold`, least (total, squares).

    best[i] is the least cost of giving samples i.. to the groups from the present one on.
    """
    size, width = table.shape
    allowed = np.where(table <= threshold, table, np.inf)
    end = np.arange(size)[:, None] + np.arange(1, width + 1)  # [B, k] -> first sample not taken
    inside = np.minimum(end, size)
    allowed[end > size] = np.inf
    total = np.full(size + 1, np.inf)
    square = np.full(size + 1, np.inf)
    total[size] = square[size] = 0.0
    squares_here = allowed * allowed
    choices = []
    for cap in reversed(caps):
        totals = (allowed + total[inside])[:, :cap]
        least = totals.min(axis=1)
        tied = totals <= least[:, None] * (1 + 1e-12)
        squares = np.where(tied, (squares_here + square[inside])[:, :cap], np.inf)
        choice = squares.argmin(axis=1)
        choices.append(choice + 1)
        at = np.arange(size)
        total = np.append(totals[at, choice], np.inf)
        square = np.append(squares[at, choice], np.inf)
    counts, start = [], 0
    for choice in reversed(choices):
        counts.append(int(choice[start]))
        start += counts[-1]
    return counts
