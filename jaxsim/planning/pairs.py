"""Which lower choices of a table's rows are worth weighing: most are never a row's best."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float, Int

WITHIN = 1e-3  # of a row's best rate: two choices this near are as good as each other
# Pairs are padded to a multiple of this: tables with others share programs.
STEP = 32


def filled(size: int, step: int) -> int:
    """The least multiple of `step` that is no less than `size`."""
    return step * -(-size // step)


def worthwhile_pairs(
    rates: Float[np.ndarray, "W P V"], allowed: Iterable[Bool[np.ndarray, "P V"]]
) -> Int[np.ndarray, " N"]:
    """[N] pairs, row x V + choice, sorted: a few choices of every row, one of which comes within
    WITHIN of the row's best in each of the states whose `rates` [W, P, V] are given.

    The same holds among the choices that each of `allowed` [P, V] leaves: schedulers with rules of
    their own. Choices are added greedily, the one that serves most states first (set cover: Chvatal
    1979). Padded by repetition of the last to a multiple of STEP; empty where nothing ever runs.
    """
    n_rows, n_choices = rates.shape[1:]
    chosen = np.zeros((n_rows, n_choices), bool)
    for mask in [np.ones((n_rows, n_choices), bool), *allowed]:
        for row in np.flatnonzero(mask.any(axis=1)):
            _cover_row(rates[:, row] * mask[row], chosen[row])
    pairs = np.flatnonzero(chosen).astype(np.int32)
    if not pairs.size:
        return pairs
    return repeated(pairs, filled(len(pairs), STEP))


def repeated(pairs: Int[np.ndarray, " N"], size: int) -> Int[np.ndarray, " M"]:
    """Padded to `size` by the last one."""
    return np.concatenate([pairs, np.repeat(pairs[-1:], size - len(pairs))])


def _cover_row(rates: Float[np.ndarray, "W V"], chosen: Bool[np.ndarray, " V"]) -> None:
    """Add to `chosen`, in place, what one row still lacks; ties go to what is faster in the mean."""
    best = rates.max(axis=1, keepdims=True)
    good = (rates >= (1.0 - WITHIN) * best) & (best > 0)
    lacking = good.any(axis=1) & ~(good & chosen).any(axis=1)
    faster = rates.mean(axis=0) / max(float(rates.max()), 1e-30)  # at most 1: it breaks ties
    while lacking.any():
        one = int(np.argmax(good[lacking].sum(axis=0) + 0.5 * faster))
        chosen[one] = True
        lacking &= ~good[:, one]
