"""Losses held against the reference; intervals of medians by the bootstrap."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000
LEAST = 1.0  # [nat]; float32 rounds logits, by as much where what is left of the loss is small


def global_losses(by_rank: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean over the ranks that have a loss, step by step; by_rank is [ranks][steps].

    Raises:
        ValueError: for a step whose loss no rank has.
    """
    found = []
    for step, row in enumerate(zip(*by_rank, strict=True)):
        there = [loss for loss in row if loss is not None]
        if not there:
            raise ValueError(f"no rank has the loss of step {step}")
        found.append(math.fsum(there) / len(there))
    return found


def disagreement(
    losses: Sequence[float], reference: Sequence[float], tolerance: float
) -> tuple[float | None, str | None]:
    """How far losses are from the reference's.

    Returns:
        The largest difference, relative to the reference or to LEAST where that is larger, None
        where a loss is not finite; and in words what is wrong, None where all of them are within
        the tolerance.
    """
    for whose, row in (("loss", losses), ("reference's loss", reference)):
        for step, loss in enumerate(row):
            if not math.isfinite(loss):
                return None, f"the {whose} of step {step} is {loss}"
    errors = [abs(a - b) / max(abs(b), LEAST) for a, b in zip(losses, reference, strict=True)]
    worst = max(errors)
    if worst <= tolerance:
        return worst, None
    first = next(step for step, error in enumerate(errors) if error > tolerance)
    return worst, (
        f"losses disagree: {worst:.2g} off the reference, more than {tolerance:g}; "
        f"first at step {first}"
    )


def bootstrap_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the median (Efron and Tibshirani 1993, chapter 13), the same for the
    same values."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
