"""ns-3 3.44: a program that plays the WAN traffic of one step over TCP, packet by packet.

A node is a domain, a link joins each pair; ranks are the stages of the groups. The program reads three
tables: links, ranks, and the operations of all ranks.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from experiments.plan.export.layout import Job
from experiments.plan.export.operations import (
    Kind,
    check_operations,
    first_ranks,
    owners,
    rank_operations,
)
from experiments.plan.export.writing import Export
from jaxsim.files import InputError

RELEASE = "ns-3 3.44"
PROGRAM = Path(__file__).parent / "templates" / "step.cc"
SCRIPT = Path(__file__).parent / "templates" / "run.sh"
OPERATION_COLUMNS = (
    *("number", "name", "kind", "seconds", "source", "target", "tag", "bytes"),
    "after",
)
SEGMENT_BYTES = 8948  # the program's own default


def export(job: Job) -> Export:
    """Raises InputError for a schedule without operations, for too many, and where nothing crosses."""
    check_operations(job, "ns3")
    rows = list(operation_rows(job))
    files: dict[str, str | bytes] = {
        "step.cc": PROGRAM.read_text(),
        "run.sh": SCRIPT.read_text(),
        "links.csv": _table(
            ("node", "other", "gbps_out", "gbps_back", "one_way_s"), link_rows(job)
        ),
        "ranks.csv": _table(("rank", "node", "domain", "group", "stage"), rank_rows(job)),
        "operations.csv": _table(OPERATION_COLUMNS, rows),
    }
    size = wan_bytes(job)
    if size == 0:
        raise InputError("format: ns3: nothing of this plan crosses the WAN")
    return Export(RELEASE, files, _exact(), tuple(_nearest(job)), _run(size))


def nodes_of(job: Job) -> dict[str, int]:
    """The node of every domain of the cluster."""
    names = [site.name for pipeline in job.pipelines for site in pipeline.sites]
    names = [name for link in job.links for name in (link.source, link.target)] or names
    return {name: node for node, name in enumerate(dict.fromkeys(names))}


def link_rows(job: Job) -> Iterator[tuple]:
    """(node, other node, Gbit/s there, Gbit/s back, [s] one way) of every pair."""
    nodes = nodes_of(job)
    back = {(link.target, link.source): link for link in job.links}
    for link in job.links:
        other = back[link.source, link.target]
        if nodes[link.source] < nodes[link.target]:
            one_way_s = 0.5 * (link.one_way_s + other.one_way_s)
            ends = (nodes[link.source], nodes[link.target])
            yield *ends, repr(link.gbps), repr(other.gbps), repr(one_way_s)


def rank_rows(job: Job) -> Iterator[tuple]:
    """(rank, node, domain, group, stage)."""
    nodes = nodes_of(job)
    for g, (first, pipeline) in enumerate(zip(first_ranks(job), job.pipelines, strict=True)):
        for stage, site in enumerate(owners(pipeline)):
            # A comma would end the cell for the program.
            yield first + stage, nodes[site.name], site.name.replace(",", " "), g + 1, stage + 1


def operation_rows(job: Job) -> Iterator[tuple]:
    """Operations of all ranks, one after another, numbered through from 0."""
    before = 0
    for g, pipeline in enumerate(job.pipelines):
        for stage in range(pipeline.pp):
            found = rank_operations(job, g, stage)
            for op in found:
                after = " ".join(str(before + number - 1) for number in op.after)
                ends = (op.source, op.target, op.tag, op.size)
                number = before + op.number - 1
                yield number, op.name, op.kind.value, repr(op.seconds), *ends, after
            before += len(found)


def wan_bytes(job: Job) -> int:
    """[B] that one step sends from domain to domain."""
    node = [row[1] for row in rank_rows(job)]
    return sum(
        op.size
        for g, pipeline in enumerate(job.pipelines)
        for stage in range(pipeline.pp)
        for op in rank_operations(job, g, stage)
        if op.kind is Kind.SEND and node[op.source] != node[op.target]
    )


def _table(columns: Iterable[str], rows: Iterable[tuple]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _exact() -> tuple[str, ...]:
    return (
        "Domains, the rate of every link in either direction, half of its round trip as its delay.",
        "Every message of a step, its bytes in the plan's bits, and what it waits for: the order of "
        "passes in every stage, the phases of the gradient ring.",
        "TCP: handshake, slow start, congestion control, headers, queues that overflow.",
    )


def _nearest(job: Job) -> list[str]:
    notes = [
        "A rank is one stage of one group: its GPUs are one sender, and one connection joins two "
        "ranks. Connections over one link share it; the simulator sends one message at a time.",
        "A link has the whole rate of the cluster file. The simulator takes the share of it that was "
        "measured of frameworks: `--share` scales all rates.",
        "Computation takes the plan's times, inside collectives included.",
        "The optimizer and the gradient sync inside domains are not in the time that it prints. The "
        "ring of a stage begins when the stage is done, not when the whole pipeline is.",
        "Links stand still, and nobody else uses them.",
    ]
    rtts = {(link.source, link.target): link.one_way_s for link in job.links}
    if any(rtts[b, a] != one_way_s for (a, b), one_way_s in rtts.items()):
        notes.append("A link has one delay for both directions: the mean of the two.")
    if job.sync_period > 1 and len(job.pipelines) > 1:
        notes.append(
            f"Sync every {job.sync_period} steps: the step is one that syncs, all of it at once and "
            "waited for."
        )
    if job.virtual_stages > 1:
        notes.append(
            f"Stages of {job.virtual_stages} chunks: the prediction divides what pipelines take to "
            "fill; here a stage is one piece."
        )
    return notes


def _run(size: int) -> tuple[str, ...]:
    return (
        f"`NS3=PREFIX ./run.sh` compiles step.cc against an installed {RELEASE} (a folder with "
        "`include/ns3` and its libraries) and runs it. `pip install ns3==3.44.post0` has all of it: "
        "`NS3=$(python -c 'import ns3; print(list(ns3.__path__)[0])')`.",
        "",
        "It prints when every step is done, in simulated seconds: the first with cold connections, "
        "later ones with those of before. Options follow: `./run.sh --tcp=TcpBbr --steps=3`; "
        "`--segment=1448` for frames of 1,500 bytes, of which ns-3 takes many times as long.",
        "",
        f"A step sends {size / 1e9:,.2f} GB over the WAN: {size / SEGMENT_BYTES:,.0f} segments of "
        f"{SEGMENT_BYTES:,} bytes, each of them simulated.",
    )
