"""Options of the microbench room."""

from __future__ import annotations

from dataclasses import dataclass

from ddp_bench.errors import ConfigError
from ddp_bench.options import check_options, option
from ddp_bench.toolbox import Room

KINDS = ("collectives", "gemm", "convolution", "attention", "optimizer", "copy", "steps")
LARGEST_KB = 1 << 21


@dataclass(frozen=True)
class MicrobenchSettings:
    """Every option; the help text is in the metadata."""

    what: str = option("all", f"kinds, comma separated: {', '.join(KINDS)}, or all")
    ranks: str = option("2,4", "numbers of ranks of the collectives, comma separated")
    smallest_kb: int = option(4, "smallest message [KiB]", f"[1, {LARGEST_KB}]")
    largest_kb: int = option(16384, "largest message [KiB]; each is twice the last", "[1, inf)")
    repeats: int = option(21, "timed rounds at least", "[2, 10000]")
    steady_pct: float = option(
        4.0, "what is not known that well goes on: half of its 95 % interval [%]", "(0, 1000000]"
    )
    limit_s: float = option(
        120.0, "no such round begins later: per kind, and per number of ranks [s]", "[0, 1000000]"
    )
    timeout_s: float = option(120.0, "a rank silent for this long ends the run [s]", "(0, 1000000]")

    def __post_init__(self) -> None:
        check_options(self)
        if not self.smallest_kb <= self.largest_kb <= LARGEST_KB:
            low, high = self.smallest_kb, LARGEST_KB
            raise ConfigError(f"largest_kb is {self.largest_kb}: allowed {low} to {high}")
        unknown = [kind for kind in self.kinds() if kind not in KINDS]
        if unknown or not self.kinds():
            raise ConfigError(f"what is {self.what!r}: allowed all, {', '.join(KINDS)}")
        parts = self.ranks.split(",")
        if not all(part.strip().isdigit() and 1 < int(part) <= 64 for part in parts):
            raise ConfigError(f"ranks is {self.ranks!r}: allowed are numbers from 2 to 64")

    def kinds(self) -> list[str]:
        """Kinds of `what`."""
        if self.what == "all":
            return list(KINDS)
        return [kind.strip() for kind in self.what.split(",") if kind.strip()]

    def groups(self) -> list[int]:
        """Numbers of `ranks`."""
        return [int(part) for part in self.ranks.split(",")]

    def sizes(self) -> list[int]:
        """Sizes of messages [B]."""
        out, size = [], self.smallest_kb
        while size <= self.largest_kb:
            out.append(1024 * size)
            size *= 2
        return out


ROOM = Room(
    name="microbench",
    text="Measure messages between ranks, operators and whole training steps.",
    settings=MicrobenchSettings,
    quick={"ranks": "2", "smallest_kb": 64, "largest_kb": 8192, "repeats": 11, "limit_s": 5.0},
    work="ddp_bench.microbench.work:work",
)
