"""Replayed allocators against plain ones that know no index and no list of holes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_bench.memory.allocators import LARGEST_ORDER, MIB, POLICIES
from ddp_bench.memory.arena import Arena, OutOfMemory
from ddp_bench.memory.replay import replay
from ddp_bench.memory.trace import Event, Trace

KINDS = ("parameters", "activations", "temporaries")


class PlainArena:
    """Blocks in a dictionary; holes are worked out anew for every request."""

    def __init__(self, best, capacity=None, compacts=False):
        self.best, self.capacity, self.compacts = best, capacity, compacts
        self.blocks, self.high, self.moved = {}, 0, 0

    def allocate(self, block, size):
        size = -(-size // 512) * 512
        holes, end = [], 0
        for start, length in sorted(self.blocks.values()):
            if start - end >= size:
                holes.append((end, start - end))
            end = start + length
        if holes:
            key = (lambda hole: (hole[1], hole[0])) if self.best else (lambda hole: hole[0])
            self.blocks[block] = (min(holes, key=key)[0], size)
            return
        if self.capacity is not None and end + size > self.capacity:
            if not self.compacts or sum(n for _, n in self.blocks.values()) + size > self.capacity:
                raise OutOfMemory
            end = 0
            for other, (start, length) in sorted(self.blocks.items(), key=lambda item: item[1]):
                self.moved += length if start != end else 0
                self.blocks[other] = (end, length)
                end += length
        self.blocks[block] = (end, size)
        self.high = max(self.high, end + size)

    def free(self, block):
        del self.blocks[block]


class PlainOne(PlainArena):
    def allocate(self, block, size, kind):
        super().allocate(block, size)

    @property
    def reserved(self):
        return self.high


class PlainPools:
    def __init__(self, capacity, compacts):
        self.capacity, self.compacts, self.pools = capacity, compacts, {}

    def allocate(self, block, size, kind):
        pool = self.pools.setdefault(kind, PlainArena(True, None, self.compacts))
        if self.capacity is not None:
            others = sum(other.high for other in self.pools.values() if other is not pool)
            pool.capacity = self.capacity - others
        pool.allocate(block, size)

    def free(self, block):
        next(pool for pool in self.pools.values() if block in pool.blocks).free(block)

    @property
    def reserved(self):
        return sum(pool.high for pool in self.pools.values())

    @property
    def moved(self):
        return sum(pool.moved for pool in self.pools.values())


class PlainBuddy:
    """Free blocks are the largest aligned ones that overlap nothing."""

    moved = 0

    def __init__(self, capacity):
        self.capacity, self.blocks, self.reserved = capacity, {}, 0

    def holes(self, start, order):
        inside = [b for b in self.blocks.values() if start <= b[0] < start + 2**order]
        if not inside:
            yield start, order
        elif inside != [(start, order)]:
            yield from self.holes(start, order - 1)
            yield from self.holes(start + 2 ** (order - 1), order - 1)

    def allocate(self, block, size, kind):
        order = 9
        while 2**order < size:
            order += 1
        last = (2**LARGEST_ORDER if self.capacity is None else self.capacity) - 2**order
        found = [(o, s) for s, o in self.holes(0, LARGEST_ORDER) if o >= order]
        lowest = [min(s for p, s in found if p == o) for o in {o for o, _ in found}]
        fitting = [(o, s) for o, s in found if s in lowest and s <= last]
        if not fitting:
            raise OutOfMemory
        start = min(fitting)[1]
        self.blocks[block] = (start, order)
        self.reserved = max(self.reserved, start + 2**order)

    def free(self, block):
        del self.blocks[block]


class PlainCaching:
    """Segments as lists of [start, size, block or None]."""

    moved = 0

    def __init__(self, capacity):
        self.capacity, self.segments, self.reserved, self.next = capacity, [], 0, 0

    def held(self):
        return sum(size for _, pieces in self.segments for _, size, _ in pieces)

    def allocate(self, block, size, kind):
        size = -(-size // 512) * 512
        small = size <= MIB
        found = [
            (piece[1], piece[0], pieces)
            for of_small, pieces in self.segments
            for piece in pieces
            if of_small == small and piece[2] is None and piece[1] >= size
        ]
        if not found:
            wanted = 2 * MIB if small else 20 * MIB
            if size >= 10 * MIB:
                wanted = -(-size // (2 * MIB)) * 2 * MIB
            if self.capacity is not None and self.held() + wanted > self.capacity:
                self.segments = [s for s in self.segments if any(p[2] is not None for p in s[1])]
                if self.held() + wanted > self.capacity:
                    raise OutOfMemory
            found = [(wanted, self.next, [[self.next, wanted, None]])]
            self.segments.append((small, found[0][2]))
            self.next += wanted
            self.reserved = max(self.reserved, self.held())
        _, start, pieces = min(found, key=lambda f: f[:2])
        at = [piece[0] for piece in pieces].index(start)
        left = pieces[at][1] - size
        if left >= 512 if small else left > MIB:
            pieces[at : at + 1] = [[start, size, block], [start + size, left, None]]
        else:
            pieces[at][2] = block

    def free(self, block):
        for _, pieces in self.segments:
            for piece in pieces:
                if piece[2] == block:
                    piece[2] = None
            at = 0
            while at + 1 < len(pieces):
                if pieces[at][2] is None and pieces[at + 1][2] is None:
                    pieces[at][1] += pieces.pop(at + 1)[1]
                else:
                    at += 1


PLAIN = {
    "first_fit": lambda capacity, compacts: PlainOne(False, capacity, compacts),
    "best_fit": lambda capacity, compacts: PlainOne(True, capacity, compacts),
    "buddy": lambda capacity, compacts: PlainBuddy(capacity),
    "pools": PlainPools,
    "caching": lambda capacity, compacts: PlainCaching(capacity),
}


@st.composite
def traces(draw):
    """Allocations of all sizes at which policies differ, each released later or never."""
    sizes = st.one_of(
        st.integers(1, 4096),
        st.sampled_from([512, 513, MIB, MIB + 1, 10 * MIB - 1, 10 * MIB, 20 * MIB, 23 * MIB]),
        st.integers(1, 24 * MIB),
    )
    requests = draw(st.lists(st.tuples(sizes, st.integers(0, 3), st.sampled_from(KINDS))))
    trace, alive = Trace(), []
    for count, (size, releases, kind) in enumerate(requests):
        trace.events.append(Event(count, size, kind))
        alive.append(count)
        for _ in range(min(releases, len(alive))):
            block = alive.pop(draw(st.integers(0, len(alive) - 1)))
            trace.events.append(Event(block, 0))
    return trace


def plainly(trace, allocator):
    """(bytes taken after every event, bytes moved, index of the event that found no room)."""
    timeline = []
    for index, event in enumerate(trace.events):
        try:
            if event.size:
                allocator.allocate(event.block, event.size, event.kind)
            else:
                allocator.free(event.block)
        except OutOfMemory:
            return tuple(timeline), allocator.moved, index
        timeline.append(allocator.reserved)
    return tuple(timeline), allocator.moved, None


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=60, deadline=None)
@given(trace=traces(), capacity=st.none() | st.integers(1, 60 * MIB), compacts=st.booleans())
def test_a_replay_equals_the_plain_allocator(policy, trace, capacity, compacts):
    found = replay(trace, policy, capacity, compacts)
    wanted = plainly(trace, PLAIN[policy](capacity, compacts))
    assert (found.timeline, found.moved, found.failed_at) == wanted


@settings(max_examples=50, deadline=None)
@given(trace=traces())
def test_nothing_takes_less_than_what_is_alive(trace):
    for policy in POLICIES:
        found = replay(trace, policy)
        assert all(taken >= live for taken, live in zip(found.timeline, trace.live(), strict=True))
        assert 0 <= found.fragmentation < 1


def trace_of(*steps):
    """`("a", 512)` allocates, `"a"` releases."""
    return Trace(
        [Event(ord(s), 0) if isinstance(s, str) else Event(ord(s[0]), s[1]) for s in steps]
    )


def test_best_fit_takes_the_small_hole_and_first_fit_the_first():
    steps = [("a", 2048), ("b", 512), ("c", 512), ("d", 512), "a", "c", ("e", 512)]
    places = {}
    for name, best in (("first", False), ("best", True)):
        arena = Arena(best)
        for event in trace_of(*steps).events:
            arena.allocate(event.block, event.size) if event.size else arena.free(event.block)
        places[name] = arena.place(ord("e"))
    assert places == {"first": 0, "best": 2560}


def test_moving_blocks_together_makes_room_where_only_holes_were():
    trace = trace_of(("a", 1024), ("b", 1024), ("c", 1024), ("x", 1024), "a", "c", ("d", 2048))
    assert replay(trace, "best_fit", capacity=4096).failed_at == 6
    moved = replay(trace, "best_fit", capacity=4096, compacts=True)
    assert (moved.failed_at, moved.moved, moved.reserved) == (None, 2048, 4096)


def test_the_caching_policy_takes_segments_as_pytorch_does():
    small = replay(trace_of(("a", 1), ("b", MIB)), "caching")
    assert small.timeline == (2 * MIB, 2 * MIB)
    large = replay(trace_of(("a", MIB + 1), ("b", 10 * MIB), "b", ("c", 9 * MIB)), "caching")
    assert large.timeline == (20 * MIB, 20 * MIB, 20 * MIB, 20 * MIB)


def test_an_unknown_policy_is_refused():
    with pytest.raises(KeyError):
        replay(Trace(), "worst_fit")
