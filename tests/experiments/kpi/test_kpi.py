"""The eight KPIs: their definitions on hand-made numbers, and the scoreboard on played-up ones."""

import dataclasses
import importlib
import json
import types

import numpy as np
import pytest

from agents.hi_ppo.checkpoint import load_shipped
from agents.registry import default_settings
from analysis import figures
from analysis.records import load
from analysis.report import report
from analysis.statistics import kpi as kpis
from analysis.statistics.kpi import Goal, Played, entry
from experiments.kpi import __main__ as command
from experiments.kpi import scoreboard as kpi
from experiments.kpi.scoreboard import Scoreboard
from experiments.kpi.worlds import JITTER, LOAD, PREFERENCES, STEADY
from jaxsim.planning.table import TableInfo

NAMES = [
    "training time",
    "utilisation",
    "WAN cost",
    "Pareto coverage",
    "decision latency",
    "jitter robustness",
    "hierarchical response",
    "load stability",
]


def played(progress, usd=1.0, gb=1.0, utilisation=None):
    """From progress [S, M, T] and totals per scenario."""
    progress = np.asarray(progress, float)
    shape = progress.shape[:2]
    return Played(
        progress=progress,
        utilisation=np.broadcast_to(0.1 if utilisation is None else utilisation, shape),
        tokens=progress.sum(axis=-1) * 10.0,
        egress_usd=np.broadcast_to(np.asarray(usd, float), shape),
        wan_gb=np.broadcast_to(np.asarray(gb, float), shape),
    )


def test_time_to_a_budget_is_read_within_an_interval():
    progress = np.array([0.0, 2.0, 0.0, 4.0])
    assert kpis.time_to(progress, 1.0) == 1.5
    assert kpis.time_to(progress, 2.0) == 2.0  # before the stall, not after it
    assert kpis.time_to(progress, 3.0) == 3.25
    assert kpis.time_to(progress, 0.0) == 0.0
    assert kpis.time_to(progress, 6.5) == np.inf


def test_time_saved_is_to_the_tokens_that_the_slower_one_processed():
    # We do 2 a time, they 1: 4 tokens take us 2 intervals, them 4. Then a late starter: it does
    # nothing for two intervals and 3 in each of the next; to their 4 it takes 3 1/3 of 4 intervals.
    ours = np.array([[[2, 2, 2, 2]], [[0, 0, 3, 3]], [[1, 1, 1, 1]], [[0, 0, 0, 0]]])
    theirs = np.array([[[1, 1, 1, 1]], [[1, 1, 1, 1]], [[0, 0, 0, 0]], [[1, 1, 1, 1]]])
    saved = kpis.time_saved_pct(ours, theirs)[:, 0]
    np.testing.assert_allclose(saved[:2], [50.0, 100 * (1 - (10 / 3) / 4)])
    assert np.isnan(saved[2])  # they never ran: no time to compare with
    assert saved[3] == -100.0  # we never ran: the worst case counts
    # The slower one's budget, whoever that is: losing is as symmetric as it can be.
    np.testing.assert_allclose(kpis.time_saved_pct(theirs, ours)[0, 0], -100.0)


def test_rises_savings_and_shares():
    np.testing.assert_allclose(kpis.rise_pct([0.3, 0.1], [0.2, 0.0]), [50.0, np.nan])
    np.testing.assert_allclose(kpis.saved_pct([1.0, 5.0, 0.0], [4.0, 4.0, 0.0]), [75, -25, np.nan])
    ours = np.array([[[9.0, 8.9, 0.0, 5.0]]])
    oracle = np.array([[[10.0, 10.0, 0.0, 1.0]]])
    assert kpis.stable_pct(ours, oracle)[0, 0] == 50.0  # a stalled interval is not stable


def test_stability_is_bounded_by_the_intervals_in_which_anybody_trains():
    # The oracle moves in the second interval, nobody can train in the fourth.
    ours, oracle = played([[[9.5, 9.5, 9.5, 0.0]]] * 2), played([[[10.0, 0.0, 10.0, 0.0]]] * 2)
    row = kpis.stability(ours, oracle, oracle)
    assert row["value"] == 75 and row["headroom"] == 75 and row["status"] == "out_of_reach"
    assert row["clairvoyant"] == 50


def test_who_trains_nothing_saves_no_traffic():
    theirs, nothing = played([[[2.0]]] * 2), played([[[1.0]]] * 2, usd=0.0, gb=0.0)
    ours = played([[[2.0]], [[0.0]]], usd=[[0.5], [0.0]], gb=[[0.5], [0.0]])
    for row in kpis.traffic(ours, "zero", theirs, [nothing]):
        assert (row["value"], row["n"], row["headroom"]) == (pytest.approx(-25), 2, 100)


def test_traffic_is_counted_per_trained_token():
    # Twice the gigabytes for four times the tokens are half of them per token.
    ours, theirs = played([[[8.0]]] * 2, usd=3.0, gb=2.0), played([[[2.0]]] * 2, usd=1.0, gb=1.0)
    nothing = played([[[1.0]]] * 2, usd=0.0, gb=0.0)
    usd, gb = kpis.traffic(ours, "zero", theirs, [theirs, nothing])
    assert (usd["part"], gb["part"]) == ("USD of egress", "GB")
    assert (usd["value"], gb["value"]) == (pytest.approx(25), pytest.approx(50))
    # A plan that sends nothing saves everything: 30 % is within reach, 25 % is not enough.
    assert usd["headroom"] == gb["headroom"] == 100
    assert (usd["status"], gb["status"]) == ("fail", "pass")


@pytest.mark.parametrize(
    ("value", "headroom", "status"),
    [(26, 40, "pass"), (25, 40, "pass"), (24, 40, "fail"), (24, 24.9, "out_of_reach")],
)
def test_a_status_is_of_value_and_headroom(value, headroom, status):
    row = entry(kpis.TIME, "someone", np.full((3, 1), value), np.full((3, 1), headroom))
    assert row["status"] == status and row["n"] == 3
    assert row["ci95"] == pytest.approx([value, value])
    assert row["headroom"] == pytest.approx(headroom)


def test_losses_and_times_must_stay_below():
    calm = entry(kpis.JITTER_MEAN, None, np.full(4, 9.9), np.full(4, 2.0))
    edge = entry(kpis.JITTER_MEAN, None, np.full(4, 10.0), np.full(4, 2.0))
    assert [r["status"] for r in (calm, edge)] == ["pass", "fail"]
    late = entry(kpis.RESPONSE, None, np.full(100, 2.0), statistic=kpis.percentile(99))
    assert late["status"] == "pass" and late["headroom"] is None


def test_scenarios_without_a_figure_are_left_out_of_value_and_headroom_alike():
    row = entry(kpis.TIME, "x", np.array([[30.0], [np.nan], [50.0]]), np.array([[40.0], [9], [60]]))
    assert (row["value"], row["headroom"], row["n"]) == (40.0, 50.0, 2)
    assert entry(kpis.TIME, "x", np.full((2, 1), np.nan), np.full((2, 1), 1.0))["value"] is None


def test_the_interval_resamples_scenarios_and_policy_seeds():
    rng = np.random.default_rng(0)
    values = 30 + rng.normal(size=(40, 1)) + 3 * rng.normal(size=(1, 8))
    row = entry(kpis.TIME, "x", values)
    width = row["ci95"][1] - row["ci95"][0]
    assert row["ci95"][0] < row["value"] < row["ci95"][1]
    assert width > 2 * 1.96 * 3 / np.sqrt(8) * 0.5  # scenarios alone would give a fifth of it
    assert kpis.percentile(95)(np.arange(101.0)) == 95.0


def test_robustness_is_the_loss_to_the_same_world_without_jitter():
    steady = played(np.full((4, 1, 2), 10.0))
    moving = played(np.array([9.0, 9.5, 8.0, 10.0])[:, None, None] * np.ones((1, 1, 2)))
    best = played(np.array([9.8, 9.8, 9.0, 10.0])[:, None, None] * np.ones((1, 1, 2)))
    mean, high = kpis.robustness(moving, steady, (best, steady))
    assert mean["value"] == pytest.approx(8.75) and mean["status"] == "pass"
    assert mean["clairvoyant"] == pytest.approx(3.5)
    assert high["value"] == pytest.approx(np.percentile([10, 5, 20, 0], 95))
    assert high["clairvoyant"] == pytest.approx(np.percentile([2, 2, 10, 0], 95))
    assert high["status"] == "fail" and mean["headroom"] is None and high["headroom"] is None


@pytest.mark.parametrize(("ours", "status"), [(10.0, "pass"), (8.5, "fail")])
def test_clairvoyant_s_own_loss_to_jitter_bounds_nothing(ours, status):
    # A plan that uses no link loses nothing where clairvoyant, who uses many, loses 12 %.
    calm = played(np.full((4, 1, 2), 10.0))
    fast = played(np.full((4, 1, 2), 20.0)), played(np.full((4, 1, 2), 17.6))
    for row in kpis.robustness(played(np.full((4, 1, 2), ours)), calm, (fast[1], fast[0])):
        assert row["value"] == pytest.approx(100 - 10 * ours)
        assert (row["clairvoyant"], row["headroom"]) == (pytest.approx(12), None)
        assert row["status"] == status


def test_what_clairvoyant_loses_is_of_the_scenarios_that_count():
    steady = played([[[10.0]], [[0.0]]])  # the second never ran: no loss of ours is defined
    best = played([[[9.0]], [[5.0]]]), played([[[10.0]], [[10.0]]])
    mean, _ = kpis.robustness(played([[[10.0]], [[0.0]]]), steady, best)
    assert (mean["value"], mean["n"]) == (0, 1) and mean["clairvoyant"] == pytest.approx(10)
    nowhere = played([[[0.0]], [[0.0]]])
    mean, _ = kpis.robustness(nowhere, nowhere, (nowhere, nowhere))
    assert (mean["value"], mean["clairvoyant"], mean["status"]) == (None, None, "fail")


def test_goals_are_the_eight_kpis():
    assert list(dict.fromkeys(goal.name for goal in kpis.GOALS)) == NAMES
    assert all(isinstance(goal, Goal) for goal in kpis.GOALS)
    assert len(PREFERENCES) == 10 and len(set(PREFERENCES)) == 10
    assert all(sum(w) == pytest.approx(1) and w[3] == 0 for w in PREFERENCES)


SPEED = {  # training steps per interval, without jitter and load
    "single_domain": 4.0,
    "static_even_split": 3.0,
    "zero": 3.0,
    "best_static": 5.0,
    "hysteresis": 5.5,
    "replan_oracle": 6.0,
    "hi_ppo": 6.0,
    "clairvoyant": 6.5,
}
WIRE = {"single_domain": 0.0, "static_even_split": 4.0, "zero": 2.5, "hi_ppo": 2.0}


class Theatre:
    """A stage on which speeds are known beforehand: a scene costs everybody a fixed share."""

    asked = {}  # noqa: RUF012 - what preferences whose points were asked for

    spec = types.SimpleNamespace(name="toy", n_domains=2)
    info = TableInfo("toy plans", 2, 50, 2, exhaustive=True, plans_in_family=50)
    tuned = default_settings()

    def play(self, scene, who):
        share = {JITTER: 0.95, STEADY: 1.0, LOAD: 0.5}[scene]
        progress = np.full((4, 1, 8), share * SPEED[who]) * np.arange(1, 5)[:, None, None]
        wire = WIRE.get(who, 3.0) * progress.sum(axis=-1)
        return played(progress, 0.1 * wire, wire, utilisation=progress.mean(axis=-1) / 100)

    def points(self, who, preferences):
        self.asked[who] = preferences
        at = {"hi_ppo": [1.0, 1.0, 3.0], "hysteresis": [9.0, 9.0, 9.0]}[who]
        return np.tile(at, (4, 1, len(preferences), 1))

    def fronts(self):
        return [np.array([[1.0, 1.0, 3.0], [3.0, 3.0, 1.0]])] * 4

    def tune(self, names):
        return {n: np.full(4, 100 * (1 - SPEED.get(n, 0.1) / 6.5)) for n in names}


class Crowd:
    """Three jobs at once, on two scenarios: whoever is twice as fast uses twice as much."""

    n_jobs = 3

    def utilisation(self, name):
        return None if name == "best_static" else np.array([[SPEED[name]], [2 * SPEED[name]]]) / 100


@pytest.fixture
def scoreboard(monkeypatch):
    monkeypatch.setattr(Theatre, "asked", {})
    monkeypatch.setattr(Scoreboard, "_stage", lambda self, file: Theatre())
    monkeypatch.setattr(Scoreboard, "_shared", lambda self, file: Crowd())
    monkeypatch.setattr(Scoreboard, "_everyone", lambda self, stage, name: name)
    monkeypatch.setattr(Scoreboard, "_decision_ms", lambda self, name: np.linspace(1, 2, 100))
    monkeypatch.setattr(kpi, "response_s", lambda argv, spec, count: np.full(count, 0.02))
    monkeypatch.setattr(
        kpi, "scheduler_names", lambda **_: tuple(n for n in SPEED if n != "hi_ppo")
    )


def test_the_scoreboard_states_all_eight_for_both(scoreboard, tmp_path, capsys):
    file = tmp_path / "kpi.json"
    argv = ["--candidates", "best_static,hysteresis", "--json", str(file)]
    assert command.main([*argv, "--out", str(tmp_path / "run")]) == 0
    result = json.loads(file.read_text())
    assert list(dict.fromkeys(row["name"] for row in result["kpis"])) == NAMES
    assert result["non_learned"]["scheduler"] == "hysteresis"  # the faster of the two candidates
    rows = {(r["name"], r["part"], r["rival"]): r for r in result["kpis"]}
    for row in rows.values():
        assert {"value", "ci95", "target", "headroom", "status"} <= set(row)
    # 6 steps against 3 in the same time: half the time, twice the utilisation.
    time = rows["training time", None, "static_even_split"]
    assert time["value"] == pytest.approx(50) and time["status"] == "pass"
    assert time["headroom"] == pytest.approx(100 * (1 - 3 / 6.5))
    assert rows["utilisation", None, "static_even_split"]["value"] == pytest.approx(100)
    # Six against four in both scenarios; nothing bounds what many jobs can use.
    shared = rows["utilisation", "many jobs", "single_domain"]
    assert (shared["value"], shared["headroom"], shared["n_jobs"]) == (pytest.approx(50), None, 3)
    assert rows["utilisation", "many jobs", "best_static"]["value"] is None
    # Against the best static plan not even clairvoyant saves a quarter.
    assert rows["training time", None, "best_static"]["status"] == "out_of_reach"
    assert rows["WAN cost", "GB", "static_even_split"]["value"] == pytest.approx(50)
    assert rows["WAN cost", "GB", "zero"]["value"] == pytest.approx(20)
    assert rows["WAN cost", "GB", "zero"]["status"] == "fail"
    coverage = rows["Pareto coverage", None, "exact front"]
    assert coverage["value"] == 50 and coverage["status"] == "fail"
    assert 0 < coverage["hypervolume_ratio"] < 1 and coverage["front_size"] == 2
    # Two clusters by default, the front of each over all of its plans.
    assert (coverage["plans_scored"], coverage["plans_in_family"]) == (100, 100)
    assert rows["decision latency", "lower", None]["status"] == "pass"
    assert rows["jitter robustness", "95th percentile", None]["value"] == pytest.approx(5)
    assert rows["hierarchical response", None, None]["value"] == pytest.approx(0.02)
    assert rows["load stability", None, "replan_oracle"]["value"] == 100
    assert rows["load stability", None, "replan_oracle"]["status"] == "pass"
    theirs = {(r["name"], r["part"], r["rival"]): r for r in result["non_learned"]["kpis"]}
    assert theirs["Pareto coverage", None, "exact front"]["value"] == 0
    assert set(theirs) == set(rows)
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "hysteresis" in text
        and "The exact front is over 100 plans, added candidates included" in text
    )
    assert "the volume counts time twice" in text
    assert load(tmp_path / "run").run["kind"] == "kpi"


def coverage_row(monkeypatch, tmp_path, **info):
    """The first scoreboard's row on the front where tables say `info` of themselves."""
    monkeypatch.setattr(Theatre, "info", dataclasses.replace(Theatre.info, **info))
    argv = ["--candidates", "hysteresis", "--json", str(tmp_path / "kpi.json")]
    assert command.main([*argv, "--out", str(tmp_path / "run")]) == 0
    rows = json.loads((tmp_path / "kpi.json").read_text())["kpis"]
    return next(row for row in rows if row["name"] == "Pareto coverage")


@pytest.mark.parametrize(
    "info", [{"plans_scored": 49}, {"exhaustive": False}, {"plans_in_family": 9000}]
)
def test_a_front_is_exact_only_where_every_plan_is_scored(
    scoreboard, tmp_path, monkeypatch, capsys, info
):
    row = coverage_row(monkeypatch, tmp_path, **info)
    assert row["rival"] == "front of scored plans"
    note = (
        f"The front of scored plans is over {row['plans_scored']} plans, added candidates included"
    )
    note += f" (the family has {row['plans_in_family']:,})"
    assert note in " ".join(capsys.readouterr().out.split())
    text = report.write_report([tmp_path / "run"]).read_text()
    assert note in text and "counts time twice" in text


@pytest.mark.parametrize("conditioned", [False, True])
def test_preferences_are_asked_only_of_who_can_be_told_them(
    scoreboard, tmp_path, monkeypatch, conditioned
):
    shipped = load_shipped()
    meta = {**shipped.meta, kpi.CONDITIONED: conditioned}
    checkpoint = dataclasses.replace(shipped, meta=meta)
    # The module, not the function of this name that the index offers.
    module = importlib.import_module("experiments.evaluate.contestants")
    monkeypatch.setattr(module, "load_shipped", lambda: checkpoint)
    coverage_row(monkeypatch, tmp_path)
    assert Theatre.asked["hi_ppo"] == (PREFERENCES if conditioned else ((1.0, 0.0, 0.0, 0.0),))
    assert len(Theatre.asked["hysteresis"]) == 1


def test_the_report_of_a_scoreboard_counts_what_passes(scoreboard, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "save", lambda figure, path: path.touch())
    argv = ["--candidates", "hysteresis", "--json", "-", "--out", str(tmp_path / "run")]
    assert command.main(argv) == 0
    text = report.write_report([tmp_path / "run"]).read_text()
    # Latency, robustness, response and stability; every other KPI has a row that does not pass.
    assert "**hi_ppo** passes 4 of 8 KPIs: decision latency, jitter robustness" in text
    assert "out of reach" in text and "![Key figures](figures/key-figures.png)" in text


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--policy", "nobody"], ["nobody", "hysteresis"]),
        (["--policy", "best_static,hysteresis"], ["policy"]),
        (["--policy", "clairvoyant"], ["policy", "truth", "clairvoyant"]),
        (["--candidates", "clairvoyant"], ["clairvoyant", "best_static"]),
        (["--weights", "1,0,0,1"], ["weights", "w4"]),
        (["--seeds", "1"], ["seeds", ">= 2"]),
        (["--measurements", "99"], ["measurements", ">= 100"]),
        (["--cluster", "nowhere.yaml"], ["nowhere.yaml"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(argv, named, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.main([*argv, "--out", "run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert all(text in err for text in named), err
    assert not list(tmp_path.iterdir())
