"""Real training over the loopback device: every synchronous plan learns the same."""

import numpy as np
import pytest
from helpers.wan_jobs import ALONE, DATA_PARALLEL, PIPELINE, losses, pipeline, plan, train

SAME = {
    "data parallel, uneven shares": (DATA_PARALLEL, ("a", "b")),
    "pipeline, 1F1B": (PIPELINE, ("a", "b")),
    "pipeline against the order of ranks, GPipe": (
        plan(pipeline(("b", 3), ("a", 1), micro_batches=4, micro_batch=2, schedule="gpipe")),
        ("a", "b"),
    ),
    "interleaved": (
        plan(pipeline(("b", 2), ("a", 2), micro_batches=4, micro_batch=2, schedule="interleaved")),
        ("a", "b"),
    ),
    "hierarchical": (
        plan(
            pipeline(("a", 4), dp=2, micro_batches=1, micro_batch=2),
            pipeline(("b", 4), dp=2, micro_batches=1, micro_batch=2),
            reduce="hierarchical",
        ),
        ("a", "a", "b", "b"),
    ),
    "a pipeline beside a replica, another cut": (
        plan(
            pipeline(("a", 3), ("b", 1), micro_batches=2, micro_batch=2),
            pipeline(("c", 4), micro_batches=2, micro_batch=2),
        ),
        ("a", "b", "c"),
    ),
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return losses(train(tmp_path_factory.mktemp("alone") / "run", ALONE, ("a",)))


LONG = ("hierarchical", "a pipeline beside a replica, another cut")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in SAME]
)
def test_synchronous_plans_learn_the_same(name, alone, tmp_path):
    body, ranks = SAME[name]
    record = train(tmp_path / "run", body, ranks)
    assert losses(record) == pytest.approx(alone, rel=2e-6)
    assert record.run["status"] == "finished" and record.summary["steps"] == 4
    steps = record.table("steps")
    assert len(steps) == 4 * len(ranks)
    assert (steps["wall_s"] >= steps["compute_s"]).all() and (steps["compute_s"] > 0).all()


def test_it_learns(alone):
    assert np.all(np.isfinite(alone)) and alone[-1] < alone[0] - 0.05


@pytest.mark.parametrize(
    ("bits", "within"), [pytest.param(16, 2e-3, marks=pytest.mark.slow), (8, 2e-2)]
)
def test_fewer_bits_on_the_wire_learn_nearly_the_same(bits, within, alone, tmp_path):
    found = losses(train(tmp_path / "run", {**DATA_PARALLEL, "wire_bits": bits}))
    assert found == pytest.approx(alone, rel=within)
    assert np.abs(found / alone - 1.0).max() > 1e-9


LOCAL = {
    "DiLoCo": {"sync_period": 3},
    "streaming": {"sync_period": 4, "fragments": 2, "overlap": 1},
    "streaming, 8 bits": {"sync_period": 4, "fragments": 2, "overlap": 1, "wire_bits": 8},
}


@pytest.mark.parametrize("name", LOCAL)
def test_local_training_learns_without_summing_in_every_step(name, alone, tmp_path):
    record = train(tmp_path / "run", {**DATA_PARALLEL, **LOCAL[name]}, steps=6)
    found, steps = losses(record), record.table("steps")
    assert found[0] == pytest.approx(alone[0], rel=1e-6)
    assert found[-1] < found[0] - 0.05
    assert steps["sync_s"].max() > 10 * steps["sync_s"].min()


@pytest.mark.slow
def test_the_end_of_a_local_plan_right_behind_a_sync_changes_nothing(tmp_path):
    """Its outer momentum must not move weights that nobody has trained since."""
    fields = {"steps": 6, "evaluate_every": 6, "held_out": 8}
    record = train(tmp_path / "run", {**DATA_PARALLEL, "sync_period": 3}, **fields)
    synced, ended = record.table("evaluations")["loss"]
    assert ended == pytest.approx(synced, rel=1e-6)


@pytest.mark.slow
def test_local_pipelines_with_replicas_inside(tmp_path):
    body = plan(
        pipeline(("a", 2), ("b", 2), dp=2, micro_batches=2),
        pipeline(("c", 4), dp=2, micro_batches=2),
        sync_period=2,
    )
    found = losses(train(tmp_path / "run", body, ("a", "a", "b", "b", "c", "c")))
    assert found[-1] < found[0] - 0.03
