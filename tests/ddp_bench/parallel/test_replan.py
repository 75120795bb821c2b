"""A new plan while training goes on: the same losses, or one clear line."""

import json
import threading
import time

import numpy as np
import pytest
from helpers.wan_jobs import ALONE, BATCH, DATA_PARALLEL, PIPELINE, losses, pipeline, plan, train

from ddp_bench.parallel.launch import RankEnded

OTHER_SPLIT = plan(pipeline(("b", 2), ("a", 2), micro_batches=4, micro_batch=2))
STEPS = 30


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return losses(train(tmp_path_factory.mktemp("alone") / "run", ALONE, ("a",), steps=STEPS))


def announcing(folder, file, *bodies):
    """Write each plan into `file` once training has gone on for some steps after the one before."""

    def steps():
        rows = folder / "ranks" / "rank0.jsonl"
        return rows.read_text().count('"steps"') if rows.exists() else 0

    def work():
        seen = 0
        for body in bodies:
            deadline = time.monotonic() + 60
            while steps() < seen + 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            file.write_text(body if isinstance(body, str) else json.dumps(body))
            time.sleep(0.5)
            seen = steps()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def replan(tmp_path, first, *bodies, **fields):
    file, folder = tmp_path / "plan.json", tmp_path / "run"
    thread = announcing(folder, file, *bodies)
    try:
        return train(folder, first, steps=STEPS, watch=str(file), **fields)
    finally:
        thread.join(60)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (DATA_PARALLEL, PIPELINE),
        pytest.param(PIPELINE, DATA_PARALLEL, marks=pytest.mark.slow),
        pytest.param(PIPELINE, OTHER_SPLIT, marks=pytest.mark.slow),
        (PIPELINE, ALONE),
    ],
    ids=["dp to pp", "pp to dp", "another split", "fewer domains"],
)
def test_losses_are_those_of_a_run_without_it(first, second, alone, tmp_path):
    record = replan(tmp_path, first, second)
    moved = record.table("transitions")
    assert set(moved["plan_number"]) == {1} and (moved["lost_s"] > 0).all()
    at = int(moved["step"].iloc[0])
    found = losses(record)
    assert 2 < at < STEPS and len(found) == STEPS
    assert found[at] == pytest.approx(alone[at], rel=1e-6)
    assert found == pytest.approx(alone, rel=1e-5)
    assert record.summary["replans"] == 1
    trained = record.table("steps").drop_duplicates(["step", "pipeline", "replica"])
    spans = trained.sort_values("first")[["first", "last"]].to_numpy()
    # Every sequence once and in its place, whoever computed it.
    assert np.concatenate([np.arange(a, b + 1) for a, b in spans]).tolist() == list(
        range(STEPS * BATCH)
    )


@pytest.mark.slow
def test_data_order_and_optimizer_survive_several_changes(alone, tmp_path):
    # Slow enough that the second plan arrives before the last step, whatever else the machine does.
    record = replan(tmp_path, DATA_PARALLEL, PIPELINE, DATA_PARALLEL, pace_s=0.005)
    assert losses(record) == pytest.approx(alone, rel=1e-5)
    assert record.summary["replans"] == 2


@pytest.mark.slow
def test_a_local_plan_comes_together_first(tmp_path):
    local = {**DATA_PARALLEL, "sync_period": 4, "fragments": 2, "overlap": 1}
    record = replan(tmp_path, local, PIPELINE)
    found = losses(record)
    assert record.summary["replans"] == 1 and np.isfinite(found).all()
    assert found[-1] < found[0] - 0.1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "not valid JSON"),
        (
            plan(pipeline(("a", 2), ("b", 1), micro_batches=4, micro_batch=2)),
            "holds 3; allowed is 4",
        ),
        (
            plan(pipeline(("west", 4), micro_batches=8)),
            "domain 'west' has no ranks here: allowed a, b",
        ),
    ],
)
def test_an_impossible_plan_is_refused_and_training_goes_on(body, said, alone, tmp_path):
    record = replan(tmp_path, DATA_PARALLEL, body)
    (line,) = record.table("events")["what"]
    assert line.startswith("plan refused, the present one stays: ") and said in line
    assert losses(record) == pytest.approx(alone, rel=1e-5)
    assert record.summary["replans"] == 0


def test_a_rank_killed_in_the_middle_ends_the_run_with_one_line(tmp_path):
    with pytest.raises(RankEnded, match=r"rank 1 \(b\) was killed by signal 9 after step \d+"):
        replan(tmp_path, DATA_PARALLEL, PIPELINE, inject="kill:1:switch")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["status"] == "failed" and (tmp_path / "run" / "steps.csv").is_file()
    assert not (tmp_path / "run" / "ranks").exists()


def test_a_rank_killed_at_a_step_ends_the_run_with_one_line(tmp_path):
    with pytest.raises(RankEnded, match=r"rank 0 \(a\) was killed by signal 9 after step 2"):
        train(tmp_path / "run", DATA_PARALLEL, inject="kill:0:3", steps=9)
