"""One growing range of addresses: holes are split, merged, chosen by a rule, or pushed together."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

GRAIN = 512  # [B]; every block is a multiple of it, as on CUDA


class OutOfMemory(RuntimeError):
    """A request that the capacity leaves no room for."""


def rounded(size: int, grain: int = GRAIN) -> int:
    """`size` up to a multiple of `grain`."""
    return -(-size // grain) * grain


@dataclass
class Arena:
    """Addresses from 0 up. Holes lie between blocks; the range ends where its last block ends.

    Attributes:
        best: take the smallest hole that fits, else the first.
        capacity: [B]; None grows without end.
        compacts: where nothing fits, move all blocks together and try again.
        high: furthest end that the range ever had [B].
        moved: what was moved [B].
    """

    best: bool
    capacity: int | None = None
    compacts: bool = False
    high: int = 0
    moved: int = 0
    _starts: list[int] = field(default_factory=list)  # of holes, in order
    _holes: dict[int, int] = field(default_factory=dict)  # start -> size
    _by_size: list[tuple[int, int]] = field(default_factory=list)  # (size, start), in order
    _blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # block -> (start, size)
    _end: int = 0

    def allocate(self, block: int, size: int) -> None:
        """Place a block. Raises OutOfMemory."""
        size = rounded(size)
        start = self._choose(size)
        if start is None:
            if self.capacity is not None and self._end + size > self.capacity:
                self._make_room(size)
            start, self._end = self._end, self._end + size
            self.high = max(self.high, self._end)
        else:
            left = self._remove(start) - size
            if left:
                self._add(start + size, left)
        self._blocks[block] = (start, size)

    def free(self, block: int) -> None:
        """Release a block; the hole merges with its neighbours."""
        start, size = self._blocks.pop(block)
        at = bisect_left(self._starts, start)
        if at < len(self._starts) and self._starts[at] == start + size:
            size += self._remove(self._starts[at])
        if at and (before := self._starts[at - 1]) + self._holes[before] == start:
            start, size = before, size + self._remove(before)
        if start + size == self._end:
            self._end = start
        else:
            self._add(start, size)

    def place(self, block: int) -> int:
        """Where a block lies."""
        return self._blocks[block][0]

    def _choose(self, size: int) -> int | None:
        if self.best:
            at = bisect_left(self._by_size, (size, 0))
            return self._by_size[at][1] if at < len(self._by_size) else None
        return next((start for start in self._starts if self._holes[start] >= size), None)

    def _make_room(self, size: int) -> None:
        """Push all blocks to the bottom, in the order in which they lie."""
        held = sum(length for _, length in self._blocks.values())
        if not self.compacts or held + size > (self.capacity or 0):
            raise OutOfMemory(f"{size:,} B do not fit beside {held:,} B of {self.capacity:,} B")
        end = 0
        for block, (start, length) in sorted(self._blocks.items(), key=lambda item: item[1]):
            self.moved += length * (start != end)
            self._blocks[block] = (end, length)
            end += length
        self._end = end
        self._starts, self._holes, self._by_size = [], {}, []

    def _add(self, start: int, size: int) -> None:
        insort(self._starts, start)
        insort(self._by_size, (size, start))
        self._holes[start] = size

    def _remove(self, start: int) -> int:
        size = self._holes.pop(start)
        self._starts.pop(bisect_left(self._starts, start))
        self._by_size.pop(bisect_left(self._by_size, (size, start)))
        return size
