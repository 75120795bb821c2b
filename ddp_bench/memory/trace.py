"""What a training step asks of an allocator, in order, and what is alive in between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Event:
    """An allocation of `size` bytes, or, with size 0, the end of the allocation `block`."""

    block: int
    size: int
    kind: str = "unknown"


@dataclass
class Trace:
    """Events in order, and where parts of the step begin: (index of an event, name)."""

    events: list[Event] = field(default_factory=list)
    marks: list[tuple[int, str]] = field(default_factory=list)

    def live(self) -> list[int]:
        """Bytes alive after every event."""
        sizes: dict[int, int] = {}
        total, out = 0, []
        for event in self.events:
            if event.size:
                sizes[event.block] = event.size
                total += event.size
            else:
                total -= sizes.pop(event.block)
            out.append(total)
        return out

    @property
    def peak(self) -> int:
        """Most bytes alive at once."""
        return max(self.live(), default=0)

    def live_by_kind(self) -> dict[str, list[int]]:
        """Bytes of every kind alive after every event."""
        kinds = sorted({event.kind for event in self.events if event.size})
        out: dict[str, list[int]] = {kind: [] for kind in kinds}
        total, held = dict.fromkeys(kinds, 0), {}
        for event in self.events:
            if event.size:
                held[event.block] = event
                total[event.kind] += event.size
            else:
                ended = held.pop(event.block)
                total[ended.kind] -= ended.size
            for kind in kinds:
                out[kind].append(total[kind])
        return out

    def peaks(self, names: Iterable[str]) -> dict[str, int]:
        """Most bytes alive in the parts of the step that have these names; 0 for one that is not
        there. A part lasts to the next mark, and begins with what is alive then."""
        live = self.live()
        ends = [at for at, _ in self.marks[1:]] + [len(live)]
        out = dict.fromkeys(names, 0)
        for (begin, name), end in zip(self.marks, ends, strict=True):
            if name in out and live:
                out[name] = max(out[name], *live[max(begin - 1, 0) : end], 0)
        return out
