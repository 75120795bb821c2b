"""The scoreboard of the eight KPIs on played-up numbers."""

import dataclasses
import importlib
import json
import types

import numpy as np
import pandas as pd
import pytest
from helpers.answering import Answering
from helpers.synthetic_scenes import played

from agents.hi_ppo.checkpoint import load_shipped
from agents.registry import default_settings
from analysis import figures
from analysis.records import RunWriter, load
from analysis.report import report
from analysis.statistics import kpi as kpis
from analysis.statistics.kpi import Goal
from experiments.kpi import __main__ as command
from experiments.kpi import rivals
from experiments.kpi import scoreboard as kpi
from experiments.kpi.config import SETTINGS, KpiConfig
from experiments.kpi.scoreboard import Scoreboard
from experiments.kpi.worlds import JITTER, LOAD, STEADY, THRIFTY, questions
from jaxsim.planning.objective import BUDGET_SHARES
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


def test_goals_are_the_eight_kpis():
    assert list(dict.fromkeys(goal.name for goal in kpis.GOALS)) == NAMES
    assert all(isinstance(goal, Goal) for goal in kpis.GOALS)


def test_questions_are_weights_and_budgets_in_equal_steps():
    asked = questions()
    assert asked == questions(KpiConfig().asked) and len(asked) == 4 + 3
    # The table is made for these budgets.
    assert tuple(share for _, share in asked[4:]) == BUDGET_SHARES
    for count in (2, 3, 7, 28):
        asked = questions(count)
        assert len(set(asked)) == len(asked) == count
        assert all(sum(w) == pytest.approx(1) and w[3] == 0 and b > 0 for w, b in asked)
        assert asked[0].weights == (1, 0, 0, 0) and (0, 0, 1, 0) in [w for w, _ in asked]


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
TRUTHFUL = ("hi_ppo", "replan_oracle", "clairvoyant")  # no candidates
WIRE = {"single_domain": 0.0, "static_even_split": 4.0, "zero": 2.5, "hi_ppo": 2.0}


class Theatre:
    """A stage on which speeds are known beforehand: a scene costs everybody a fixed share."""

    asked = {}  # noqa: RUF012 - what preferences whose points were asked for
    told = []  # noqa: RUF012 - who was told weights, and which

    spec = types.SimpleNamespace(name="toy", n_domains=2)
    info = TableInfo("toy plans", 2, 50, 2, exhaustive=True, plans_in_family=50)
    tuned = default_settings()

    def scene(self, name):
        del name  # nothing is to be made

    def play(self, scene, who, weights=None):
        if weights is not None:
            self.told.append((scene, who, weights))
        share = {JITTER: 0.95, STEADY: 1.0, LOAD: 0.5}[scene]
        progress = np.full((4, 1, 8), share * SPEED[who]) * np.arange(1, 5)[:, None, None]
        thrift = 0.5 if weights == THRIFTY and who == "hysteresis" else 1.0
        wire = thrift * WIRE.get(who, 3.0) * progress.sum(axis=-1)
        return played(progress, 0.1 * wire, wire, utilisation=progress.mean(axis=-1) / 100)

    def hand_over(self, path, who):
        path.write_text(str(who))

    def points(self, who, preferences):
        self.asked[who] = preferences
        if who == "clairvoyant":  # who settles wherever he is asked to
            return np.tile(self.fronts()[0], (4, 1, len(preferences) // 2, 1))
        at = [1.0, 1.0, 3.0] if who == "hi_ppo" else [9.0, 9.0, 9.0]
        return np.tile(at, (4, 1, len(preferences), 1))

    def fronts(self):
        return [np.array([[1.0, 1.0, 3.0], [3.0, 3.0, 1.0]])] * 4

    def tune(self, names):
        assert "replan_oracle" in names

    def regret(self, name):
        return np.full(4, 100 * (1 - SPEED.get(name, 0.1) / 6.5))


def record_of(tmp_path):
    return load(tmp_path / "run")


class Crowd:
    """Three jobs at once, on two scenarios: whoever is twice as fast uses twice as much."""

    n_jobs = 3

    def alone(self):
        return np.array([[7.0], [14.0]]) / 100

    def utilisation(self, name):
        return None if name == "best_static" else np.array([[SPEED[name]], [2 * SPEED[name]]]) / 100


@pytest.fixture
def scoreboard(monkeypatch):
    monkeypatch.setattr(Theatre, "asked", {})
    monkeypatch.setattr(Theatre, "told", [])
    monkeypatch.setattr(Scoreboard, "_stage", lambda self, file: Theatre())
    monkeypatch.setattr(Scoreboard, "_shared", lambda self, file: Crowd())
    monkeypatch.setattr(Scoreboard, "_everyone", lambda self, stage, name: name)
    monkeypatch.setattr(
        Scoreboard, "_decisions_ms", lambda self, name, count: np.linspace(1, 2, 100)
    )
    monkeypatch.setattr(kpi, "RespondingProcess", Answering)
    monkeypatch.setattr(rivals, "names", lambda **_: tuple(n for n in SPEED if n not in TRUTHFUL))


def test_the_scoreboard_states_all_eight_for_both(scoreboard, tmp_path, capsys):
    file = tmp_path / "kpi.json"
    argv = ["--candidates", "best_static,hysteresis", "--json", str(file)]
    assert command.main([*argv, "--out", str(tmp_path / "run")]) == 0
    assert Answering.open == 0  # no process is left behind
    result = json.loads(file.read_text())
    assert list(dict.fromkeys(row["name"] for row in result["kpis"])) == NAMES
    # The faster of the two candidates.
    assert result["non_learned"]["scheduler"] == dict.fromkeys(SETTINGS, "hysteresis")
    for row in result["kpis"]:
        assert {"setting", "weights", "value", "ci95", "target", "headroom", "status"} <= set(row)
    by_setting = [[r for r in result["kpis"] if r["setting"] == name] for name in SETTINGS]
    # In this theatre every plan is as fast in both settings; a front of any plans is never whole.
    same = {"setting": None, "rival": None}
    assert [{**r, **same} for r in by_setting[0]] == [{**r, **same} for r in by_setting[1]]
    assert next(r for r in by_setting[1] if r["name"] == "Pareto coverage")["rival"].endswith(
        "plans"
    )
    rows = {(r["name"], r["part"], r["rival"]): r for r in by_setting[0]}
    # 6 steps against 3 in the same time: half the time, twice the utilisation.
    time = rows["training time", None, "static_even_split"]
    assert time["value"] == pytest.approx(50) and time["status"] == "pass"
    assert time["headroom"] == pytest.approx(100 * (1 - 3 / 6.5))
    assert rows["utilisation", None, "static_even_split"]["value"] == pytest.approx(100)
    # Six against four in both scenarios; alone on the cluster every job would reach seven.
    shared = rows["utilisation", "many jobs", "single_domain"]
    assert (shared["value"], shared["n_jobs"]) == (pytest.approx(50), 3)
    assert shared["headroom"] == pytest.approx(75) and shared["status"] == "pass"
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
    theirs = result["non_learned"]["kpis"]
    theirs = {(r["name"], r["part"], r["rival"]): r for r in theirs if r["setting"] != "any"}
    assert theirs["Pareto coverage", None, "exact front"]["value"] == 0
    assert set(theirs) == set(rows)
    # Told that egress counts, hysteresis sends half as much; everything else is asked for progress.
    assert theirs["WAN cost", "GB", "zero"]["value"] == pytest.approx(40)
    assert theirs["WAN cost", "GB", "zero"]["weights"] == [1, 0, 1, 0]
    assert rows["training time", None, "single_domain"]["weights"] == [1, 0, 0, 0]
    assert coverage["weights"] is None
    assert {(scene, w) for scene, _, w in Theatre.told} == {(JITTER, THRIFTY)}
    assert "zero" not in {who for _, who, _ in Theatre.told}  # it takes no weights
    # The front, for everybody who takes weights.
    weighing = ["best_static", "hysteresis", "single_domain", "static_even_split"]
    assert sorted(r["scheduler"] for r in result["coverage"] if r["setting"] == "any") == weighing
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "hysteresis" in text
        and "The exact front is over 100 plans, added candidates included" in text
    )
    assert "It is of time, WAN bytes and price" in text
    fronts = record_of(tmp_path).table("fronts")
    assert set(fronts["scheduler"]) == {"front", "clairvoyant", "hi_ppo", *weighing}
    record = record_of(tmp_path)
    assert record.run["kind"] == "kpi" and set(record.table("kpis")["setting"]) == set(SETTINGS)
    assert len(record.table("coverage")) == 2 * len(weighing)


def test_one_setting_may_be_measured_alone(scoreboard, tmp_path):
    argv = ["--candidates", "hysteresis", "--allow", "any", "--json", str(tmp_path / "kpi.json")]
    assert command.main([*argv, "--out", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "kpi.json").read_text())
    assert {row["setting"] for row in result["kpis"]} == {"any"}
    assert result["non_learned"]["scheduler"] == {"any": "hysteresis"}


def test_nobody_is_measured_against_himself(scoreboard, tmp_path):
    argv = ["--policy", "single_domain", "--candidates", "best_static", "--allow", "any"]
    argv += ["--json", str(tmp_path / "kpi.json"), "--out", str(tmp_path / "run")]
    assert command.main(argv) == 0
    result = json.loads((tmp_path / "kpi.json").read_text())
    for name, rows in (
        ("single_domain", result["kpis"]),
        ("best_static", result["non_learned"]["kpis"]),
    ):
        rivals = [row["rival"] for row in rows if row["name"] == "training time"]
        others = {"single_domain", "static_even_split", "best_static"} - {name}
        assert set(rivals) == others and len(rivals) == 2
        assert name not in {row["rival"] for row in rows}


def test_the_front_alone_is_asked_for(scoreboard, tmp_path):
    argv = ["--only", "coverage", "--allow", "synchronous", "--json", str(tmp_path / "kpi.json")]
    assert command.main([*argv, "--out", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "kpi.json").read_text())
    (row,) = result["kpis"]
    assert row["name"] == "Pareto coverage" and row["value"] == 50 and row["headroom"] == 100
    assert not Theatre.told and "episodes" not in (f.stem for f in (tmp_path / "run").iterdir())


def test_a_measurement_goes_on_behind_the_settings_that_are_finished(
    scoreboard, tmp_path, monkeypatch, capsys
):
    run, argv = str(tmp_path / "run"), ["--candidates", "hysteresis"]
    assert command.main([*argv, "--out", str(tmp_path / "whole")]) == 0
    asked, coverages = [], Scoreboard.coverages

    def until(self):
        asked.append(self.setting)
        if "stop" in asked or self.setting != "any":
            return coverages(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Scoreboard, "coverages", until)
    capsys.readouterr()
    assert command.main([*argv, "--out", run]) == 130
    assert f"go on with --resume {run}" in capsys.readouterr().err
    assert record_of(tmp_path).run["status"] == "interrupted"
    assert set(record_of(tmp_path).table("kpis")["setting"]) == {"synchronous"}  # kept
    asked[:] = ["stop"]
    assert command.main(["--resume", run, "--json", str(tmp_path / "kpi.json")]) == 0
    assert asked == ["stop", "any"]  # what is finished is not measured again
    whole, resumed = load(tmp_path / "whole"), record_of(tmp_path)
    for name in whole.tables():
        pd.testing.assert_frame_equal(resumed.table(name), whole.table(name))
    assert {**resumed.summary, "wall_s": 0} == {**whole.summary, "wall_s": 0}
    assert json.loads((tmp_path / "kpi.json").read_text()) == resumed.summary
    # Each setting is a record of its own, as if it had been measured alone.
    assert command.main([*argv, "--allow", "any", "--out", str(tmp_path / "any")]) == 0
    alone, part = load(tmp_path / "any"), load(tmp_path / "run" / "any")
    assert {**alone.summary, "wall_s": 0} == {**part.summary, "wall_s": 0}
    assert part.run["config"] == alone.run["config"]


def test_only_a_measurement_of_key_figures_goes_on(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunWriter.create("evaluate", {}, 0, tmp_path / "other") as writer:
        writer.finish({})
    for folder, named in (("nowhere", "nowhere"), ("other", "evaluate")):
        assert command.main(["--resume", folder]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1
        assert folder in err and named in err
    assert load(tmp_path / "other").run["status"] == "finished"  # nothing of it was touched
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def coverage_row(monkeypatch, tmp_path, candidates="hysteresis", **info):
    """The first scoreboard's row on the front where tables say `info` of themselves."""
    monkeypatch.setattr(Theatre, "info", dataclasses.replace(Theatre.info, **info))
    argv = ["--candidates", candidates, "--json", str(tmp_path / "kpi.json")]
    run = str(tmp_path / "run" if candidates == "hysteresis" else tmp_path / candidates)
    assert command.main([*argv, "--out", run]) == 0
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
    assert note in text and "of time, WAN bytes and price" in text


@pytest.mark.parametrize("conditioned", [False, True])
def test_preferences_are_asked_only_of_who_can_be_told_them(
    scoreboard, tmp_path, monkeypatch, conditioned
):
    shipped = load_shipped()
    meta = {**shipped.meta, kpi.CONDITIONED: conditioned}
    checkpoint = dataclasses.replace(shipped, meta=meta)
    # The module, not the function of this name that the index offers.
    module = importlib.import_module("experiments.evaluate.contestants")
    monkeypatch.setattr(module, "load_trained", lambda path: checkpoint)
    progress_alone = (((1.0, 0.0, 0.0, 0.0), np.inf),)
    coverage_row(monkeypatch, tmp_path)
    assert Theatre.asked["hi_ppo"] == (questions() if conditioned else progress_alone)
    assert Theatre.asked["hysteresis"] == questions()  # it maximises what it is told
    coverage_row(monkeypatch, tmp_path, candidates="zero")
    assert Theatre.asked["zero"] == progress_alone


def test_the_report_of_a_scoreboard_counts_what_passes(scoreboard, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "save", lambda figure, path: path.touch())
    argv = ["--candidates", "hysteresis", "--json", "-", "--out", str(tmp_path / "run")]
    assert command.main(argv) == 0
    text = report.write_report([tmp_path / "run"]).read_text()
    # Latency, robustness, response and stability; every other KPI has a row that does not pass.
    assert "**hi_ppo** passes 4 of 8 KPIs: decision latency, jitter robustness" in text
    assert "out of reach" in text
    assert "![Key figures, synchronous plans](figures/key-figures.png)" in text
    assert "![Key figures, any plan](figures/key-figures-any.png)" in text


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--policy", "nobody"], ["nobody", "hysteresis"]),
        (["--policy", "best_static,hysteresis"], ["policy"]),
        (["--policy", "clairvoyant"], ["policy", "truth", "clairvoyant"]),
        (["--candidates", "clairvoyant"], ["clairvoyant", "best_static"]),
        (["--allow", "neither"], ["allow", "both", "synchronous", "neither"]),
        (["--seeds", "1"], ["seeds", ">= 2"]),
        (["--measurements", "99"], ["measurements", ">= 100"]),
        (["--cluster", "nowhere.yaml"], ["nowhere.yaml"]),
        (["--resume", "nowhere"], ["out", "--resume, nowhere", "json"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(argv, named, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.main([*argv, "--out", "run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert all(text in err for text in named), err
    assert not list(tmp_path.iterdir())
