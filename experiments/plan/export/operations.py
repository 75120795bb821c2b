"""One step of a plan as operations of ranks: what is computed, sent and received, and after what.

A rank is one stage of one group: its tensor-parallel and data-parallel GPUs talk inside the domain,
and that time is inside its computation. What crosses from stage to stage is sent and received
micro-batch by micro-batch; at the end gradients travel around the ring of the groups, in the 2 (n - 1)
phases of an all-reduce. Times of computation are the plan's, so whoever plays the operations checks
what a network makes of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from experiments.plan.export.layout import Job, Pipeline, Site
from jaxsim.files import InputError
from jaxsim.workload import ACTIVATION_BYTES, SENT_GRADIENT_BYTES

SCHEDULES = ("1f1b", "eager_1f1b", "gpipe")
MOST_OPERATIONS = 200_000  # of all ranks
FULL_BITS = 16


class Kind(enum.StrEnum):
    """What a rank does."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"


class Operation(NamedTuple):
    """One of a rank. A transfer has two ends, which agree in source, target, tag and size."""

    number: int  # within the rank, from 1
    name: str
    kind: Kind
    after: tuple[int, ...]  # operations of the same rank
    seconds: float = 0.0  # [s] of computing, or that a transfer inside a domain takes
    source: int = -1  # rank
    target: int = -1  # rank
    tag: int = 0
    size: int = 0  # [B]


def check_operations(job: Job, form: str) -> None:
    """Raises InputError for a schedule without a known order, for sequences in parts, and for too many
    operations."""
    for pipeline in job.pipelines:
        if pipeline.schedule not in SCHEDULES:
            raise InputError(
                f"format: {form}: no operations of the schedule {pipeline.schedule}, only of "
                f"{', '.join(SCHEDULES)}"
            )
        if pipeline.cp > 1:
            raise InputError(
                f"format: {form}: no operations of context parallelism, this plan has cp {pipeline.cp}"
            )
    size = sum(6 * p.pp * p.micro_batches for p in job.pipelines)
    if size > MOST_OPERATIONS:
        raise InputError(
            f"format: {form}: {size:,} operations a step, at most {MOST_OPERATIONS:,}: ask for a "
            "smaller global batch"
        )


def order(pipeline: Pipeline, stage: int) -> Iterator[tuple[str, int]]:
    """Forward and backward passes of a stage, in the order of its schedule."""
    m, behind = pipeline.micro_batches, pipeline.pp - stage
    ahead = {"1f1b": behind, "eager_1f1b": 2 * behind - 1, "gpipe": m}[pipeline.schedule]
    ahead = min(ahead, m)
    yield from (("forward", i) for i in range(ahead))
    for i in range(m):
        yield "backward", i
        if ahead + i < m:
            yield "forward", ahead + i


def first_ranks(job: Job) -> list[int]:
    """The rank of every group's first stage."""
    sizes = [p.pp for p in job.pipelines]
    return [sum(sizes[:g]) for g in range(len(sizes))]


def owners(pipeline: Pipeline) -> list[Site]:
    """The site of each stage."""
    return [site for site in pipeline.sites for _ in site.stages]


def rank_operations(job: Job, g: int, stage: int) -> list[Operation]:
    """What one stage of group `g` does in a step, in its order."""
    rank = _Rank(first_ranks(job)[g] + stage)
    last = _passes(rank, job, g, stage)
    if len(job.pipelines) > 1:
        _ring(rank, job, g, stage, last)
    return rank.done


class _Rank:
    """The operations of a rank so far."""

    def __init__(self, number: int):
        self.number, self.done = number, list[Operation]()

    def add(self, name: str, kind: Kind, after: Iterable[int], **fields) -> int:
        """Returns the number of the new operation."""
        self.done.append(Operation(len(self.done) + 1, name, kind, tuple(after), **fields))
        return len(self.done)

    def send(self, other: int, word: str, after: Iterable[int], **fields) -> None:
        ends = {"source": self.number, "target": other}
        self.add(f"send_{word}", Kind.SEND, after, **ends, **fields)

    def receive(self, other: int, word: str, **fields) -> int:
        ends = {"source": other, "target": self.number}
        return self.add(f"receive_{word}", Kind.RECEIVE, (), **ends, **fields)


def _passes(rank: _Rank, job: Job, g: int, stage: int) -> tuple[int, ...]:
    """The pipeline's part; returns the last pass."""
    pipeline, first = job.pipelines[g], first_ranks(job)[g]
    sites, last = owners(pipeline), stage == pipeline.pp - 1
    passes, before = sites[stage].passes, ()
    for direction, i in order(pipeline, stage):
        forward = direction == "forward"
        source, target = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
        word = f"activation_{i}" if forward else f"gradient_{i}"
        tag, needs = 2 * i + (not forward), before
        if 0 <= source < pipeline.pp:
            size = sent_bytes(job, pipeline, sites[source], sites[stage])
            needs = (*before, rank.receive(first + source, word, tag=tag, size=size))
        took = passes.of(forward, last)
        before = (rank.add(f"{direction}_{i}", Kind.COMPUTE, needs, seconds=took),)
        if 0 <= target < pipeline.pp:
            inside = sites[target] is sites[stage]
            size = sent_bytes(job, pipeline, sites[stage], sites[target])
            hop_s = passes.hop_s if inside else 0.0
            rank.send(first + target, word, before, tag=tag, size=size, seconds=hop_s)
    return before


def _ring(rank: _Rank, job: Job, g: int, stage: int, last: tuple[int, ...]) -> None:
    """All phases of the all-reduce: what arrived in one is sent on in the next."""
    firsts, groups = first_ranks(job), len(job.pipelines)
    following, preceding = (g + 1) % groups, (g - 1) % groups
    tags, phases = 2 * max(p.micro_batches for p in job.pipelines), 2 * (groups - 1)
    arrived: tuple[int, ...] = ()
    for phase in range(phases):
        tag = tags + phase
        for there, size in ring_bytes(job, g, stage, following):
            at = firsts[following] + there
            needs = (*last, *arrived)
            rank.send(at, f"gradients_{phase}_{at}", needs, tag=tag, size=round(size / phases))
        arrivals = []
        for there, size in ring_bytes(job, g, stage, preceding):
            at, share = firsts[preceding] + there, round(size / phases)
            arrivals.append(rank.receive(at, f"gradients_{phase}_{at}", tag=tag, size=share))
        arrived = tuple(arrivals)


def ring_bytes(job: Job, g: int, stage: int, other: int) -> Iterator[tuple[int, float]]:
    """(stage of the other group, bytes) of the layers that both hold: 2 (n - 1) / n of their gradients,
    as a ring all-reduce over n groups sends them to the next."""
    n, model = len(job.pipelines), job.model
    mine, theirs = job.pipelines[g].stages, job.pipelines[other].stages
    start = sum(mine[:stage])
    for there, held in enumerate(theirs):
        begin = sum(theirs[:there])
        shared = min(start + mine[stage], begin + held) - max(start, begin)
        ends = (stage == there == 0) + (stage == len(mine) - 1 and there == len(theirs) - 1)
        params = max(shared, 0) * model.layer_params + ends * model.embedding_params
        if params > 0:
            yield (
                there,
                2 * (n - 1) / n * SENT_GRADIENT_BYTES * job.wire_bits / FULL_BITS * params,
            )


def sent_bytes(job: Job, pipeline: Pipeline, source: Site, target: Site) -> int:
    """Of a micro-batch of all replicas between two stages; fewer bits between domains alone."""
    values = pipeline.micro_batch * pipeline.dp * job.seq * job.model.hidden
    bits = FULL_BITS if source is target else job.activation_bits
    return round(values * ACTIVATION_BYTES * bits / FULL_BITS)
