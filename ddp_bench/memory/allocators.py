"""Policies of allocators, to be replayed on the same trace.

first_fit, best_fit   one range of addresses (Knuth, The Art of Computer Programming 1, 2.5)
buddy                 powers of two, halved and joined (Knowlton 1965)
pools                 a best-fit range for every kind of tensor
caching               what PyTorch's allocator for CUDA does (c10/cuda/CUDACachingAllocator.cpp)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ddp_bench.memory.arena import GRAIN, Arena, OutOfMemory, rounded

MIB = 1 << 20
SMALL = MIB  # [B]; largest block that comes from a small segment
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB  # of blocks below LARGE_ALONE
LARGE_ALONE = 10 * MIB  # blocks from here on have segments of their own,
SEGMENT_GRAIN = 2 * MIB  # rounded up to this
LARGEST_ORDER = 48  # of a buddy: 256 TiB


class Allocator(Protocol):
    """What replay asks of a policy."""

    moved: int  # [B]; what defragmentation moved

    def allocate(self, block: int, size: int, kind: str) -> None:
        """Place a block of at least one byte. Raises OutOfMemory."""

    def free(self, block: int) -> None:
        """Release it."""

    @property
    def reserved(self) -> int:
        """Most that was ever taken from the device [B]."""


@dataclass
class OneArena:
    """All tensors in one range."""

    arena: Arena

    @property
    def moved(self) -> int:
        return self.arena.moved

    @property
    def reserved(self) -> int:
        return self.arena.high

    def allocate(self, block: int, size: int, kind: str) -> None:
        self.arena.allocate(block, size)

    def free(self, block: int) -> None:
        self.arena.free(block)


@dataclass
class Pools:
    """A best-fit range for every kind: what lives long does not split what lives briefly.

    Ranges cannot lend each other what they hold, so a capacity bounds the sum of their ends.
    """

    capacity: int | None = None
    compacts: bool = False
    _arenas: dict[str, Arena] = field(default_factory=dict)
    _home: dict[int, Arena] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        return sum(arena.moved for arena in self._arenas.values())

    @property
    def reserved(self) -> int:
        return sum(arena.high for arena in self._arenas.values())

    def allocate(self, block: int, size: int, kind: str) -> None:
        arena = self._arenas.setdefault(kind, Arena(best=True, compacts=self.compacts))
        if self.capacity is not None:
            arena.capacity = self.capacity - (self.reserved - arena.high)
        arena.allocate(block, size)
        self._home[block] = arena

    def free(self, block: int) -> None:
        self._home.pop(block).free(block)


@dataclass
class Buddy:
    """Blocks of 512 B times a power of two, each at a multiple of its size."""

    capacity: int | None = None
    reserved: int = 0
    moved: int = 0
    _free: dict[int, list[int]] = field(default_factory=lambda: {LARGEST_ORDER: [0]})
    _blocks: dict[int, tuple[int, int]] = field(default_factory=dict)  # block -> (start, order)

    def allocate(self, block: int, size: int, kind: str) -> None:
        order = (max(size, GRAIN) - 1).bit_length()
        # Of the smallest that fits, the one furthest down: the top of the range stays untouched.
        last = (1 << LARGEST_ORDER if self.capacity is None else self.capacity) - (1 << order)
        fitting = [o for o, free in self._free.items() if o >= order and free and free[0] <= last]
        if not fitting:
            raise OutOfMemory(f"{1 << order:,} B do not fit into {self.capacity:,} B")
        found = min(fitting)
        start = self._free[found].pop(0)
        while found > order:
            found -= 1
            insort(self._free.setdefault(found, []), start + (1 << found))
        self._blocks[block] = (start, order)
        self.reserved = max(self.reserved, start + (1 << order))

    def free(self, block: int) -> None:
        start, order = self._blocks.pop(block)
        while order < LARGEST_ORDER:
            others, twin = self._free.get(order, []), start ^ (1 << order)
            at = bisect_left(others, twin)
            if at == len(others) or others[at] != twin:
                break
            others.pop(at)
            start, order = min(start, twin), order + 1
        insort(self._free.setdefault(order, []), start)


@dataclass
class _Piece:
    """Part of a segment, in a chain of its neighbours."""

    start: int
    size: int
    small: bool  # in a segment of small blocks
    free: bool = True
    before: _Piece | None = None
    after: _Piece | None = None


@dataclass
class Caching:
    """Segments are taken from the device and kept; blocks are cut from them, best fit first.

    Where the capacity is reached, segments without a block go back to the device first.
    """

    capacity: int | None = None
    reserved: int = 0
    moved: int = 0
    _held: int = 0
    _next: int = 0  # address of the next segment
    _pieces: dict[int, _Piece] = field(default_factory=dict)  # start -> free piece
    _blocks: dict[int, _Piece] = field(default_factory=dict)
    _free: dict[bool, list[tuple[int, int]]] = field(  # small? -> (size, start), in order
        default_factory=lambda: {True: [], False: []}
    )

    def allocate(self, block: int, size: int, kind: str) -> None:
        size = rounded(size)
        piece = self._fitting(size) or self._segment(size)
        left = piece.size - size
        # A large block gives back only what is worth a large block.
        if left >= GRAIN if piece.small else left > SMALL:
            rest = _Piece(piece.start + size, left, piece.small, True, piece, piece.after)
            if piece.after:
                piece.after.before = rest
            piece.size, piece.after = size, rest
            self._keep(rest)
        piece.free = False
        self._blocks[block] = piece

    def free(self, block: int) -> None:
        piece = self._blocks.pop(block)
        if (before := piece.before) and before.free:
            self._drop(before)
            piece.start, piece.size = before.start, before.size + piece.size
            piece.before = before.before
            if piece.before:
                piece.before.after = piece
        if (after := piece.after) and after.free:
            self._drop(after)
            piece.size += after.size
            piece.after = after.after
            if piece.after:
                piece.after.before = piece
        self._keep(piece)

    def _fitting(self, size: int) -> _Piece | None:
        free = self._free[size <= SMALL]
        at = bisect_left(free, (size, 0))
        if at == len(free):
            return None
        piece = self._pieces[free[at][1]]
        self._drop(piece)
        return piece

    def _segment(self, size: int) -> _Piece:
        if size <= SMALL:
            wanted = SMALL_SEGMENT
        else:
            wanted = LARGE_SEGMENT if size < LARGE_ALONE else rounded(size, SEGMENT_GRAIN)
        if self.capacity is not None and self._held + wanted > self.capacity:
            self._give_back()
            if self._held + wanted > self.capacity:
                raise OutOfMemory(f"{wanted:,} B beside {self._held:,} B of {self.capacity:,} B")
        piece = _Piece(self._next, wanted, size <= SMALL)
        self._next += wanted
        self._held += wanted
        self.reserved = max(self.reserved, self._held)
        return piece

    def _give_back(self) -> None:
        """Return every segment that is one free piece."""
        for free in self._free.values():
            for size, start in [*free]:
                piece = self._pieces[start]
                if piece.before is None and piece.after is None:
                    self._drop(piece)
                    self._held -= size

    def _keep(self, piece: _Piece) -> None:
        piece.free = True
        self._pieces[piece.start] = piece
        insort(self._free[piece.small], (piece.size, piece.start))

    def _drop(self, piece: _Piece) -> None:
        del self._pieces[piece.start]
        free = self._free[piece.small]
        free.pop(bisect_left(free, (piece.size, piece.start)))


def _arena(best: bool) -> Callable[[int | None, bool], Allocator]:
    return lambda capacity, compacts: OneArena(Arena(best, capacity, compacts))


# Name -> a new allocator of a capacity [B] (None: without end), which may push blocks together.
POLICIES: dict[str, Callable[[int | None, bool], Allocator]] = {
    "first_fit": _arena(False),
    "best_fit": _arena(True),
    "buddy": lambda capacity, compacts: Buddy(capacity),
    "pools": lambda capacity, compacts: Pools(capacity, compacts),
    "caching": lambda capacity, compacts: Caching(capacity),
}
