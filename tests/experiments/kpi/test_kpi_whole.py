"""The scoreboard with nothing faked: worlds, rivals, fronts, many jobs, a process that responds."""

import json

import pytest
from helpers.answering import Answering
from helpers.toy_world import two_sites_yaml

from analysis.records import load
from experiments.kpi import __main__ as command
from experiments.kpi import scoreboard as kpi
from experiments.kpi.config import SETTINGS

JOBS = """arrival_s,model,global_batch,seq,tokens
0,gpt2-medium,256,1024,4e8
600,gpt2-medium,256,1024,2e8
"""
PARTS = {  # of a scoreboard: (name, part) -> how many rivals
    ("training time", None): 3,
    ("utilisation", None): 3,
    ("utilisation", "many jobs"): 3,
    ("WAN cost", "USD of egress"): 2,
    ("WAN cost", "GB"): 2,
    ("Pareto coverage", None): 1,
    ("decision latency", "upper"): 1,
    ("decision latency", "lower"): 1,
    ("jitter robustness", "mean"): 1,
    ("jitter robustness", "95th percentile"): 1,
    ("hierarchical response", None): 1,
    ("load stability", None): 1,
}
TIMED = ("decision latency", "hierarchical response")


def measured(folder, run):
    argv = [
        *("--cluster", ",".join(2 * [str(folder / "sites.yaml")])),  # as if there were two
        *("--jobs", str(folder / "jobs.csv")),
        *("--model", "gpt2-medium", "--global-batch", "256", "--seq", "1024"),
        *("--candidates", "best_static,hysteresis", "--table-size", "6", "--layout-limit", "50"),
        *("--seeds", "2", "--jobs-seeds", "3", "--tuning-scenarios", "2"),
        *("--scenario.horizon", "6"),
        *("--decisions", "100", "--measurements", "100"),
    ]
    assert (
        command.main([*argv, "--json", str(folder / f"{run}.json"), "--out", str(folder / run)])
        == 0
    )
    return json.loads((folder / f"{run}.json").read_text())


@pytest.mark.nightly
@pytest.mark.usefixtures("scoring_is_optimised")
def test_the_scoreboard_from_files_to_figures_and_the_same_again(tmp_path, monkeypatch):
    (tmp_path / "sites.yaml").write_text(two_sites_yaml(40, 30))
    (tmp_path / "jobs.csv").write_text(JOBS)
    # Of those who take weights, three: one that stays, and the rules that weigh a move.
    weighing = ("best_static", "hysteresis", "self_tuning_hysteresis")
    monkeypatch.setattr(kpi, "weighing", lambda: list(weighing))
    result = measured(tmp_path, "first")
    # Times are not compared, so that the second run need not start its processes.
    monkeypatch.setattr(kpi, "RespondingProcess", Answering)
    again = measured(tmp_path, "second")
    assert set(result["non_learned"]["scheduler"]) == set(SETTINGS)
    assert set(result["non_learned"]["scheduler"].values()) <= {"best_static", "hysteresis"}
    assert result["scenario"]["clusters"] == ["two-sites", "two-sites"]
    both = result["kpis"], result["non_learned"]["kpis"]
    boards = [[row for row in rows if row["setting"] == name] for rows in both for name in SETTINGS]
    assert {row["n"] for row in boards[0] if row["name"] == "training time"} == {4}
    assert {row["n"] for row in boards[0] if row["part"] == "many jobs"} == {6}
    best = result["non_learned"]["scheduler"]
    for subject, board in zip(
        [None, None, *(best[name] for name in SETTINGS)], boards, strict=True
    ):
        assert subject not in {row["rival"] for row in board} - {None}
        parts = PARTS
        if subject == "best_static":  # nobody is measured against himself
            parts = {key: n - (n == 3) for key, n in PARTS.items()}
        count = {key: sum((r["name"], r["part"]) == key for r in board) for key in PARTS}
        assert count == parts and len(board) == sum(parts.values())
        for row in board:
            check(row)
    assert all(r["value"] > 0 for board in boards for r in board if r["name"] in TIMED)
    assert repeated(result) == repeated(again)
    coverage = load(tmp_path / "first").table("coverage")
    assert sorted(coverage["scheduler"]) == sorted(2 * weighing)
    episodes = load(tmp_path / "first").table("episodes")
    assert set(episodes["scene"]) == {"jitter", "steady", "load"}
    assert (episodes["progress"] > 0).any() and episodes["utilisation"].between(0, 1).all()


def check(row):
    """A row of a scoreboard says what it can and nothing that cannot be."""
    assert row["status"] in ("pass", "fail", "out_of_reach"), row
    if row["value"] is None:
        assert row["status"] == "fail" and row["ci95"] == [None, None], row
        return
    low, high = row["ci95"]
    assert low <= row["value"] <= high, row
    if row["name"] == "Pareto coverage":
        assert 0 <= row["value"] <= row["headroom"] <= 100, row
    if row["name"] == "load stability":
        assert 0 <= row["value"] <= 100 and 0 <= row["headroom"] <= 100, row
    if row["part"] == "many jobs":
        assert row["value"] <= row["headroom"], row
    if row["name"] == "Pareto coverage":
        assert row["plans_scored"] > 0 and 0 <= row["hypervolume_ratio"] <= 1, row
    if row["name"] == "jitter robustness":
        assert row["headroom"] is not None, row


def repeated(result):
    """What a second run with the same seeds must repeat: all but what was timed."""
    rows = [*result["kpis"], *result["non_learned"]["kpis"]]
    assert rows
    scenario = {**result["scenario"]}
    return [row for row in rows if row["name"] not in TIMED], scenario
