"""Layouts scored by sums of measured times, explained and ranked. Without torch.

A layout names what must be measured for it (`needs`); a profile has the seconds; `score` adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from ddp_bench.layouts.layout import Layout, Sizes
from ddp_bench.layouts.schedule import play

FLOAT = 4  # [B]
FIRST_BUCKET = 1 << 20  # [B] of DistributedDataParallel, and of those after it
BUCKET = 25 << 20


class Shape(Sizes, Protocol):
    """What scoring asks of a model besides."""

    @property
    def width(self) -> int: ...
    @property
    def vocab(self) -> int: ...


class Work(Protocol):
    """What is trained."""

    @property
    def shape(self) -> Shape: ...
    @property
    def rows(self) -> int: ...
    @property
    def length(self) -> int: ...


@dataclass(frozen=True, order=True)
class Need:
    """One thing to measure, while all ranks do it at the same time.

    Attributes:
        kind: part of the model (layer, ends, first, last), update (of the part in `what`), message (of
            the kind in `what`), or plumbing (a pipeline that computes nothing).
        what: see `kind`; of plumbing the schedule and its micro-batches.
        dp, tp, pp: how ranks are grouped.
        zero: of the part, 0 where nothing of it is sharded.
        rows: sequences of a micro-batch, 0 where it does not matter.
        size: of a message [B].
    """

    kind: str
    what: str
    dp: int
    tp: int
    pp: int
    zero: int = 0
    rows: int = 0
    size: int = 0


@dataclass(frozen=True)
class Profile:
    """Measured seconds.

    Attributes:
        parts: part of the model -> seconds of forward and of backward.
        others: update, message or plumbing -> seconds.
        slowdown: number of ranks that compute at once -> how much longer each takes, 1 or more.
    """

    parts: Mapping[Need, tuple[float, float]]
    others: Mapping[Need, float]
    slowdown: Mapping[int, float] = field(default_factory=lambda: {1: 1.0})

    def slow(self, ranks: int) -> float:
        """Slowdown of any number of ranks, on lines between those that were measured."""
        known = sorted(self.slowdown.items())
        if ranks >= known[-1][0]:
            return known[-1][1]
        for (low, at_low), (high, at_high) in pairwise(known):
            if ranks <= high:
                share = max(ranks - low, 0) / (high - low)
                return at_low + share * (at_high - at_low)
        return known[-1][1]


@dataclass(frozen=True)
class Score:
    """Predicted seconds of a step, and of what they are made."""

    layout: Layout
    compute_s: float
    collectives_s: float
    bubble_s: float
    optimizer_s: float

    @property
    def seconds(self) -> float:
        """[s]"""
        return self.compute_s + self.collectives_s + self.bubble_s + self.optimizer_s

    def parts(self) -> dict[str, float]:
        """Name of a part -> its seconds."""
        names = ("compute_s", "collectives_s", "bubble_s", "optimizer_s")
        return {name: getattr(self, name) for name in names}


def layer_numbers(shape: Shape) -> int:
    """Weights of one layer."""
    width, channels = shape.width, shape.width // shape.heads
    attention = 2 * width * shape.heads * channels + 2 * width * shape.kv_heads * channels
    return attention + 3 * width * shape.hidden + 2 * width


def end_numbers(shape: Shape) -> tuple[int, int]:
    """Weights of the embedding, and of norm and head."""
    return shape.vocab * shape.width, shape.vocab * shape.width + shape.width


@dataclass(frozen=True)
class Terms:
    """What a step of a layout consists of, as (how often, need).

    Attributes:
        stages: parts of the model that every stage computes for a micro-batch.
        inside: messages that those parts contain, for the whole step.
        after: messages behind the backward pass, whose time is added.
        updates: of the stage with most to update.
        plumbing: of a pipeline.
    """

    stages: tuple[tuple[tuple[int, Need], ...], ...]
    inside: tuple[tuple[int, Need], ...]
    after: tuple[tuple[float, Need], ...]
    updates: tuple[tuple[float, Need], ...]
    plumbing: Need | None

    def needs(self) -> set[Need]:
        """Everything to measure."""
        groups = (*self.stages, self.inside, self.after, self.updates)
        out = {need for group in groups for _, need in group}
        return out | ({self.plumbing} if self.plumbing else set())


def terms_of(layout: Layout, work: Work) -> Terms:
    """What a step of `layout` consists of."""
    shape, rows = work.shape, work.rows // (layout.dp * layout.micro)
    group = {"dp": layout.dp, "tp": layout.tp, "pp": layout.pp}
    sharded = layout.zero if layout.zero >= 2 else 0

    def part(kind: str) -> Need:
        # Without shards, replicas and stages only say how many ranks compute, which is all of them.
        is_lone = layout.tp == 1 and not sharded
        of = {"dp": 0, "tp": 1, "pp": 0} if is_lone else group
        return Need(kind, "", **of, zero=sharded, rows=rows)

    def update(kind: str) -> Need:
        return replace(part(kind), kind="update", what=kind, rows=0)

    own = shape.layers // layout.pp
    layers = (own, part("layer"))
    plumbing = None
    if layout.pp == 1:
        stages = ((layers, (1, part("ends"))),)
        updates = [(own, update("layer")), (1, update("ends"))]
    else:
        middle = ((layers,),) * (layout.pp - 2)
        stages = ((layers, (1, part("first"))), *middle, (layers, (1, part("last"))))
        updates = [(own, update("layer")), (1, update("last"))]
        what = f"{layout.schedule}-{layout.micro}"
        plumbing = Need("plumbing", what, **group, rows=rows)
    after, share = _after(layout, work, group)
    return Terms(
        stages,
        tuple(_inside(layout, work, group, rows)),
        tuple(after),
        tuple((share * times, need) for times, need in updates),
        plumbing,
    )


def _inside(
    layout: Layout, work: Work, group: Mapping[str, int], rows: int
) -> list[tuple[int, Need]]:
    """Messages within the busiest stage's parts: sums of activations (tp), weights and gradients
    (zero 2 and 3)."""
    shape, out = work.shape, []
    own = shape.layers // layout.pp
    if layout.tp > 1:
        size = FLOAT * rows * work.length * shape.width
        times = 4 * own * layout.micro + layout.micro
        out.append((times, Need("message", "all_reduce tp", **group, size=size)))
    if layout.zero >= 2:
        ends = FLOAT * sum(end_numbers(shape))
        layer = FLOAT * layer_numbers(shape) // layout.tp
        again = own if layout.zero == 3 else 0  # weights of layers are gathered for backward too
        for times, gathers, size in ((own, own + again, layer), (1, 1, ends)):
            out.append((gathers, Need("message", "all_gather dp", **group, size=size)))
            out.append((times, Need("message", "reduce_scatter dp", **group, size=size)))
    return out


def _after(
    layout: Layout, work: Work, group: Mapping[str, int]
) -> tuple[list[tuple[float, Need]], float]:
    """(messages behind the backward pass, share of the parameters that a replica updates)."""
    if layout.dp == 1 or layout.zero >= 2:
        return [], 1.0
    shape = work.shape
    layers = layer_numbers(shape) * (shape.layers // layout.pp) // layout.tp
    ends = sum(end_numbers(shape)) if layout.pp == 1 else max(end_numbers(shape))
    size = FLOAT * (layers + ends)
    is_ddp = layout.tp == layout.pp == 1
    sizes = _buckets(size) if is_ddp else [size]
    kind = "all_reduce dp" if is_ddp else "reduce dp"
    out = [(1.0, Need("message", kind, **group, size=s)) for s in sizes]
    if layout.zero == 0:
        return out, 1.0
    told = Need("message", "broadcast dp", **group, size=size // layout.dp // FLOAT * FLOAT)
    return [*out, (float(layout.dp), told)], 1.0 / layout.dp


def _buckets(size: int) -> list[int]:
    """How DistributedDataParallel cuts gradients of `size` bytes, about."""
    out = [min(size, FIRST_BUCKET)]
    while sum(out) < size:
        out.append(min(size - sum(out), BUCKET))
    return out


def score(layout: Layout, work: Work, profile: Profile) -> Score:
    """Predicted seconds of a step. KeyError where the profile lacks something."""
    terms = terms_of(layout, work)
    inside = sum(times * profile.others[need] for times, need in terms.inside)
    after = sum(times * profile.others[need] for times, need in terms.after)
    updates = sum(times * profile.others[need] for times, need in terms.updates)
    forward = [_total(stage, profile, 0) for stage in terms.stages]
    backward = [_total(stage, profile, 1) for stage in terms.stages]
    if terms.plumbing is None:
        whole = forward[0] + backward[0]
        inside = min(inside, whole)
        return Score(layout, whole - inside, inside + after, 0.0, updates)
    # A pipeline that computes nothing still hands its micro-batches on: so long does one turn take.
    turn = profile.others[terms.plumbing] / (2 * (layout.micro + layout.pp - 1))
    slow = _of_stages(layout, profile)
    alone = slow(layout.pp)  # what was measured was measured while all ranks were busy
    played = play(
        layout.schedule,
        layout.micro,
        [(seconds + turn) / alone for seconds in forward],
        [(seconds + turn) / alone for seconds in backward],
        slow,
    )
    busiest = max(played.busy)
    handing = (
        busiest * 2 * turn / max(f + b + 2 * turn for f, b in zip(forward, backward, strict=True))
    )
    inside = min(inside + handing, busiest)
    return Score(layout, busiest - inside, inside + after, played.bubble, updates)


def _of_stages(layout: Layout, profile: Profile) -> Callable[[int], float]:
    lanes = layout.dp * layout.tp
    return lambda stages: profile.slow(lanes * stages) / profile.slow(lanes)


def _total(stage: Sequence[tuple[int, Need]], profile: Profile, which: int) -> float:
    return sum(times * profile.parts[need][which] for times, need in stage)


def ranked(layouts: Sequence[Layout], work: Work, profile: Profile) -> list[Score]:
    """Scores, the least seconds first."""
    return sorted((score(each, work, profile) for each in layouts), key=lambda s: s.seconds)


def top1_gap(predicted: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """How much slower the layout that is predicted the fastest is than the fastest one [%].

    Args:
        predicted: name -> seconds.
        measured: the same names -> seconds.
    """
    chosen = min(predicted, key=predicted.__getitem__)
    return 100 * (measured[chosen] / min(measured.values()) - 1)
