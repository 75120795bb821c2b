"""Plans: who does what, what is refused, what moves; sums with few bits. No process is started."""

import pytest
import torch
from helpers.wan_jobs import BATCH, DATA_PARALLEL, MODEL, PIPELINE, job, pipeline, plan

from ddp_bench.errors import ConfigError
from ddp_bench.parallel import move, wire
from ddp_bench.parallel.agree import notice
from ddp_bench.parallel.corpus import Corpus
from ddp_bench.parallel.groups import needed, pipelines
from ddp_bench.parallel.job import ModelShape, parse_job
from ddp_bench.parallel.model import Chunk
from ddp_bench.parallel.plan import (
    Seat,
    chunk_sizes,
    even_split,
    holders,
    parse_plan,
    seats,
    sequences_of,
    units_of,
)
from ddp_bench.parallel.sync import buckets

HYBRID = plan(
    pipeline(("b", 3, 2), ("a", 1), dp=2, micro_batches=1, micro_batch=2),
    pipeline(("c", 4), micro_batches=4),
)
RANKS = ("a", "a", "b", "b", "b", "b", "c", "c")


def parsed(body=HYBRID, ranks=RANKS):
    return parse_plan(body, "plan", ranks, MODEL["layers"], BATCH)


def test_ranks_take_the_stages_of_their_domain():
    found = seats(parsed(), RANKS)
    assert found[2] == Seat(0, 0, 0) and found[3] == Seat(0, 0, 1) and found[0] == Seat(0, 0, 2)
    assert found[4] == Seat(0, 1, 0) and found[1] == Seat(0, 1, 2) and found[6] == Seat(1, 0, 0)
    assert 7 not in found
    assert pipelines(parsed(), RANKS)[0, 1] == (4, 5, 1)


def test_every_sequence_and_every_unit_is_somebodys():
    hybrid = parsed()
    spans = {sequences_of(hybrid, seat) for seat in seats(hybrid, RANKS).values()}
    assert sorted(spans) == [(0, 2), (2, 4), (4, 8)]
    of_units = holders(hybrid, RANKS, 4)
    assert of_units[0] == [[2, 4], [6]] and of_units[5] == [[0, 1], [6]]
    assert units_of(hybrid, Seat(0, 0, 1), 4) == [[2, 3]]
    assert all((2, 4, 6) in needed(hybrid, RANKS, 4) for _ in range(2))


def test_interleaved_chunks_go_round_the_stages():
    body = plan(
        pipeline(("a", 2), ("b", 2), micro_batches=4, micro_batch=2, schedule="interleaved")
    )
    inter = parsed(body, ("a", "b"))
    assert chunk_sizes(inter.pipelines[0]) == [1, 1, 1, 1]
    assert units_of(inter, Seat(0, 0, 0), 4) == [[0, 1], [3]]
    assert units_of(inter, Seat(0, 0, 1), 4) == [[2], [4, 5]]
    assert even_split(7, 3) == [2, 2, 3]


def test_plans_and_jobs_read_back_to_themselves():
    assert parsed(parsed().to_json()) == parsed()
    first = job(DATA_PARALLEL, then=[[2, PIPELINE]], steps=4)
    assert parse_job(first.to_json(), "job") == first


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "allowed is a mapping with keys of pipelines"),
        ({"pipelines": []}, "pipelines: allowed is a list of at least one"),
        (plan({"domains": []}), "pipelines[0]: domains: allowed is a list"),
        (
            plan(pipeline(("a", 0))),
            "pipelines[0]: domains[0]: layers: allowed is a whole number from 1",
        ),
        (
            plan(pipeline(("z", 4), micro_batches=8)),
            "domain 'z' has no ranks here: allowed a, b, c",
        ),
        (plan(pipeline(("a", 2), ("a", 2), micro_batches=8)), "domain 'a' is used twice"),
        (plan(pipeline(("a", 3), micro_batches=8)), "a pipeline holds 3; allowed is 4"),
        (plan(pipeline(("a", 4), dp=3)), "a: dp x pp is 3; allowed up to 2"),
        (
            plan(pipeline(("b", 4, 3), micro_batches=8, schedule="zb")),
            "schedule: 'zb': allowed gpipe",
        ),
        (plan(pipeline(("a", 4), micro_batches=7)), "micro-batches hold 7 sequences; allowed is 8"),
        (plan(pipeline(("a", 4), micro_batches=8), wire_bits=4), "wire_bits: 4: allowed 8, 16, 32"),
        (plan(pipeline(("a", 4), micro_batches=8), overlap=1), "allowed with sync_period > 1 only"),
        (
            plan(pipeline(("a", 4), micro_batches=8), sync_period=4, fragments=2, overlap=2),
            "overlap is 2: allowed is less than sync_period / fragments",
        ),
        (
            plan(pipeline(("a", 2), ("b", 2), micro_batches=8, schedule="interleaved", dp=True)),
            "dp: allowed is a whole number",
        ),
        (
            plan(pipeline(("a", 1), ("b", 3), micro_batches=8, schedule="interleaved")),
            "a: 1 layers for 2 chunks",
        ),
    ],
)
def test_an_impossible_plan_is_one_line(body, said):
    with pytest.raises(ConfigError) as refusal:
        parsed(body)
    line = str(refusal.value)
    assert line.startswith("plan: ") and said in line and "\n" not in line


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"steps": 0}, "steps is 0: allowed is a whole number >= 1"),
        ({"then": [[3, PIPELINE], [2, PIPELINE]]}, "then: allowed are steps that rise"),
        ({"model": {**MODEL, "heads": 3}}, "heads that divide hidden"),
        ({"model": {**MODEL, "vocab": 300}}, "vocab is 300: allowed is 256"),
        ({"model": {"layers": 1}}, "model: allowed is a mapping with the keys layers"),
        ({"ranks": ["a", "x"]}, "allowed are domains: a, b"),
        ({"speed": 1}, "allowed is a mapping with keys of model, plan"),
    ],
)
def test_an_impossible_job_is_one_line(fields, said):
    body = {**job(DATA_PARALLEL).to_json(), **fields}
    with pytest.raises(ConfigError) as refusal:
        parse_job(body, "job")
    assert said in str(refusal.value) and "\n" not in str(refusal.value)


def test_what_a_domain_lacks_is_fetched_once_from_who_has_sent_least():
    ranks = ("a", "a", "b", "b", "c")
    both = parse_plan(
        plan(
            pipeline(("a", 4), dp=2, micro_batches=1, micro_batch=2),
            pipeline(("b", 4), dp=2, micro_batches=1, micro_batch=2),
        ),
        "plan",
        ranks,
        4,
        BATCH,
    )
    alone = parse_plan(plan(pipeline(("c", 4), micro_batches=8)), "plan", ranks, 4, BATCH)
    wanted = move.fetches(both, alone, ranks, 4)
    assert [f.unit for f in wanted] == [0, 1, 2, 3, 4, 5] and {f.target for f in wanted} == {4}
    assert [f.source for f in wanted].count(0) == 3 and [f.source for f in wanted].count(2) == 3
    assert move.saved_by(both, ranks, 4, 0) == [0, 1, 2, 3, 4, 5]
    assert move.saved_by(both, ranks, 4, 1) == []
    assert move.fetches(both, both, ranks, 4) == []


def test_notice_is_longer_than_ranks_can_be_apart():
    local = {**DATA_PARALLEL, "sync_period": 5, "fragments": 2, "overlap": 2}
    assert notice(parsed(DATA_PARALLEL, ("a", "b"))) == 2
    assert notice(parsed(local, ("a", "b"))) == 9


def test_texts_and_weights_depend_on_the_seed_and_not_on_the_plan():
    first, again, other = Corpus(0, 32), Corpus(0, 32), Corpus(1, 32)
    assert (first.batch(3, 6)[0] == again.batch(3, 6)[0]).all()
    assert (first.batch(3, 6)[0][1] == first.batch(4, 5)[0][0]).all()
    assert (first.batch(0, 1)[0] != other.batch(0, 1)[0]).any()
    x, y = first.batch(0, 2)
    assert (x[:, 1:] == y[:, :-1]).all() and x.shape == (2, 32)
    shape = ModelShape(**MODEL)
    whole = dict(Chunk(shape, range(6), 0).named_parameters())
    part = dict(Chunk(shape, [2, 3], 0).named_parameters())
    assert all(torch.equal(whole[name], value) for name, value in part.items())
    assert sum(p.numel() for p in whole.values()) == shape.params


def test_int8_keeps_what_rounding_cut_off_for_the_next_time():
    vector = torch.linspace(-3, 5, 3000)
    back = wire.dequantise(wire.quantise(vector), 3000)
    assert (back - vector).abs().max() <= 0.5 * 5 / 127 + 1e-6
    assert wire.quantise(vector).numel() == 3 * (1024 + 4)
    assert torch.equal(wire.dequantise(wire.quantise(torch.zeros(5)), 5), torch.zeros(5))


def test_buckets_hold_what_fits():
    sizes = [len(b) for b in buckets([torch.zeros(n) for n in (100, 100, 300, 50)], 0.001)]
    assert sizes == [2, 1, 1]
