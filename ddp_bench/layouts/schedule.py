"""A pipeline's step from the times of its parts, where ranks that compute at once slow each other.

Torch's own order of micro-batches: GPipe (Huang et al. 2019, arXiv:1811.06965) and 1F1B (Narayanan et
al. 2019, PipeDream; the flushed form). Ranks that share cores share them evenly, so what a rank
waits for in a bubble is not lost to the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

FORWARD, BACKWARD = "forward", "backward"
Work = tuple[str, int]  # forward or backward, micro-batch


def order_of(schedule: str, stage: int, stages: int, micro: int) -> list[Work]:
    """What a stage does, in order."""
    ahead = micro if schedule == "gpipe" else min(micro, stages - stage)
    out: list[Work] = [(FORWARD, m) for m in range(ahead)]
    for m in range(micro):
        out.append((BACKWARD, m))
        if ahead + m < micro:
            out.append((FORWARD, ahead + m))
    return out


@dataclass(frozen=True)
class Played:
    """A step of a pipeline.

    Attributes:
        seconds: from its begin to its end.
        busy: seconds of every stage in which it computed.
    """

    seconds: float
    busy: tuple[float, ...]

    @property
    def bubble(self) -> float:
        """Seconds in which the busiest stage waited."""
        return self.seconds - max(self.busy)


def play(
    schedule: str,
    micro: int,
    forward: Sequence[float],
    backward: Sequence[float],
    slow: Callable[[int], float] = lambda busy: 1.0,
) -> Played:
    """One step.

    Args:
        forward: seconds of every stage for a micro-batch while no other stage computes.
        backward: the same.
        slow: number of stages that compute -> how much longer each takes (1 or more).
    """
    stages = len(forward)
    waiting = [order_of(schedule, s, stages, micro) for s in range(stages)]
    begun: dict[int, float] = {}  # stage -> what is left of its work
    done: set[tuple[int, Work]] = set()
    clock, busy = 0.0, [0.0] * stages
    while any(waiting) or begun:
        for stage, works in enumerate(waiting):
            if stage not in begun and works and _ready(stage, works[0], stages, done):
                begun[stage] = (forward if works[0][0] == FORWARD else backward)[stage]
        pace = slow(len(begun))
        span = min(begun.values())
        clock += span * pace
        for stage in [*begun]:
            busy[stage] += span * pace
            begun[stage] -= span
            if begun[stage] <= 1e-15:
                del begun[stage]
                done.add((stage, waiting[stage].pop(0)))
    return Played(clock, tuple(busy))


def _ready(stage: int, work: Work, stages: int, done: set[tuple[int, Work]]) -> bool:
    kind, m = work
    if kind == FORWARD:
        return stage == 0 or (stage - 1, work) in done
    return (stage + 1, work) in done or (stage == stages - 1 and (stage, (FORWARD, m)) in done)
