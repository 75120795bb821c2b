"""Interleaved repeats on one clock; medians with intervals that assume no distribution."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.stats import binom


@dataclass(frozen=True)
class Timed:
    """Seconds of every repeat, in the order in which they were taken."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """[s]"""
        return float(np.median(self.seconds))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the median [s]."""
        return median_interval(self.seconds)

    @property
    def repeat_gap(self) -> float | None:
        """How far the medians of odd and even repeats are apart, relative to the smaller one; None
        for a single repeat."""
        if len(self.seconds) < 2:
            return None
        low, high = sorted(float(np.median(self.seconds[i::2])) for i in (0, 1))
        return high / low - 1


@cache
def _rank_of_bound(n: int, level: float) -> int:
    """Largest k for which the k-th smallest and the k-th largest of n values hold the median
    between them with probability `level`; 0 where none does."""
    return int(binom.ppf((1 - level) / 2, n, 0.5))


def median_interval(values: tuple[float, ...], level: float = 0.95) -> tuple[float, float]:
    """Interval of the median from order statistics (David and Nagaraja, Order Statistics, 7.1).

    Fewer than six values hold no 95 % interval: their extremes are given, which is the widest that
    such values can say.
    """
    ordered = sorted(values)
    k = max(_rank_of_bound(len(ordered), level), 1)
    return ordered[k - 1], ordered[-k]


@contextmanager
def stopwatch(device: torch.device) -> Iterator[Callable[[], float]]:
    """`with stopwatch(device) as seconds`: afterwards `seconds()` is what the block took on the
    wall clock, work that it left on a GPU included."""
    taken = float("nan")
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    yield lambda: taken
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    taken = time.perf_counter() - begin


def interleave(
    works: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 1,
    device: torch.device | None = None,
    shortest_s: float = 0.0,
) -> dict[str, Timed]:
    """Time every work `repeats` times, in rounds: what disturbs the machine for a while disturbs
    all of them.

    Args:
        warm_up: rounds that are not timed.
        shortest_s: a work that is shorter is done several times under one stopwatch, of which the
            mean counts as one repeat.

    Raises:
        ValueError: for no repeats.
    """
    if repeats < 1:
        raise ValueError("repeats must be at least 1")
    device = device or torch.device("cpu")
    taken: dict[str, list[float]] = {name: [] for name in works}
    counts = dict.fromkeys(works, 1)
    for turn in range(-warm_up, repeats):
        for name, work in works.items():
            with stopwatch(device) as seconds:
                for _ in range(counts[name]):
                    work()
            if turn >= 0:
                taken[name].append(seconds() / counts[name])
            else:
                counts[name] = times_to_last(seconds() / counts[name], shortest_s)
    return {name: Timed(tuple(values)) for name, values in taken.items()}


def times_to_last(seconds: float, shortest_s: float) -> int:
    """How often something of `seconds` is done until `shortest_s` are over; 1,000 times at most."""
    return max(1, min(math.ceil(shortest_s / max(seconds, 1e-7)), 1000))


def device_of() -> torch.device:
    """The first GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
