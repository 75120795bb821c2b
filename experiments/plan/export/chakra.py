"""Chakra execution traces of one step (MLCommons schema 0.0.4), as ASTRA-sim replays them.

A rank of the traces is one stage of one group: its tensor-parallel and data-parallel GPUs talk inside
the domain, and that time is inside its computation. What crosses from stage to stage is sent and
received micro-batch by micro-batch; at the end gradients travel once around the ring of the groups.
Times of computation are the plan's, so a replay checks what the network makes of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from experiments.plan.export.layout import Job, Pipeline
from experiments.plan.export.writing import Export
from jaxsim.files import InputError
from jaxsim.workload import ACTIVATION_BYTES, SENT_GRADIENT_BYTES

RELEASE = "Chakra execution traces, schema 0.0.4 (MLCommons)"
COMPUTE, SEND, RECEIVE = 4, 5, 6  # NodeType of et_def.proto
LONG = ("comm_size",)  # attributes of 64 bits
MOST_NODES = 200_000  # of all ranks
FULL_BITS = 16


class Node(NamedTuple):
    """An operation of a rank; attributes by name."""

    number: int
    name: str
    kind: int
    after: tuple[int, ...]
    micros: int
    attributes: dict[str, int]


def export(job: Job) -> Export:
    """Raises InputError for a schedule that the traces do not know, and for too many operations."""
    for pipeline in job.pipelines:
        if pipeline.schedule not in ("1f1b", "eager_1f1b", "gpipe"):
            raise InputError(f"format: chakra: no traces of the schedule {pipeline.schedule}")
    size = sum(6 * p.pp * p.micro_batches for p in job.pipelines)
    if size > MOST_NODES:
        raise InputError(
            f"format: chakra: {size:,} operations a step, at most {MOST_NODES:,}: ask for a smaller "
            "global batch"
        )
    files: dict[str, str | bytes] = {}
    sites = {}
    for g, (first, pipeline) in enumerate(zip(first_ranks(job), job.pipelines, strict=True)):
        for stage in range(pipeline.pp):
            files[f"step.{first + stage}.et"] = encoded(rank_nodes(job, g, stage))
        owners = [site.name for site in pipeline.sites for _ in site.stages]
        sites |= {str(first + s): {"domain": name, "group": g + 1} for s, name in enumerate(owners)}
    files["ranks.json"] = json.dumps(sites, indent=2) + "\n"
    return Export(RELEASE, files, _exact(), tuple(_nearest(job)), _run())


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


def rank_nodes(job: Job, g: int, stage: int) -> Iterator[Node]:
    """The operations of one stage of group `g`."""
    firsts = first_ranks(job)
    pipeline, first, number = job.pipelines[g], firsts[g], 0
    rank = first + stage
    micros = _micros(job, pipeline, stage)
    sent = int(_sent_bytes(job, pipeline))
    before: tuple[int, ...] = ()

    def node(name: str, kind: int, after: Iterable[int], took: int = 0, **attributes) -> Node:
        nonlocal number
        number += 1
        return Node(number, name, kind, tuple(after), took, attributes)

    def transfer(
        kind: int, other: int, size: int, tag: int, after: Iterable[int], name: str
    ) -> Node:
        source, target = (rank, other) if kind == SEND else (other, rank)
        ends = {"comm_src": source, "comm_dst": target, "comm_tag": tag}
        verb = "send" if kind == SEND else "receive"
        return node(f"{verb}_{name}", kind, after, comm_size=size, **ends)

    for direction, i in order(pipeline, stage):
        forward = direction == "forward"
        source, target = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
        word = "activation" if forward else "gradient"
        needs = before
        if 0 <= source < pipeline.pp:
            tag, name = 2 * i + (not forward), f"{word}_{i}"
            arrived = transfer(RECEIVE, first + source, sent, tag, (), name)
            yield arrived
            needs = (*before, arrived.number)
        done = node(f"{direction}_{i}", COMPUTE, needs, micros[forward])
        yield done
        before = (done.number,)
        if 0 <= target < pipeline.pp:
            tag, name = 2 * i + (not forward), f"{word}_{i}"
            yield transfer(SEND, first + target, sent, tag, before, name)
    groups = len(job.pipelines)
    for kind, other in ((SEND, (g + 1) % groups), (RECEIVE, (g - 1) % groups)):
        if groups > 1:
            for there, size in ring_bytes(job, g, stage, other):
                at = firsts[other] + there
                tag = 2 * max(p.micro_batches for p in job.pipelines)
                after = before if kind == SEND else ()
                yield transfer(kind, at, size, tag, after, f"gradients_{at}")


def ring_bytes(job: Job, g: int, stage: int, other: int) -> Iterator[tuple[int, int]]:
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
            size = 2 * (n - 1) / n * SENT_GRADIENT_BYTES * job.wire_bits / FULL_BITS * params
            yield there, round(size)


def _micros(job: Job, pipeline: Pipeline, stage: int) -> tuple[int, int]:
    """[microseconds] of a backward and of a forward pass of one micro-batch: the plan's own time of its
    slowest stage by layers, a third of it forward."""
    told = job.predicted["bound_by"]["stage"]["stage_s"]
    share = pipeline.stages[stage] / max(max(p.stages) for p in job.pipelines)
    whole = 1e6 * told * share
    return round(2 * whole / 3), round(whole / 3)


def _sent_bytes(job: Job, pipeline: Pipeline) -> float:
    """Of a micro-batch of all replicas between two stages."""
    values = pipeline.micro_batch * pipeline.dp * job.seq * job.model.hidden
    return values * ACTIVATION_BYTES * (job.activation_bits / FULL_BITS if job.crosses else 1.0)


def encoded(nodes: Iterable[Node]) -> bytes:
    """A trace file: messages, each behind its length as a varint (protobuf's wire format)."""
    messages = [_text(1, "0.0.4"), *(_node(node) for node in nodes)]
    return b"".join(_varint(len(message)) + message for message in messages)


def _node(node: Node) -> bytes:
    parts = [_number(1, node.number), _text(2, node.name), _number(3, node.kind)]
    if node.after:
        parts.append(_bytes(5, b"".join(_varint(n) for n in node.after)))  # data_deps, packed
    parts += [_number(7, node.micros)] if node.micros else []
    for name, value in node.attributes.items():
        field = 9 if name in LONG else 7  # int64_val, int32_val
        parts.append(_bytes(10, _text(1, name) + _number(field, value)))
    parts.append(_bytes(10, _text(1, "is_cpu_op") + _number(27, 0)))  # bool_val
    return b"".join(parts)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _exact() -> tuple[str, ...]:
    return (
        "Stages, their domains (ranks.json), micro-batches, the order of passes in every stage.",
        "Bytes between stages and between groups, in the plan's bits.",
    )


def _nearest(job: Job) -> list[str]:
    notes = [
        "Collectives inside a domain (tensor, data parallelism): inside the time of computation.",
        "Computation of a stage: the plan's slowest stage, in proportion to layers; a third forward.",
    ]
    if len(job.pipelines) > 1:
        notes.append("The ring's 2 (n - 1) phases: their bytes, in one transfer to the next group.")
    if job.sync_period > 1 and len(job.pipelines) > 1:
        notes.append(f"Sync every {job.sync_period} steps: the trace is of a step that syncs.")
    return notes


def _run() -> tuple[str, ...]:
    return (
        "Give a simulator the prefix `step` and as many NPUs as there are traces; ranks.json says in "
        "which domain each rank is, the cluster file what joins the domains.",
    )
