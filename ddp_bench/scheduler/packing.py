"""Partition of samples for padding-free micro-batches: Karmarkar-Karp differencing.

Without padding the cost of a group is the sum of its samples' costs, so this is multiway number
partitioning: NP-hard, and the largest differencing method is within a few per cent at these sizes.
"""

from __future__ import annotations

import heapq

import numpy as np


def karmarkar_karp(costs: np.ndarray, ranks: int) -> list[list[int]]:
    """Indices for every rank, with nearly equal sums; groups may differ in size, or be empty.

    Repeatedly merges the two partial partitions with the largest spread, largest sums of one on
    smallest of the other. O(B (log B + G log G)).

    Args:
        costs: [B], non-negative.
        ranks: G.

    Returns:
        G index lists that partition 0..B-1, largest sum first.
    """
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for index, cost in enumerate(np.asarray(costs, np.float64).tolist()):
        parts = [(cost, [index])] + [(0.0, []) for _ in range(ranks - 1)]
        heap.append((-cost, index, parts))
    heapq.heapify(heap)
    serial = len(heap)  # makes heap entries comparable and the result deterministic
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        merged = [
            (one[0] + other[0], one[1] + other[1])
            for one, other in zip(first, reversed(second), strict=True)
        ]
        merged.sort(key=lambda part: -part[0])
        serial += 1
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], serial, merged))
    if not heap:
        return [[] for _ in range(ranks)]
    return [indices for _, indices in heap[0][2]]
