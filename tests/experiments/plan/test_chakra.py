"""Execution traces: protobuf reads them, every transfer has two ends, and a replay comes to its end."""

import json

import pytest
from helpers.launches import LAUNCHES, MODEL, named

from experiments.plan.export import export_plan
from experiments.plan.export.operations import order, ring_bytes
from jaxsim.files.errors import InputError

COMPUTE, SEND, RECEIVE = 4, 5, 6
# (field, number, kind, repeated) of the schema's messages, as far as traces use them.
SCHEMA = {
    "AttributeProto": [
        *(("name", 1, "string", 0), ("int32_val", 7, "int32", 0)),
        *(("int64_val", 9, "int64", 0), ("bool_val", 27, "bool", 0)),
    ],
    "GlobalMetadata": [("version", 1, "string", 0)],
    "Node": [
        *(("id", 1, "uint64", 0), ("name", 2, "string", 0), ("type", 3, "int32", 0)),
        *(("data_deps", 5, "uint64", 1), ("duration_micros", 7, "uint64", 0)),
        ("attr", 10, "message", 1),
    ],
}


@pytest.fixture(scope="module")
def messages():
    """Classes of the schema, made by protobuf itself."""
    descriptor = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor.FileDescriptorProto(name="et.proto", package="T", syntax="proto3")
    kinds = descriptor.FieldDescriptorProto
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            kind = getattr(kinds, f"TYPE_{kind.upper()}")
            of = ".T.AttributeProto" if kind == kinds.TYPE_MESSAGE else None
            message.field.add(name=field, number=number, type=kind, label=label, type_name=of)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"T.{name}"))
        for name in SCHEMA
    }


def read(path, messages):
    """The nodes of a trace as protobuf parses them."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        length = shift = 0
        while True:
            byte = data[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        found.append(data[at : at + length])
        at += length
    assert at == len(data)
    assert messages["GlobalMetadata"].FromString(found[0]).version == "0.0.4"
    return [messages["Node"].FromString(body) for body in found[1:]]


def attribute(node, name):
    (one,) = [a for a in node.attr if a.name == name]
    return one.int64_val or one.int32_val


@pytest.fixture(params=LAUNCHES)
def traces(request, tmp_path, messages):
    job = named(request.param, **({"wire_bits": 8} if request.param == "mixed" else {}))
    export_plan(job, "chakra", tmp_path / "out")
    ranks = json.loads((tmp_path / "out" / "ranks.json").read_text())
    found = [read(tmp_path / "out" / f"step.{r}.et", messages) for r in range(len(ranks))]
    return job, ranks, found


def test_every_stage_has_a_trace_and_computes_every_micro_batch_twice(traces):
    job, ranks, found = traces
    assert len(found) == sum(p.pp for p in job.pipelines)
    domains = [site.name for p in job.pipelines for site in p.sites for _ in site.stages]
    assert [ranks[str(r)]["domain"] for r in range(len(ranks))] == domains
    rank = 0
    for pipeline in job.pipelines:
        for _ in range(pipeline.pp):
            passes = [n for n in found[rank] if n.type == COMPUTE]
            assert len(passes) == 2 * pipeline.micro_batches
            assert all(n.duration_micros > 0 for n in passes)
            rank += 1


def test_every_transfer_has_two_ends_of_one_size(traces):
    _, _, found = traces
    ends = {SEND: {}, RECEIVE: {}}
    for rank, nodes in enumerate(found):
        for node in nodes:
            if node.type in ends:
                key = tuple(attribute(node, f"comm_{x}") for x in ("src", "dst", "tag"))
                assert key not in ends[node.type], "twice"
                assert key[0 if node.type == SEND else 1] == rank
                ends[node.type][key] = attribute(node, "comm_size")
    assert ends[SEND] == ends[RECEIVE] and all(size > 0 for size in ends[SEND].values())


def test_a_replay_comes_to_its_end(traces):
    """Nothing waits for ever: what depends on what, within a rank and from sender to receiver, ends."""
    _, _, found = traces
    sends = {}
    for rank, nodes in enumerate(found):
        for node in nodes:
            if node.type == SEND:
                sends[tuple(attribute(node, f"comm_{x}") for x in ("src", "dst", "tag"))] = (
                    rank,
                    node.id,
                )
    waits = {}
    for rank, nodes in enumerate(found):
        for node in nodes:
            needs = {(rank, other) for other in node.data_deps}
            if node.type == RECEIVE:
                key = tuple(attribute(node, f"comm_{x}") for x in ("src", "dst", "tag"))
                needs.add(sends[key])
            waits[rank, node.id] = needs
    done = set()
    while ready := {node for node, needs in waits.items() if node not in done and needs <= done}:
        done |= ready
    assert done == set(waits)


def test_the_ring_carries_the_bytes_of_an_all_reduce():
    job = named("replicas")
    sent = sum(
        size for stage in range(job.pipelines[0].pp) for _, size in ring_bytes(job, 0, stage, 1)
    )
    params = MODEL.layers * MODEL.layer_params + 2 * MODEL.embedding_params
    assert sent == pytest.approx(2 * 0.5 * 2 * params, rel=1e-6)


def test_a_stage_holds_as_many_micro_batches_as_its_schedule_says():
    for schedule, most in (
        ("1f1b", [4, 3, 2, 1]),
        ("eager_1f1b", [7, 5, 3, 1]),
        ("gpipe", [8] * 4),
    ):
        job = named("replicas", schedule=schedule, micro_batch=2)
        pipeline = job.pipelines[0]
        for stage in range(4):
            held = peak = 0
            for direction, _ in order(pipeline, stage):
                held += 1 if direction == "forward" else -1
                peak = max(peak, held)
            assert held == 0 and peak == most[stage]


def test_too_long_a_step_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"operations a step, at most"):
        export_plan(named("replicas", batch=400_000), "chakra", tmp_path / "out")
    assert not list(tmp_path.iterdir())
