"""Chakra execution traces of one step (MLCommons schema 0.0.4), as ASTRA-sim replays them: the
operations of every rank, a file each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from experiments.plan.export.layout import Job
from experiments.plan.export.operations import (
    Kind,
    Operation,
    check_operations,
    first_ranks,
    owners,
    rank_operations,
)
from experiments.plan.export.writing import Export

RELEASE = "Chakra execution traces, schema 0.0.4 (MLCommons)"
NODE_TYPES = {Kind.COMPUTE: 4, Kind.SEND: 5, Kind.RECEIVE: 6}  # NodeType of et_def.proto
LONG = ("comm_size",)  # attributes of 64 bits


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
    check_operations(job, "chakra")
    files: dict[str, str | bytes] = {}
    sites = {}
    for g, (first, pipeline) in enumerate(zip(first_ranks(job), job.pipelines, strict=True)):
        for stage, site in enumerate(owners(pipeline)):
            files[f"step.{first + stage}.et"] = encoded(rank_nodes(job, g, stage))
            sites[str(first + stage)] = {"domain": site.name, "group": g + 1}
    files["ranks.json"] = json.dumps(sites, indent=2) + "\n"
    return Export(RELEASE, files, _exact(), tuple(_nearest(job)), _run())


def rank_nodes(job: Job, g: int, stage: int) -> Iterator[Node]:
    """The operations of one stage of group `g`."""
    return map(node_of, rank_operations(job, g, stage))


def node_of(op: Operation) -> Node:
    """An operation as the schema says it."""
    kind = NODE_TYPES[op.kind]
    if op.kind is Kind.COMPUTE:
        return Node(op.number, op.name, kind, op.after, round(1e6 * op.seconds), {})
    ends = {"comm_src": op.source, "comm_dst": op.target, "comm_tag": op.tag}
    return Node(op.number, op.name, kind, op.after, 0, {"comm_size": op.size, **ends})


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
        "Computation of a stage: as long as that of its domain's fullest.",
    ]
    if job.sync_period > 1 and len(job.pipelines) > 1:
        notes.append(f"Sync every {job.sync_period} steps: the trace is of a step that syncs.")
    return notes


def _run() -> tuple[str, ...]:
    return (
        "Give a simulator the prefix `step` and as many NPUs as there are traces; ranks.json says in "
        "which domain each rank is, the cluster file what joins the domains.",
    )
