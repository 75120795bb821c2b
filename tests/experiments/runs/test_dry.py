"""Long commands before they are begun: files checked, work counted, the time of runs like them; and
small sizes to go through all of one."""

import dataclasses
import json
import re

import pytest

from analysis import provenance
from analysis.records import RunWriter
from experiments.cli import main
from experiments.common import from_mapping, parse
from experiments.evaluate.config import EvaluateConfig, recorded
from experiments.evaluate.suites import load_suite, scene_configs
from experiments.foresight.config import ForesightConfig
from experiments.kpi.config import KpiConfig
from experiments.train.config import TrainConfig


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys, *argv):
    assert main([*argv, "--dry-run", "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def ran(path, seconds, status="finished", machine=None, **settings):
    """A finished evaluation that took so long."""
    config = recorded(from_mapping(EvaluateConfig, settings, "test"))
    with RunWriter.create("evaluate", config, 0, path) as writer:
        writer.finish({})
    body = json.loads((path / "run.json").read_text())
    body |= {"started": "2026-01-01T00:00:00+00:00", "status": status}
    body |= {"ended": f"2026-01-01T00:{seconds // 60:02d}:{seconds % 60:02d}+00:00"}
    body["machine"] |= machine or {}
    (path / "run.json").write_text(json.dumps(body))


@pytest.mark.parametrize("command", ["evaluate", "train", "kpi", "foresight"])
def test_nothing_is_written_and_the_work_is_counted(folder, capsys, command):
    assert main([command, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert re.match(rf"{command}: .*\d", out) and "--quick goes through all of it" in out
    assert not list(folder.iterdir())


def test_what_there_is_to_play_is_counted(folder, capsys):
    argv = "--schedulers", "best_static,hysteresis,clairvoyant", "--seeds", "5", "--steps", "7"
    work = told(capsys, "evaluate", *argv)["work"]
    assert work["schedulers"] == 3 and work["scenarios"] == 5
    assert work["intervals in all"] == 3 * 5 * 7
    suite = told(capsys, "evaluate", "--suite", "mixture", "--quick", *argv[:2])["work"]
    assert suite["intervals in all"] == suite["scenes"] * 3 * 4 * 16


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("evaluate", "--cluster", "none.yaml"), "none.yaml"),
        (("evaluate", "--jobs", "none.csv"), "none.csv"),
        (("train", "--load", "none.csv"), "none.csv"),
        (("train", "--scenario.jitter", "none.yaml"), "none.yaml"),
        (("kpi", "--jobs", "none.csv"), "none.csv"),
        (("kpi", "--cluster", "none.yaml"), "none.yaml"),
        (("foresight", "--jitters", "ou,fast"), "fast"),
        (("evaluate", "--out", "full"), "full"),
    ],
)
def test_what_would_be_refused_is_refused_at_once(folder, capsys, argv, named):
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    assert main([*argv, "--dry-run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and named in line


def test_the_most_alike_of_the_finished_runs_says_how_long(folder, capsys):
    runs = folder / "outputs"
    ran(runs / "far", 50, seeds=4, model="llama-70b")
    ran(runs / "near", 65, seeds=4)
    ran(runs / "stopped", 1, seeds=8, status="interrupted")
    ran(runs / "elsewhere", 1, seeds=8, machine={"cores": provenance.machine()["cores"] + 1})
    nearest = told(capsys, "evaluate", "--seeds", "8")["nearest"]
    assert nearest == {
        "folder": "outputs/near",
        "seconds": 65.0,
        "differs": {"seeds": [4, 8]},
    }
    assert main(["evaluate", "--seeds", "8", "--dry-run"]) == 0
    assert "outputs/near took 1:05 min here, seeds 4 there, 8 here" in capsys.readouterr().out
    assert main(["evaluate", "--seeds", "4", "--dry-run"]) == 0
    assert "took 1:05 min here, with the same settings" in capsys.readouterr().out
    # Beside the folder that is named, and not among others.
    assert told(capsys, "evaluate", "--out", "apart/new")["nearest"] is None


@pytest.mark.parametrize("kind", [EvaluateConfig, TrainConfig, KpiConfig, ForesightConfig])
def test_a_quick_run_is_small_where_nothing_else_is_said(kind):
    whole, quick = parse(kind, [], "test"), parse(kind, ["--quick"], "test")
    counted = "seeds" if kind is not TrainConfig else "scenarios"
    assert getattr(quick, counted) < getattr(whole, counted)
    said = parse(kind, ["--quick", f"--{counted}", "7"], "test")
    assert getattr(said, counted) == 7
    # A run that goes on is the one that was begun.
    assert from_mapping(kind, dataclasses.asdict(quick), "test") == quick


def test_horizons_of_named_worlds_stay():
    config = parse(TrainConfig, ["--quick", "--worlds", "drift,load"], "test")
    assert config.epochs < TrainConfig().epochs and config.scenario == TrainConfig().scenario


def test_a_suites_own_sizes_give_way_to_those_of_a_quick_run(folder, capsys):
    scenes = scene_configs(load_suite("mixture"), EvaluateConfig(), [])
    assert all(scene.seeds > 4 for scene in scenes.values())
    assert told(capsys, "evaluate", "--suite", "mixture", "--quick")["work"]["scenarios"] == 4
