"""One directed link: a queue, a rate, a delay, a share of loss. Pure: time is an argument.

The link serves its queue as a fluid clock: `clock` is the moment until which service has been
accounted for, so that a packet's end of transmission is exact however late the process looks, and a
change of rate takes hold inside a packet.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass

from ddp_bench.wan.network import LinkSpec

NEVER = math.inf


@dataclass
class Counters:
    """What happened on a link since it was made."""

    packets: int = 0  # delivered
    wire_bytes: int = 0  # [B] delivered: IP packets as they are on the wire, headers included
    dropped_bytes: int = 0  # [B] that the full queue refused
    lost_bytes: int = 0  # [B] lost at random


class Link:
    """The queue and the flight of one directed link.

    Packets are opaque; `wire` is what a packet takes on the wire [B].
    """

    def __init__(self, spec: LinkSpec, seed: int = 0) -> None:
        self.counters = Counters()
        self._random = random.Random(seed)
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._flying: deque[tuple[float, int, bytes]] = deque()
        self._queued = 0  # [B] waiting, the packet in transmission included
        self._left = 0.0  # [B] of the first waiting packet that are still to be sent
        self._clock = 0.0  # [s] until which service is accounted for
        self._set(spec)

    def _set(self, spec: LinkSpec) -> None:
        self.spec = spec
        self._bytes_per_s = spec.rate_mbps * 1e6 / 8.0
        self._delay_s = spec.delay_ms * 1e-3
        self._room = spec.queue_kb * 1e3

    @property
    def queued_bytes(self) -> int:
        """[B] that wait."""
        return self._queued

    def change(self, spec: LinkSpec, now: float) -> None:
        """From `now` on the link has these figures; what flies keeps its delay."""
        self._serve(now)
        begun = max(now - self._clock, 0.0)
        if self._waiting:
            self._left -= begun * self._bytes_per_s
        self._clock += begun
        self._set(spec)

    def offer(self, packet: bytes, wire: int, now: float) -> bool:
        """Queue a packet; False where it is lost or does not fit.

        A packet always fits into an empty queue.
        """
        self._serve(now)
        if self.spec.loss and self._random.random() < self.spec.loss:
            self.counters.lost_bytes += wire
            return False
        if self._queued and self._queued + wire > self._room:
            self.counters.dropped_bytes += wire
            return False
        if not self._waiting:
            self._left, self._clock = float(wire), max(now, self._clock)
        self._waiting.append((wire, packet))
        self._queued += wire
        return True

    def _serve(self, now: float) -> None:
        """Move what has been sent by `now` from the queue into flight."""
        waiting, rate = self._waiting, self._bytes_per_s
        while waiting and rate > 0.0:
            sent = self._clock + self._left / rate
            if sent > now:
                return
            wire, packet = waiting.popleft()
            self._queued -= wire
            self._flying.append((self._arrival(sent), wire, packet))
            self._clock = sent
            self._left = float(waiting[0][0]) if waiting else 0.0

    def _arrival(self, sent: float) -> float:
        """A shorter delay lets no packet overtake another."""
        arrival = sent + self._delay_s
        return max(arrival, self._flying[-1][0]) if self._flying else arrival

    def arrived(self, now: float) -> list[bytes]:
        """The packets that have reached the other end by `now`, in order. `now` may lie a little ahead:
        what is served early is not served again."""
        self._serve(now)
        flying, out, counters = self._flying, [], self.counters
        while flying and flying[0][0] <= now:
            _, wire, packet = flying.popleft()
            counters.packets += 1
            counters.wire_bytes += wire
            out.append(packet)
        return out

    def next_event(self) -> float:
        """[s] when the next packet arrives, or can be told to; infinite where nothing will."""
        if self._flying:
            return self._flying[0][0]
        if self._waiting and self._bytes_per_s > 0.0:
            return self._clock + self._left / self._bytes_per_s + self._delay_s
        return NEVER
