"""What a layout is, its name, and which layouts a number of ranks has. Without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

SCHEDULES = ("gpipe", "1f1b")
NAME = re.compile(
    r"(?:dp(?P<dp>\d+))?-?(?:tp(?P<tp>\d+))?-?(?:pp(?P<pp>\d+)-(?P<schedule>gpipe|1f1b)-m(?P<micro>\d+))?"
    r"-?(?:zero(?P<zero>[0-3]))?"
)


class Impossible(ValueError):
    """A layout that cannot train a model on the ranks at hand. One line."""


class Sizes(Protocol):
    """What is asked of a model, such as `LlamaShape`."""

    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def hidden(self) -> int: ...


@dataclass(frozen=True, order=True)
class Layout:
    """How ranks share a model and its batch.

    Attributes:
        dp: replicas that share the batch.
        tp: ranks that share every matrix.
        pp: stages that share the layers.
        zero: what replicas share of the model (Rajbhandari et al. 2020): 0 nothing; 1 the state of the
            optimizer; 2 gradients too; 3 weights too.
        schedule: of the micro-batches of a pipeline: gpipe or 1f1b; empty without one.
        micro: micro-batches of a step, 1 without a pipeline.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    zero: int = 0
    schedule: str = ""
    micro: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks it needs."""
        return self.dp * self.tp * self.pp

    @property
    def name(self) -> str:
        """Such as dp2-tp2-zero3 or pp4-1f1b-m8; degrees of 1 are left out."""
        parts = [f"{axis}{n}" for axis, n in (("dp", self.dp), ("tp", self.tp)) if n > 1]
        parts += [f"pp{self.pp}-{self.schedule}-m{self.micro}"] if self.pp > 1 else []
        parts += [f"zero{self.zero}"] if self.zero else []
        return "-".join(parts) or "dp1"


def parse_layout(name: str) -> Layout:
    """The layout of this name.

    Raises:
        Impossible: for a name of none.
    """
    found = NAME.fullmatch(name)
    if not found or not name or name.startswith("-"):
        raise Impossible(f"{name!r} names no layout: allowed are names such as {EXAMPLES}")
    groups = {key: value for key, value in found.groupdict().items() if value is not None}
    schedule = groups.pop("schedule", "")
    return Layout(schedule=schedule, **{key: int(value) for key, value in groups.items()})


EXAMPLES = "dp2, dp2-zero3, dp2-tp2-zero2 or dp2-pp2-1f1b-m4"


def check_layout(layout: Layout, shape: Sizes, ranks: int, rows: int) -> None:
    """Whether `ranks` ranks can train a model of this shape on batches of `rows` sequences so.

    Raises:
        Impossible: saying what does not fit.
    """
    for degree, size, what in (
        (layout.tp, shape.heads, "heads"),
        (layout.tp, shape.kv_heads, "heads of keys"),
        (layout.tp, shape.hidden, "channels of feed-forward layers"),
        (layout.pp, shape.layers, "layers"),
        (layout.dp * layout.micro, rows, "rows of the batch"),
    ):
        if degree < 1 or size % degree:
            raise Impossible(f"{layout.name}: {size} {what} cannot be shared by {degree}")
    if layout.ranks != ranks:
        raise Impossible(f"{layout.name}: needs {layout.ranks} ranks, there are {ranks}")
    if layout.zero and layout.dp == 1:
        raise Impossible(f"{layout.name}: zero{layout.zero} needs replicas (dp of 2 or more)")
    if layout.zero and layout.zero < 2 and layout.tp > 1:
        raise Impossible(f"{layout.name}: with tp, zero is 0, 2 or 3")
    if layout.zero >= 2 and layout.pp > 1:
        raise Impossible(f"{layout.name}: with pp, zero is 0 or 1")
    if (layout.pp > 1) != (layout.schedule in SCHEDULES) or (layout.pp == 1 and layout.micro != 1):
        raise Impossible(f"{layout.name}: a schedule and micro-batches are for pipelines")
    if layout.pp > 1 and layout.micro < layout.pp:
        raise Impossible(f"{layout.name}: {layout.pp} stages need as many micro-batches")


def _every(ranks: int) -> Iterator[Layout]:
    """Layouts of the grid, possible or not."""
    degrees = [n for n in range(1, ranks + 1) if ranks % n == 0]
    for dp in degrees:
        for tp in degrees:
            pp, rest = divmod(ranks, dp * tp)
            if rest or pp < 1:
                continue
            for zero in range(4):
                if pp == 1:
                    yield Layout(dp, tp, pp, zero)
                    continue
                for schedule in SCHEDULES:
                    for micro in (pp, 2 * pp):
                        yield Layout(dp, tp, pp, zero, schedule, micro)


def layouts_of(shape: Sizes, ranks: int, rows: int) -> list[Layout]:
    """Every layout that can be trained; in a fixed order."""
    out = []
    for layout in _every(ranks):
        try:
            check_layout(layout, shape, ranks, rows)
        except Impossible:
            continue
        out.append(layout)
    return out
