"""The whole plan space, told once: what a group may be, and how groups talk; `allow` narrows it.

A plan of the space is a partition of some domains into groups. A group is one domain or a pipeline over
several, in any order, with settings of its own: tensor parallelism, data parallelism, micro-batch,
recompute, schedule (`PlanFamily`). Groups stand in a ring in any order. What they say to each other is
an `Exchange`: sync period H, bits, fragments and overlap.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from jaxsim.cluster import Cluster
from jaxsim.files import InputError
from jaxsim.learning import LEAST_PERIOD
from jaxsim.plan import FULL_PRECISION_BITS, Plan, Problem
from jaxsim.planning.family import PlanFamily

ALLOWED = ("synchronous", "any")
# Of local SGD. At 15 the published model extrapolates but for eight small replicas, and says so.
PERIODS = (15, 30, 50, 100, 200, 500)
BITS = (16, 8, 4)  # between groups
ACTIVATION_BITS = (16, 8)
CONTEXT_PARALLEL = (1, 2, 4)  # of sequences of LONG_SEQUENCE tokens and more
LONG_SEQUENCE = 16_384
PARTS = (1, 2, 4)  # 1 / part of a domain's GPUs, where local jobs hold some
# What planners with plans of their own are asked for: few plans each, which do not shrink as well.
ASKED_PARTS = (*PARTS, 4 / 3)
MOST_TRIED = 16  # domains of a cluster on which pipelines of any length are tried
STREAMS = ((1, 0), (8, 1))  # fragments and overlap: blocking, or streaming behind one step


@dataclasses.dataclass(frozen=True)
class Exchange:
    """What groups and stages say to each other over the WAN: fields of a plan."""

    sync_period: int = 1
    wire_bits: int = FULL_PRECISION_BITS
    activation_bits: int = FULL_PRECISION_BITS
    fragments: int = 1
    overlap: int = 0

    @staticmethod
    def of(plan: Plan) -> Exchange:
        """How a plan with NumPy leaves talks."""
        return Exchange(
            **{f.name: int(getattr(plan, f.name)) for f in dataclasses.fields(Exchange)}
        )

    def fields(self) -> dict[str, int]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class PlanSpace:
    """The dimensions of the space and their values. A group's settings belong to it where the group
    could train the whole batch alone: memory then holds as many micro-batches as its schedule asks for.

    Attributes:
        allow: synchronous = every step in 16 bits; any = local SGD, fewer bits and streaming as well
        max_pipeline: domains that one group may span
        tried: domains of the longest pipelines that exchanges try, 0 = no plan is made better by
            exchanges; nothing is claimed of pipelines beyond max_pipeline
        groups: settings of a group; its limits on domains and groups are not used
        periods, bits, activation_bits, streams: of `any`; streams are (fragments, overlap)
    """

    allow: str = "any"
    max_pipeline: int = 3
    tried: int = 0
    groups: PlanFamily = dataclasses.field(default_factory=lambda: PlanFamily(cuts=("even",)))
    periods: tuple[int, ...] = PERIODS
    bits: tuple[int, ...] = BITS
    activation_bits: tuple[int, ...] = ACTIVATION_BITS
    streams: tuple[tuple[int, int], ...] = STREAMS

    def __post_init__(self):
        if self.allow not in ALLOWED:
            raise InputError(f"allow: expected {' or '.join(ALLOWED)}, got {self.allow!r}")
        short = [h for h in self.periods if h < LEAST_PERIOD]
        if short:
            raise InputError(
                f"periods: expected numbers >= {LEAST_PERIOD}, got {short[0]}: below, nothing says "
                "what a token is worth"
            )

    @staticmethod
    def of(problem: Problem, most_pipelined: int | None = None, loaded: bool = False) -> PlanSpace:
        """The space that commands search for a job: pipelines over up to three domains on a small
        cluster, two on a larger one, and one beyond `most_pipelined` domains, longer ones tried
        beside; ZeRO 1, and 3 where memory asks for it; shared sequences where they are long; where
        local jobs hold GPUs (`loaded`) a half and a quarter of each domain's as well."""
        n = int(np.asarray(problem.cluster.mask).sum())
        longest = 3 if n <= 4 else 2
        if most_pipelined is not None and n > most_pipelined:
            longest = 1
        ranks = CONTEXT_PARALLEL if int(problem.work.seq) >= LONG_SEQUENCE else (1,)
        groups = PlanFamily(
            cuts=("even",),
            zero_stages=(1, 3),
            context_parallel=ranks,
            parts=PARTS if loaded else (1,),
        )
        return PlanSpace(max_pipeline=longest, tried=n if n <= MOST_TRIED else 0, groups=groups)

    def exchanges(self) -> list[Exchange]:
        """Every way to talk, the synchronous 16-bit one first."""
        if self.allow == "synchronous":
            return [Exchange()]
        stages = sorted(self.activation_bits, reverse=True)
        bits = sorted(self.bits, reverse=True)
        # A pipeline alone says nothing to others: its stages may talk in any bits, whatever `bits` are.
        plain = sorted({FULL_PRECISION_BITS, *bits}, reverse=True)
        every = [Exchange(1, b, a) for b, a in itertools.product(plain, stages)]
        local = itertools.product(self.periods, bits, stages, self.streams)
        every += [Exchange(h, b, a, *stream) for h, b, a, stream in local if stream[0] <= h]
        return list(dict.fromkeys([Exchange(), *every]))

    def orders(self, cluster: Cluster) -> list[tuple[int, ...]]:
        """Every group as an order of domains."""
        domains = np.flatnonzero(np.asarray(cluster.mask)).tolist()
        sizes = range(1, min(self.max_pipeline, len(domains)) + 1)
        return [order for size in sizes for order in itertools.permutations(domains, size)]

    @property
    def longest_tried(self) -> int:
        """Domains of the longest pipeline that a search looks at."""
        return max(self.tried, self.max_pipeline)

    def describe(self) -> str:
        """One line for reports."""
        rest = "every step in 16 bits"
        parts = "" if self.groups.parts == (1,) else f", {self.groups.describe_parts()}"
        zero, ranks = (
            ", ".join(map(str, x)) for x in (self.groups.zero_stages, self.groups.context_parallel)
        )
        if self.allow == "any":
            periods, bits, stages = (
                ", ".join(map(str, x)) for x in (self.periods, self.bits, self.activation_bits)
            )
            streams = " or ".join(f"F {f} tau {t}" for f, t in self.streams)
            rest = f"H 1, {periods}; {bits} bits between groups, {stages} inside; {streams}"
        more = ""
        if self.longest_tried > self.max_pipeline:
            more = f" (up to {self.tried} by exchanges, which no bound covers)"
        return (
            f"partitions of domains into groups, each a pipeline over up to {self.max_pipeline} "
            f"domains{more} in any order with tp, dp, ZeRO {zero}, cp {ranks}, micro-batch, "
            f"recompute and schedule of its own{parts}; {rest}"
        )


def partitions(n_domains: int, largest: int) -> Iterator[tuple[int, ...]]:
    """Every set of disjoint blocks of at most `largest` domains, as bit masks; no domain twice, some
    perhaps in none. Each once: blocks are listed by their smallest domain."""

    def grow(k: int, blocks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if k == n_domains:
            if blocks:
                yield blocks
            return
        yield from grow(k + 1, blocks)
        for i, block in enumerate(blocks):
            if block.bit_count() < largest:
                yield from grow(k + 1, (*blocks[:i], block | 1 << k, *blocks[i + 1 :]))
        yield from grow(k + 1, (*blocks, 1 << k))

    return grow(0, ())
