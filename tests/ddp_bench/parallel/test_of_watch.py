"""What `hippo watch` writes can be trained; runs that end by the clock; processors with a pace."""

import pytest
from helpers.wan_jobs import ALONE, BATCH, MODEL, PIPELINE, job, losses, train

from ddp_bench.errors import ConfigError
from ddp_bench.parallel.plan import parse_plan


def written(**fields):
    """A plan file of `hippo watch`: labels, and settings that leave no choice here."""
    rows = [{"domain": d, "layers": 2, "tp": 1, "pp": 1} for d in "ab"]
    row = {"domains": rows, "dp": 1, "micro_batches": 4, "micro_batch": 2}
    row |= {"recompute": "nothing", "schedule": "eager 1F1B", **fields}
    scalars = {"sync_period": 1, "fragments": 1, "overlap": 0, "wire_bits": 16}
    return {"pipelines": [row], **scalars}


def read(body):
    return parse_plan(body, "plan", ("a", "b"), MODEL["layers"], BATCH)


def test_a_plan_file_of_watch_is_read():
    plan = read(written())
    assert plan.pipelines[0].schedule == "gpipe" and plan.wire_bits == 16
    assert read(plan.to_json()) == plan
    beside = {"fields": {"group": [0, 0]}, "activation_bits": 16}
    assert read({**written(), **beside}) == plan


def test_activations_that_a_plan_file_compresses_are_refused():
    with pytest.raises(ConfigError, match="activation_bits: 8: allowed 16, 32"):
        read({**written(), "activation_bits": 8})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"recompute": "whole layers"}, "recompute: 'whole layers': allowed none, nothing"),
        ({"schedule": "ZB-H1"}, "schedule: 'ZB-H1': allowed gpipe, 1f1b, interleaved"),
        ({"domains": [{"domain": "a", "layers": 4, "tp": 2}]}, "tp: 2: allowed 1"),
    ],
)
def test_what_it_cannot_do_is_one_line(fields, said):
    with pytest.raises(ConfigError) as refusal:
        read(written(**fields))
    assert said in str(refusal.value)


def test_a_run_ends_by_the_clock(tmp_path):
    steps = 100_000
    record = train(tmp_path / "run", PIPELINE, steps=steps, seconds=0.5)
    done = record.table("steps").groupby("rank")["step"].max()
    assert done.nunique() == 1 and done.iloc[0] < steps / 10


def test_a_pace_takes_its_time_and_changes_no_loss(tmp_path):
    plain = train(tmp_path / "plain", ALONE, ("a",), steps=2, held_out=4)
    paced = train(tmp_path / "paced", ALONE, ("a",), steps=2, held_out=4, pace_s=0.005)
    assert losses(paced) == pytest.approx(losses(plain), rel=1e-6)
    # 8 sequences through 4 layers.
    assert paced.table("steps")["wall_s"].min() > BATCH * MODEL["layers"] * 0.005
    held = [r.table("evaluations")["loss"].iloc[-1] for r in (plain, paced)]
    assert held[0] == pytest.approx(held[1], rel=1e-6)


def test_sixteen_bits_between_stages_hardly_change_losses(tmp_path):
    found = [
        losses(train(tmp_path / str(bits), PIPELINE, steps=3, activation_bits=bits))
        for bits in (16, 32)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    assert (found[0] != found[1]).any()


def test_other_bits_are_refused():
    with pytest.raises(ConfigError, match="activation_bits: allowed 16, 32"):
        job(PIPELINE, activation_bits=8)
