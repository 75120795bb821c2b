"""Emulated links: what a message would take on a link whose rate and latency change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SLOWEST_GBPS, FASTEST_GBPS = 0.05, 5.0
LATENCIES_S = (1e-4, 2e-2)  # of one hop


@dataclass(frozen=True)
class Link:
    """A link, step by step.

    Attributes:
        rate: [B/s], one per step; the last one lasts.
        latency: of one hop [s], one per step.
    """

    rate: tuple[float, ...]
    latency: tuple[float, ...]

    def seconds(self, step: int, wire: float, hops: int) -> float:
        """Of a message that puts `wire` bytes on the link in `hops` hops one after the other."""
        at = min(step, len(self.rate) - 1)
        return wire / self.rate[at] + hops * self.latency[at]


def drawn_link(seed: int, steps: int, stay: tuple[int, int] = (40, 160)) -> Link:
    """A link that changes its rate and latency every now and then, and jitters by 10 % in between.

    Rates are drawn log-uniformly from 50 Mbit/s to 5 Gbit/s, latencies from 0.1 to 20 ms.

    Args:
        stay: least and most steps between changes.
    """
    random = np.random.default_rng(seed)
    rates: list[float] = []
    latencies: list[float] = []
    while len(rates) < steps:
        lasts = int(random.integers(stay[0], stay[1] + 1))
        rate = 1e9 / 8 * np.exp(random.uniform(np.log(SLOWEST_GBPS), np.log(FASTEST_GBPS)))
        latency = np.exp(random.uniform(*np.log(LATENCIES_S)))
        rates += list(rate * random.uniform(0.9, 1.1, lasts))
        latencies += [latency] * lasts
    return Link(tuple(map(float, rates[:steps])), tuple(map(float, latencies[:steps])))
