"""Orders of a ring of groups, the fastest first."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Float

RINGS = 6  # orders of more than four groups
MOST_LISTED = 8  # groups whose orders are all compared: 5,040


def ring_orders(between: Float[np.ndarray, "n n"]) -> list[tuple[int, ...]]:
    """Orders of n groups in a ring, by the slowest of the n transfers; each begins with group 0.

    `between` [n, n]: the time that a transfer from one group to the next takes, in any unit. All orders
    of up to four groups, RINGS of more; of more than MOST_LISTED those that exchanges make of walks to
    the nearest group.
    """
    n = len(between)
    if n <= MOST_LISTED:
        orders = np.array([(0, *rest) for rest in itertools.permutations(range(1, n))])
    else:
        walks = [improved(between, nearest(between, start)) for start in range(RINGS)]
        orders = np.array(list(dict.fromkeys(walks)))
    slowest = between[orders, np.roll(orders, -1, axis=1)].max(axis=1)
    best = np.argsort(slowest, kind="stable")[: RINGS if n > 4 else len(orders)]
    return [tuple(int(g) for g in orders[i]) for i in best]


def nearest(between: Float[np.ndarray, "n n"], start: int) -> tuple[int, ...]:
    """From `start` always on to the nearest group that is left."""
    order, left = [start], set(range(len(between))) - {start}
    while left:
        order.append(min(left, key=lambda g: (between[order[-1], g], g)))
        left.remove(order[-1])
    return tuple(order)


def improved(between: Float[np.ndarray, "n n"], order: tuple[int, ...]) -> tuple[int, ...]:
    """The ring after all reversals of a part of it that make its slowest transfer faster, or all
    together where that one stays; begun at group 0."""

    def cost(ring: np.ndarray) -> tuple[float, float]:
        each = between[ring, np.roll(ring, -1)]
        return float(each.max()), float(each.sum())

    ring, least = np.array(order), cost(np.array(order))
    better = True
    while better:
        better = False
        for i, j in itertools.combinations(range(len(ring) + 1), 2):
            turned = np.concatenate([ring[:i], ring[i:j][::-1], ring[j:]])
            if (now := cost(turned)) < least:
                ring, least, better = turned, now, True
    return tuple(int(g) for g in np.roll(ring, -int(np.argmin(ring))))
