"""Real ranks: layouts train alike, moves change nothing, a death in a save leaves the one before."""

import os
from itertools import permutations
from pathlib import Path

import pytest

pytest.importorskip("torch")

from helpers import layouts_ranks

from ddp_bench.errors import ConfigError
from ddp_bench.layouts import Task, checkpoint, layouts_of, parse_layout
from ddp_bench.layouts.adapt import Rules, adapt_on_rank
from ddp_bench.layouts.relayout import (
    PRELOAD,
    across_sizes,
    begin_on_rank,
    pairs_on_rank,
    resume_on_rank,
)
from ddp_bench.layouts.work import kinds_of
from ddp_bench.toolbox import LlamaShape, RanksFailed, on_ranks
from ddp_bench.toolbox.launch import ROOT

SHAPE = LlamaShape(layers=2, width=16, heads=2, kv_heads=2, hidden=24, vocab=32, longest=16)
TASK = Task(SHAPE, rows=4, length=8)
EXACT = 1e-6


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Ranks find the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))


def ranks(function, number, *arguments):
    return on_ranks(function, number, *arguments, preload=PRELOAD)


@pytest.mark.nightly
def test_replicas_learn_what_one_rank_learns():
    (alone,) = ranks(layouts_ranks.losses, 1, TASK, ["dp1"], 4)
    found = ranks(layouts_ranks.losses, 2, TASK, ["dp2", "dp2-zero1"], 4)
    for of_rank in found:
        for trail in of_rank.values():
            assert [numbers for _, numbers in trail] == [
                list(range(4 * s, 4 * s + 4)) for s in range(4)
            ]
            for (loss, _), (expected, _) in zip(trail, alone["dp1"], strict=True):
                assert abs(loss / expected - 1) <= EXACT
    assert alone["dp1"][-1][0] < alone["dp1"][0][0]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [2, 4])
def test_every_layout_learns_the_same(number):
    task = Task(SHAPE, rows=8, length=8)
    names = [layout.name for layout in layouts_of(SHAPE, number, 8)]
    (found, *_) = ranks(layouts_ranks.losses, number, task, names, 6)
    (alone,) = ranks(layouts_ranks.losses, 1, task, ["dp1"], 6)
    assert set(found) == set(names)
    for name, trail in found.items():
        for (loss, numbers), (expected, order) in zip(trail, alone["dp1"], strict=True):
            assert abs(loss / expected - 1) <= EXACT, name
            assert numbers == order, name


@pytest.mark.nightly
def test_moves_between_all_layouts_of_two_ranks_change_nothing(tmp_path):
    layouts = [layout for layout in layouts_of(SHAPE, 2, 4) if layout.schedule != "gpipe"]
    pairs = list(permutations(layouts, 2))
    rows = ranks(pairs_on_rank, 2, TASK, pairs, str(tmp_path), 2)[0]
    assert [(row["from"], row["to"]) for row in rows] == [(a.name, b.name) for a, b in pairs]
    for row in rows:
        assert row["is_equal"] and row["is_equal_memory"], row
        assert row["is_order_kept"] and row["loss_gap"] <= EXACT, row


@pytest.mark.nightly
def test_fully_sharded_and_tensor_parallel_layouts_move_through_memory(tmp_path):
    names = ("dp2-tp2-zero3", "dp4-zero2", "tp2-pp2-1f1b-m2", "dp2-tp2")
    layouts = [parse_layout(name) for name in names]
    pairs = list(permutations(layouts, 2))
    rows = ranks(pairs_on_rank, 4, TASK, pairs, str(tmp_path), 2)[0]
    assert len(rows) == 12
    for row in rows:
        assert row["is_equal"] and row["is_equal_memory"], row
        assert row["is_order_kept"] and row["loss_gap"] <= EXACT, row


@pytest.mark.nightly
def test_moves_to_other_numbers_of_ranks(tmp_path):
    ends = [parse_layout(name) for name in ("dp1", "dp2-tp2-zero3", "dp2-pp2-1f1b-m2-zero1")]
    starts = [parse_layout(name) for name in ("dp2-zero1", "tp2")]
    rows = across_sizes(TASK, starts, ends, tmp_path, 2, 120.0)
    assert [row["ranks_after"] for row in rows] == [1, 1, 4, 4, 4, 4]
    assert [row["from"] for row in rows] == ["dp2-zero1", "tp2"] * 3
    for row in rows:
        assert row["is_equal"] and row["is_order_kept"] and row["loss_gap"] <= EXACT, row


@pytest.mark.nightly
@pytest.mark.parametrize("number", [2, 4, 8])
def test_moves_between_all_kinds_change_nothing(tmp_path, number):
    """Every kind of layout of so many ranks to every other one. Of the 306 pairs of 8 ranks, which take
    a quarter of an hour on two cores, 54: every kind is a start and an end three times."""
    shape = LlamaShape(layers=4, width=32, heads=8, kv_heads=8, hidden=24, vocab=32, longest=16)
    task, layouts = Task(shape, rows=16, length=8), kinds_of(layouts_of(shape, number, 16))
    pairs = list(permutations(layouts, 2))
    if number == 8:
        steps, n = (1, 5, 11), len(layouts)
        pairs = [(layouts[i], layouts[(i + step) % n]) for i in range(n) for step in steps]
        assert n == 18
    rows = ranks(pairs_on_rank, number, task, pairs, str(tmp_path), 2)[0]
    assert [(row["from"], row["to"]) for row in rows] == [(a.name, b.name) for a, b in pairs]
    for row in rows:
        assert row["is_equal"] and row["is_equal_memory"], row
        assert row["is_order_kept"] and row["loss_gap"] <= EXACT, row


@pytest.mark.nightly
def test_the_state_is_the_same_in_one_message_and_in_many():
    names = ["dp2-zero3", "tp2", "pp2-1f1b-m2", "dp2-zero1"]
    found = ranks(layouts_ranks.digests_in_bunches, 2, TASK, names, [1, 1000, 64 << 20])
    assert len({digest for of_rank in found for digest in of_rank}) == 1


def test_a_state_that_is_not_finite_is_not_moved():
    with pytest.raises(
        RanksFailed, match=r"ArithmeticError: step 1: .*not moved \(rank 1: model\.\w+"
    ):
        ranks(layouts_ranks.move_what_is_not_finite, 2, TASK, "pp2-1f1b-m2", "dp2")


@pytest.mark.nightly
def test_a_rank_that_dies_in_a_move_leaves_the_checkpoint_before(tmp_path):
    with pytest.raises(RanksFailed, match="rank 1: ended by SIGKILL"):
        ranks(layouts_ranks.die_while_moving, 2, TASK, "dp2-zero3", "tp2", str(tmp_path))
    left = str(checkpoint.latest(tmp_path))
    for (((_, trail),),) in ranks(resume_on_rank, 2, TASK, [parse_layout("tp2")], [left], 1):
        assert trail[0][1] == [8, 9, 10, 11]


@pytest.mark.nightly
def test_a_hook_that_raises_in_backward_is_one_line(tmp_path):
    with pytest.raises(RanksFailed) as caught:
        ranks(layouts_ranks.raise_in_backward, 2, TASK, "dp2", str(tmp_path))
    assert str(caught.value) == "rank 1: ValueError: three is too many"
    assert checkpoint.latest(tmp_path).name == "step-00000002"


@pytest.mark.nightly
def test_a_step_is_saved_twice_and_a_death_between_leaves_a_whole_one(tmp_path):
    names = ranks(layouts_ranks.save_twice, 1, TASK, "dp1", str(tmp_path / "a"))[0]
    assert names == ["step-00000002"]
    with pytest.raises(RanksFailed, match="rank 0: ended by SIGKILL"):
        ranks(layouts_ranks.die_while_replacing, 1, TASK, "dp1", str(tmp_path / "b"))
    left = checkpoint.latest(tmp_path / "b")
    assert left.name == "step-00000002.old"
    # It can be gone on from, and is replaced in its turn.
    ranks(layouts_ranks.load_only, 1, TASK, "dp1", str(left))
    names = ranks(layouts_ranks.save_twice, 1, TASK, "dp1", str(tmp_path / "b"))[0]
    assert names == ["step-00000002"]


@pytest.mark.nightly
def test_a_rank_that_dies_while_it_saves_leaves_the_checkpoint_before(tmp_path):
    given = (TASK, [parse_layout("dp2")], str(tmp_path / "a"), 2)
    ((_, _, whole),) = ranks(begin_on_rank, 2, *given)[0]
    with pytest.raises(RanksFailed, match="rank 1: ended by SIGKILL"):
        ranks(layouts_ranks.die_while_saving, 2, TASK, "dp2", str(tmp_path / "b"))
    left = checkpoint.checkpoints(tmp_path / "b")
    assert [path.name for path in left] == ["step-00000002"]
    assert checkpoint.latest(tmp_path / "b") == left[0]
    # Training goes on from it, under another layout, as if nothing had happened.
    end = parse_layout("pp2-1f1b-m2")
    (((_, trail),),) = ranks(resume_on_rank, 2, TASK, [end], [str(left[0])], 2)[0]
    for (loss, numbers), (expected, order) in zip(trail, whole, strict=True):
        assert abs(loss / expected - 1) <= EXACT and numbers == order
    # What was half written is not in the way of the next one.
    names = ranks(layouts_ranks.save_often, 1, TASK, "dp1", str(tmp_path / "b"), 4)[0]
    assert checkpoint.latest(tmp_path / "b").name == "step-00000004"
    assert [name for name in names if not name.startswith(".")] == [
        "step-00000003",
        "step-00000004",
    ]


@pytest.mark.nightly
def test_a_full_disk_leaves_the_checkpoint_before(tmp_path):
    with pytest.raises(RanksFailed, match=r"CheckpointFailed: rank [01]: OSError.*File too"):
        ranks(layouts_ranks.save_on_a_full_disk, 2, TASK, "dp2-zero1", str(tmp_path))
    left = checkpoint.latest(tmp_path)
    assert left.name == "step-00000002" and checkpoint.checkpoints(tmp_path) == [left]
    ends = [parse_layout("dp1")]
    (((_, trail),),) = ranks(resume_on_rank, 1, TASK, ends, [str(left)], 2)[0]
    ((_, _, whole),) = ranks(begin_on_rank, 1, TASK, ends, str(tmp_path / "b"), 2)[0]
    for (loss, numbers), (expected, order) in zip(trail, whole, strict=True):
        assert abs(loss / expected - 1) <= EXACT and numbers == order


@pytest.mark.parametrize(
    ("is_noticed", "said"),
    [(False, "step 3: the state is not finite"), (True, "step 3: the loss is nan")],
)
def test_a_gradient_that_is_nan_never_gets_into_a_checkpoint(tmp_path, is_noticed, said):
    """Of two stages the last one alone is spoilt; both refuse."""
    given = (TASK, "pp2-1f1b-m2", str(tmp_path), is_noticed)
    with pytest.raises(RanksFailed, match=f"ArithmeticError: {said}"):
        ranks(layouts_ranks.save_what_is_not_finite, 2, *given)
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["step-00000002"]


def test_a_folder_without_a_whole_checkpoint_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="allowed is a folder with a checkpoint"):
        checkpoint.latest(tmp_path / "absent")
    (tmp_path / ".writing-step-00000002").mkdir()
    (tmp_path / "step-00000004").mkdir()
    with pytest.raises(ConfigError, match="allowed is a folder with a checkpoint"):
        checkpoint.latest(tmp_path)


@pytest.mark.nightly
def test_a_checkpoint_of_another_task_is_refused(tmp_path):
    given = (TASK, [parse_layout("dp1")], str(tmp_path), 1)
    ((path, _, _),) = ranks(begin_on_rank, 1, *given)[0]
    other = Task(SHAPE, rows=8, length=8)
    with pytest.raises(RanksFailed, match="rows is 4; allowed to resume is 8"):
        ranks(layouts_ranks.load_only, 1, other, "dp1", path)
    assert Path(path).is_dir()


@pytest.mark.nightly
def test_the_loop_leaves_a_slow_layout_and_learns_the_same():
    layouts = layouts_of(SHAPE, 2, 4)
    rules = Rules(interval=3, horizon=10**6, hysteresis=0.0, repeats=1)
    start = parse_layout("tp2")
    found = ranks(adapt_on_rank, 2, TASK, layouts, start, 6, rules)
    assert found[0]["decisions"][0]["is_moved"] and found[0]["steps"][0]["layout"] != "tp2"
    assert [d["step"] for d in found[0]["decisions"]] == [0, 3]
    (alone,) = ranks(layouts_ranks.losses, 1, TASK, ["dp1"], 6)
    for row, (loss, _) in zip(found[0]["steps"], alone["dp1"], strict=True):
        assert abs(row["loss"] / loss - 1) <= EXACT
    stays = Rules(interval=3, horizon=1, hysteresis=10**6, repeats=1)
    found = ranks(adapt_on_rank, 2, TASK, layouts, start, 4, stays)
    assert {row["layout"] for row in found[0]["steps"]} == {"tp2"}
