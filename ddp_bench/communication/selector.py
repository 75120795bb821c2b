"""Which method to send by: the link is estimated from messages, the cheapest method is chosen.

Only what was measured up to now is used. A method must be better by a margin, more than once in a
row, before it replaces the one in force. While messages are small they say nothing of the link's
rate, so that now and then a larger one is sent as a probe, within one per cent of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from ddp_bench.communication.links import Link

PROBE_SHARE = 0.01  # of the time that passes
SMALL_PROBE = 64  # [B]
CHANGED = 1.5  # factor between expected and seen seconds that tells another link
SPREAD = 8  # of sizes from which latency and rate can be told apart
FIRST = (1e-3, 8e-9)  # latency [s] and seconds per byte before anything was measured: 1 Gbit/s


@dataclass(frozen=True)
class MethodCost:
    """What a step costs by a method, whatever the link.

    Attributes:
        messages: (bytes on the wire, hops) of a step, averaged over steps.
        seconds: to compress and decompress [s].
    """

    messages: tuple[tuple[float, float], ...]
    seconds: float

    def on(self, latency: float, per_byte: float) -> float:
        """Seconds of a step on a link: one hop takes `latency` [s], one byte `per_byte` [s]."""
        wire, hops = (sum(m[i] for m in self.messages) for i in (0, 1))
        return self.seconds + wire * per_byte + hops * latency


class LinkEstimate:
    """Latency of a hop and seconds per byte, from messages; older ones count less.

    Relative errors are minimised, so that small messages tell the latency. Neither is negative.

    Args:
        half_life: calls of `observe` after which a message counts half.
        most: calls that are remembered.
    """

    def __init__(self, half_life: float = 1.0, most: int = 8) -> None:
        self._half_life = half_life
        self._seen: deque[list[tuple[float, float, float]]] = deque(maxlen=most)
        self.latency, self.per_byte = FIRST

    def observe(self, messages: Iterable[tuple[float, float, float]]) -> None:
        """Messages as (bytes on the wire, hops, seconds) that were sent since the last call."""
        found = [m for m in messages if m[2] > 0]
        if not found:
            return
        if self._is_another_link(found):
            self._seen.clear()
        self._seen.append(found)
        rows, weights = [], []
        for age, of_call in enumerate(reversed(self._seen)):
            for wire, hops, seconds in of_call:
                rows.append((hops / seconds, wire / seconds))
                weights.append(0.5 ** (age / self._half_life) / len(of_call))
        scaled = np.array(rows) * np.sqrt(weights)[:, None]
        # The last estimate stands in for what the messages do not tell.
        before = 1e-3 * np.diag([1 / max(self.latency, 1e-7), 1 / max(self.per_byte, 1e-13)])
        scale = np.maximum(scaled.max(axis=0), 1e-300)
        a = np.concatenate([scaled, before]) / scale
        b = np.concatenate([np.sqrt(weights), before.sum(axis=1) * (self.latency, self.per_byte)])
        self.latency, self.per_byte = (float(x) for x in nnls(a, b)[0] / scale)

    def sizes(self) -> tuple[float, float]:
        """Least and most bytes of a hop among the messages that are remembered."""
        found = [wire / hops for of_call in self._seen for wire, hops, _ in of_call if hops]
        return min(found, default=0.0), max(found, default=0.0)

    def _is_another_link(self, messages: Sequence[tuple[float, float, float]]) -> bool:
        """Whether most messages took much more or much less than was expected: then what was seen
        before is of a link that is gone. Relative errors of old, faster messages would outweigh it."""
        off = [
            abs(np.log(max(hops * self.latency + wire * self.per_byte, 1e-12) / seconds))
            for wire, hops, seconds in messages
        ]
        return float(np.median(off)) > np.log(CHANGED)


class Selector:
    """Chooses among methods.

    Args:
        costs: of the methods that may be chosen, the first of them at the beginning.
        margin: share of the present step's time that another method must save.
        patience: times in a row that it must.
        compute_s: of a step without messages [s].

    Raises:
        ValueError: for no methods.
    """

    def __init__(
        self,
        costs: Mapping[str, MethodCost],
        compute_s: float = 0.0,
        margin: float = 0.03,
        patience: int = 1,
    ) -> None:
        if not costs:
            raise ValueError("a selector needs at least one method")
        self.costs, self.name = dict(costs), next(iter(costs))
        self.estimate = LinkEstimate()
        self.switches = 0
        self._compute_s, self._margin, self._patience = compute_s, margin, patience
        self._wanted, self._times = self.name, 0
        self._largest = max(
            (m[0] / m[1] for c in costs.values() for m in c.messages if m[1]), default=0.0
        )
        self._allowance_s = 0.0  # what probes may still cost

    def observe(self, messages: Sequence[tuple[float, float, float]], passed_s: float) -> None:
        """Messages as (bytes on the wire, hops, seconds), and the time since the last call [s]."""
        self.estimate.observe(messages)
        self._allowance_s += PROBE_SHARE * passed_s

    def predicted(self, name: str) -> float:
        """Seconds of a step by a method on the link as it is estimated."""
        link = (self.estimate.latency, self.estimate.per_byte)
        return self._compute_s + self.costs[name].on(*link)

    def choose(self) -> str:
        """The method for the coming steps."""
        best = min(self.costs, key=self.predicted)
        gain = 1 - self.predicted(best) / self.predicted(self.name)
        if gain <= self._margin:
            self._times = 0
            return self.name
        self._times = self._times + 1 if best == self._wanted else 1
        self._wanted = best
        if self._times >= self._patience:
            self.name, self._times = best, 0
            self.switches += 1
        return self.name

    def probe_bytes(self) -> int:
        """Size of a probe to send now [B]; 0: none is needed, or it would cost too much by now.

        Messages of one size cannot tell latency from rate. A small probe tells the latency while
        messages are large, and a large one the rate while they are small.
        """
        low, high = self.estimate.sizes()
        large = int(self._largest / 4)
        if high >= SPREAD * low and high >= large:
            return 0
        size = SMALL_PROBE if high >= large else large
        cost = 2 * self.estimate.latency + size * self.estimate.per_byte
        if cost > self._allowance_s:
            return 0
        self._allowance_s -= cost
        return size


def is_decision(step: int, every: int) -> bool:
    """Whether a method is chosen before this step: before every `every`-th, and after the first."""
    return step == 1 or (step > 0 and step % every == 0)


@dataclass(frozen=True)
class Played:
    """A selector on a link.

    Attributes:
        seconds: of all steps, probes included.
        fixed: method -> seconds of all steps by it alone, on the same link.
        switches: of the method.
        chosen: method of every step.
    """

    seconds: float
    fixed: dict[str, float]
    switches: int
    chosen: tuple[str, ...]

    @property
    def regret_pct(self) -> float:
        """Over the best fixed method in hindsight [%]; negative where the selector beats it."""
        return 100 * (self.seconds / min(self.fixed.values()) - 1)


def play(
    costs: Mapping[str, MethodCost], link: Link, steps: int, compute_s: float, every: int = 5
) -> Played:
    """A selector that decides before every `every` steps on an emulated link."""
    selector, total, chosen = Selector(costs, compute_s), 0.0, []
    fixed = dict.fromkeys(costs, 0.0)
    seen: list[tuple[float, float, float]] = []
    passed = 0.0
    for step in range(steps):
        if is_decision(step, every):
            if probe := selector.probe_bytes():
                seconds = link.seconds(step, probe, 2)
                seen.append((probe, 2, seconds))
                total += seconds
            selector.observe(seen, passed)
            seen, passed = [], 0.0
            selector.choose()
        latency, per_byte = link.seconds(step, 0, 1), 1 / link.rate[min(step, len(link.rate) - 1)]
        for name, cost in costs.items():
            fixed[name] += compute_s + cost.on(latency, per_byte)
        taken = compute_s + costs[selector.name].on(latency, per_byte)
        messages = costs[selector.name].messages
        seen += [(w, h, w * per_byte + h * latency) for w, h in messages if w > 0]
        total, passed = total + taken, passed + taken
        chosen.append(selector.name)
    return Played(total, fixed, selector.switches, tuple(chosen))
