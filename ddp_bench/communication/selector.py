"""Which method to send by: the link is estimated from messages, the cheapest method is chosen.

Only what was measured up to now is used. A method must be better by a margin, `patience` times in a
row, before it replaces the one in force. While messages are small they say nothing of the link's
rate, so that now and then a larger one is sent as a probe, within half a per cent of the time.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ddp_bench.communication.links import Link

PROBE_SHARE = 0.005  # of the time that passes
SMALL_PROBE = 64  # [B]
CHANGED = 1.5  # factor between expected and seen seconds that tells another link
SPREAD = 8  # of sizes from which latency and rate can be told apart
PRIOR = 1e-3  # weight of the last estimate beside what was seen
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

    @cached_property
    def totals(self) -> tuple[float, float]:
        """Bytes and hops of a step."""
        return sum(m[0] for m in self.messages), sum(m[1] for m in self.messages)

    def on(self, latency: float, per_byte: float) -> float:
        """Seconds of a step on a link: one hop takes `latency` [s], one byte `per_byte` [s]."""
        wire, hops = self.totals
        return self.seconds + wire * per_byte + hops * latency


class Seen(NamedTuple):
    """What the messages of one call tell: sums of squared relative errors, and their sizes.

    A message of `hops` hops and `wire` bytes that took `seconds` is the equation
    hops / seconds * latency + wire / seconds * per_byte = 1. Sums are means over messages.

    Attributes:
        hop_hop, hop_byte, byte_byte: products of the two coefficients.
        hop, byte: the coefficients.
        least, most: bytes of a hop.
    """

    hop_hop: float
    hop_byte: float
    byte_byte: float
    hop: float
    byte: float
    least: float
    most: float


def _summed(messages: Sequence[tuple[float, float, float]]) -> Seen:
    share = 1 / len(messages)
    hops = [h / s for _, h, s in messages]
    wires = [w / s for w, _, s in messages]
    sizes = [w / h for w, h, _ in messages if h]
    return Seen(
        share * sum(h * h for h in hops),
        share * sum(h * w for h, w in zip(hops, wires, strict=True)),
        share * sum(w * w for w in wires),
        share * sum(hops),
        share * sum(wires),
        min(sizes, default=math.inf),
        max(sizes, default=0.0),
    )


def least_relative(
    hop_hop: float, hop_byte: float, byte_byte: float, hop: float, byte: float
) -> tuple[float, float]:
    """(latency, seconds per byte) of the least squared relative errors; neither is negative.

    Args:
        hop_hop, hop_byte, byte_byte, hop, byte: sums as in `Seen`; both diagonal ones are positive.
    """
    long, wide = math.sqrt(hop_hop), math.sqrt(byte_byte)
    angle = hop_byte / (long * wide)
    first, second = hop / long, byte / wide
    rest = 1 - angle * angle
    if rest < 1e-14:  # all messages alike: the latency alone explains them as well
        return first / long, 0.0
    latency = (first - angle * second) / rest
    per_byte = (second - angle * first) / rest
    # Coefficients are positive, so that at most one of the two is negative.
    if latency < 0:
        latency, per_byte = 0.0, second
    elif per_byte < 0:
        latency, per_byte = first, 0.0
    return latency / long, per_byte / wide


class LinkEstimate:
    """Latency of a hop and seconds per byte, from messages; older ones count less.

    Relative errors are minimised, so that small messages tell the latency. Neither is negative.
    A call costs what its own messages cost: of earlier calls only sums are kept.

    Args:
        half_life: calls of `observe` after which a message counts half.
        most: calls that are remembered.
    """

    def __init__(self, half_life: float = 1.0, most: int = 8) -> None:
        self._weights = [0.5 ** (age / half_life) for age in range(most)]
        self._seen: deque[Seen] = deque(maxlen=most)  # the latest first
        self.latency, self.per_byte = FIRST

    def observe(self, messages: Iterable[tuple[float, float, float]]) -> None:
        """Messages as (bytes on the wire, hops, seconds) that were sent since the last call."""
        found = [m for m in messages if m[2] > 0]
        if not found:
            return
        if self._is_another_link(found):
            self._seen.clear()
        self._seen.appendleft(_summed(found))
        # The last estimate stands in for what the messages do not tell.
        hop, byte = PRIOR / max(self.latency, 1e-7), PRIOR / max(self.per_byte, 1e-13)
        sums = [hop * hop, 0.0, byte * byte, hop * hop * self.latency, byte * byte * self.per_byte]
        for weight, seen in zip(self._weights, self._seen, strict=False):
            sums = [total + weight * part for total, part in zip(sums, seen[:5], strict=True)]
        self.latency, self.per_byte = least_relative(*sums)

    def sizes(self) -> tuple[float, float]:
        """Least and most bytes of a hop among the messages that are remembered."""
        least = min((seen.least for seen in self._seen), default=0.0)
        return (least if least < math.inf else 0.0), max((s.most for s in self._seen), default=0.0)

    def _is_another_link(self, messages: Sequence[tuple[float, float, float]]) -> bool:
        """Whether most messages took much more or much less than was expected: then what was seen
        before is of a link that is gone. Relative errors of old, faster messages would outweigh it."""
        ratios = [
            max(hops * self.latency + wire * self.per_byte, 1e-12) / seconds
            for wire, hops, seconds in messages
        ]
        return not 1 / CHANGED <= statistics.median(ratios) <= CHANGED


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
