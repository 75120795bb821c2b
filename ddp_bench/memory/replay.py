"""Traces replayed under policies: what each takes from the device, and how much of it is waste."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_bench.memory.allocators import POLICIES
from ddp_bench.memory.arena import OutOfMemory
from ddp_bench.memory.trace import Trace


@dataclass(frozen=True)
class Replayed:
    """What a policy made of a trace.

    Attributes:
        live: most bytes alive at once [B].
        reserved: most bytes taken from the device [B].
        fragmentation: 1 - live / reserved.
        moved: bytes that defragmentation moved [B].
        failed_at: index of the event for which there was no room; None: there was room for all.
        timeline: bytes taken from the device so far, after every event [B].
    """

    live: int
    reserved: int
    fragmentation: float
    moved: int
    failed_at: int | None
    timeline: tuple[int, ...]


def replay(
    trace: Trace, policy: str, capacity: int | None = None, compacts: bool = False
) -> Replayed:
    """Replay `trace` under one of POLICIES.

    Args:
        capacity: of the device [B]; None: without end.
        compacts: whether first_fit, best_fit and pools may move blocks where nothing fits. PyTorch
            cannot do that: tensors hold addresses.

    Raises:
        KeyError: for a policy that is not known.
    """
    allocator = POLICIES[policy](capacity, compacts)
    failed_at, timeline = None, []
    for index, event in enumerate(trace.events):
        try:
            if event.size:
                allocator.allocate(event.block, event.size, event.kind)
            else:
                allocator.free(event.block)
        except OutOfMemory:
            failed_at = index
            break
        timeline.append(allocator.reserved)
    live = trace.peak
    reserved = allocator.reserved
    waste = 1 - live / reserved if reserved and failed_at is None else 0.0
    return Replayed(live, reserved, waste, allocator.moved, failed_at, tuple(timeline))
