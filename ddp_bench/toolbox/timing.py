"""Interleaved repeats on one clock; medians with intervals that assume no distribution."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import numpy as np
import torch

K = TypeVar("K")  # what works are called by


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
    def spread(self) -> float:
        """How far that interval reaches to the further side, relative to the median."""
        low, high = self.interval
        return max(high - self.median, self.median - low) / self.median

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
    from scipy.stats import binom  # takes seconds to import, and few ranks ask for it

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


@dataclass(frozen=True)
class Repeats:
    """How often works are timed, in rounds: what disturbs the machine for a while disturbs all of them.

    Attributes:
        rounds: in which every work is timed.
        warm_up: rounds before them, which are not timed.
        shortest_s: a work that is shorter is done several times under one stopwatch, of which the
            mean counts as one repeat [s].
        steady: works go on for as long as the 95 % interval of their median reaches further than this
            to either side, relative to the median; infinity: none does.
        limit_s: no such round begins later than this behind the first timed one [s].

    Raises:
        ValueError: for no rounds.
    """

    rounds: int
    warm_up: int = 1
    shortest_s: float = 0.0
    steady: float = math.inf
    limit_s: float = math.inf

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError("rounds must be at least 1")

    def take(
        self,
        works: Mapping[K, Callable[[int], float]],
        agree: Callable[[list[float]], list[float]] = list,
    ) -> dict[K, Timed]:
        """Time every work.

        Args:
            works: does it as often as it is told, and gives the seconds of one time in the mean.
            agree: seconds of a round on this rank -> those that count, the same on all ranks.
        """
        seconds: dict[K, list[float]] = {name: [] for name in works}
        counts = dict.fromkeys(works, 1)
        for _ in range(self.warm_up):
            row = agree([work(counts[name]) for name, work in works.items()])
            counts = {n: times_to_last(s, self.shortest_s) for n, s in zip(works, row, strict=True)}
        begin = time.perf_counter()
        left, taken, passed = list(works), 0, 0.0
        while left and (taken < self.rounds or passed < self.limit_s):
            row = [works[name](counts[name]) for name in left]
            # The clock is agreed on as well: ranks that end in different rounds wait for ever.
            *row, passed = agree([*row, time.perf_counter() - begin])
            for name, value in zip(left, row, strict=True):
                seconds[name].append(value)
            taken += 1
            left = [name for name in left if self._goes_on(seconds[name])]
        return {name: Timed(tuple(values)) for name, values in seconds.items()}

    def _goes_on(self, seconds: list[float]) -> bool:
        return len(seconds) < self.rounds or Timed(tuple(seconds)).spread > self.steady


def interleave(
    works: Mapping[str, Callable[[], object]],
    repeats: Repeats,
    device: torch.device | None = None,
) -> dict[str, Timed]:
    """Time works of one process."""
    device = device or torch.device("cpu")
    timed = {name: partial(mean_seconds, work, device) for name, work in works.items()}
    return repeats.take(timed)


def mean_seconds(work: Callable[[], object], device: torch.device, count: int) -> float:
    """Seconds of one of `count` times under one stopwatch."""
    with stopwatch(device) as seconds:
        for _ in range(count):
            work()
    return seconds() / count


def times_to_last(seconds: float, shortest_s: float) -> int:
    """How often something of `seconds` is done until `shortest_s` are over; 1,000 times at most."""
    return max(1, min(math.ceil(shortest_s / max(seconds, 1e-7)), 1000))


def device_of() -> torch.device:
    """The first GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
