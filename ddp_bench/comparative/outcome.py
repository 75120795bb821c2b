"""What came out of one framework, as it grows."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from ddp_bench.comparative.entries import Entry
from ddp_bench.comparative.judge import bootstrap_interval


@dataclass
class Outcome:
    """One framework.

    Attributes:
        why_not: why it did not run, or was not timed.
        losses: of the first steps, mean over the global batch.
        loss_error: largest relative distance from the reference.
        seconds: of every timed turn [s].
        failed_starts: why starts after the first one failed.
        starts: seconds from the start of the processes to the end of the first step [s].
        rss: largest resident memory by rank [B], when all turns were over.
        imported: the same before the model was built [B].
        lines: of the adapter's own code.
        move: what re-layout cost, or why there is none.
    """

    entry: Entry
    why_not: str | None = None
    losses: list[float] = field(default_factory=list)
    loss_error: float | None = None
    losses_equal: bool | None = None
    seconds: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    failed_starts: list[str] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    imported: list[int] = field(default_factory=list)
    lines: int | None = None
    move: dict[str, Any] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """Whether it trained to the end of what was asked of it."""
        return bool(self.losses) and (self.losses_equal is False or self.why_not is None)

    def row(self, timed_steps: int) -> dict[str, Any]:
        """Everything, as --json writes it."""
        rates = [timed_steps / seconds for seconds in self.seconds] if not self.why_not else []
        return {
            "ran": self.ran,
            "why_not": self.why_not,
            "losses_equal": self.losses_equal,
            "loss_error": self.loss_error,
            "losses": self.losses,
            "steps_per_s": statistics.median(rates) if rates else None,
            "ci95": list(bootstrap_interval(rates)) if rates else None,
            "turns_steps_per_s": rates,
            "peak_rss_bytes": self.rss or None,
            "imported_rss_bytes": self.imported or None,
            "config_lines": self.lines,
            "restart_s": statistics.median(self.starts) if self.starts else None,
            "starts_s": self.starts,
            "failed_starts": self.failed_starts,
            "relayout": self.move or {"why_not": self.why_not or "not tried"},
        }
