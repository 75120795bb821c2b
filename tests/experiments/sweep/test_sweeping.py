"""Sweeps from end to end with a player that takes no time: parts, resuming, Ray, records."""

import dataclasses
import json
import os
import signal
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from analysis.records import load
from analysis.report.sections import sections_of
from experiments.sweep import __main__ as command
from experiments.sweep import contents, executors, sweeping
from experiments.sweep.batches import fingerprint, make_batches
from experiments.sweep.config import SweepConfig
from experiments.sweep.contents import digests
from experiments.sweep.design import Point, design_points
from experiments.sweep.parts import Parts
from jaxsim.files import InputError

pytest.importorskip("pyarrow", reason="pyarrow, of the extra scale, is not installed")
import pyarrow.parquet

DESIGN = """\
jitter: [uniform, ou]
strength: [0.1, 0.3]
scenarios: 6
batch: 4
steps: 10
schedulers: best_static,hysteresis
"""
PRESET = Path(str(files("jaxsim.presets"))) / "four-aws-regions.yaml"
METRICS = ("step_s", "tokens_per_s", "utilisation", "wan_gb_per_step", "replans")


class FastPlayer:
    """Rows that depend on the point, the scenario and the scheduler alone."""

    def __init__(self, config, points):
        self.config, self.points = config, points

    def columns(self, batch):
        names = self.config.names
        points = [self.points[number] for number in batch.points]
        strength = np.array([point.strength or 0.0 for point in points], np.float32)
        seeds = np.asarray(batch.seeds, np.int32)
        achieved = [100 + seeds + 50 * strength * i for i in range(len(names))]
        return {
            "point": np.tile(np.asarray(batch.points, np.int32), len(names)),
            "scenario": np.tile(seeds, len(names)),
            "scheduler": [name for name in names for _ in points],
            **{
                field.name: [getattr(p, field.name) for p in points] * len(names)
                for field in dataclasses.fields(Point)
            },
            "achieved": np.concatenate(achieved).astype(np.float32),
            **dict.fromkeys(METRICS, np.ones(len(points) * len(names), np.float32)),
        }


class StoppedPlayer(FastPlayer):
    """Ctrl-C in the third batch."""

    def columns(self, batch):
        if batch.number == 2:
            raise KeyboardInterrupt
        return super().columns(batch)


@pytest.fixture
def design(tmp_path, monkeypatch):
    monkeypatch.setattr(sweeping, "Player", FastPlayer)
    file = tmp_path / "design.yaml"
    file.write_text(DESIGN)
    return file


def run(design, out, *argv):
    assert command.main([str(design), "--workers", "1", "--out", str(out), *argv]) == 0
    return out


def test_a_sweep_writes_rows_tables_figures_and_a_report(design, tmp_path, capsys):
    out = run(design, tmp_path / "run", "--json", str(tmp_path / "answer.json"))
    rows = pyarrow.parquet.read_table(out / "scenarios.parquet").to_pandas()
    assert len(rows) == 4 * 6 * 2 and set(rows["scheduler"]) == {"best_static", "hysteresis"}
    assert not rows.duplicated(["point", "scenario", "scheduler"]).any()
    summary = json.loads((tmp_path / "answer.json").read_text())
    assert (summary["scenarios"], summary["batches"], summary["rows"]) == (24, 6, 48)
    _, hysteresis = summary["schedulers"]
    by_hand = np.mean([50 * s / (100 + n) for s in (0.1, 0.3) for n in range(6)]) * 100
    assert hysteresis["gain_pct"] == pytest.approx(by_hand, rel=1e-4)
    effect = next(e for e in summary["effects"] if e["factor"] == "strength")
    assert effect["effect_pct"] == pytest.approx(
        100 * np.mean([10 / (100 + n) for n in range(6)]), rel=1e-4
    )
    assert {p.stem for p in (out / "figures").glob("*.png")} == {"gain-map", "parallel", "effects"}
    (section,) = sections_of(load(out), [])
    assert "best_static" in section.text and len(section.pictures) == 3
    assert "gain over best_static" in capsys.readouterr().out


def test_an_interrupted_sweep_goes_on_to_the_identical_file(design, tmp_path, monkeypatch, capsys):
    whole = run(design, tmp_path / "whole")
    monkeypatch.setattr(sweeping, "Player", StoppedPlayer)
    out = tmp_path / "stopped"
    assert command.main([str(design), "--workers", "1", "--out", str(out)]) == 130
    assert f"--resume {out}" in capsys.readouterr().err
    assert load(out).run["status"] == "interrupted"
    assert sorted(p.stem for p in (out / "parts").iterdir()) == ["000000", "000001"]
    (out / "parts" / ".000002.parquet.7.tmp").write_bytes(b"PAR1 torn")
    monkeypatch.setattr(sweeping, "Player", FastPlayer)
    assert command.main(["--resume", str(out), "--json", "-", "--workers", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["batches_resumed"] == 2
    assert len(list((out / "parts").iterdir())) == 6
    name = "scenarios.parquet"
    assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_parts_that_are_torn_or_of_another_design_are_refused_by_name(design, tmp_path):
    out = run(design, tmp_path / "run")
    config = SweepConfig(steps=10)
    with pytest.raises(InputError, match=r"000000.parquet: a part of another sweep"):
        Parts(out, fingerprint(config), {}).finished(6)
    (out / "parts" / "000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"000000.parquet: not a readable part"):
        Parts(out, fingerprint(config), {}).finished(6)


def test_a_sweep_does_not_go_on_where_a_file_that_it_names_has_changed(
    design, tmp_path, monkeypatch, capsys
):
    here = tmp_path / "here.yaml"
    here.write_text(PRESET.read_text())
    monkeypatch.setattr(sweeping, "Player", StoppedPlayer)
    out = tmp_path / "stopped"
    line = [str(design), "--workers", "1", "--cluster", f"[{here}]", "--out", str(out)]
    assert command.main(line) == 130
    monkeypatch.setattr(sweeping, "Player", FastPlayer)
    again = ["--resume", str(out), "--workers", "1"]
    here.write_text(PRESET.read_text() + "# another word\n")
    capsys.readouterr()
    assert command.main(again) == 2
    error = capsys.readouterr().err
    assert f"cluster {here} has changed since 000000.parquet was played" in error
    assert error.count("\n") == 1
    here.write_text(PRESET.read_text())
    monkeypatch.setattr(contents, "package_versions", lambda names: {"hippo-sched": "0.0.1"})
    assert command.main(again) == 2
    assert "hippo-sched has changed from " in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.setattr(sweeping, "Player", FastPlayer)
    assert command.main(again) == 0


def test_every_file_that_a_design_names_counts_by_what_it_holds(tmp_path):
    (tmp_path / "model.yaml").write_text("one")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.msgpack").write_bytes(b"two")
    run, model = str(tmp_path / "run"), str(tmp_path / "model.yaml")
    config = SweepConfig(
        model=["llama-7b", model], schedulers=f"best_static,hi_ppo+search,{run}+search"
    )
    before = digests(config)
    assert list(before) == ["version", f"model {model}", f"checkpoint {run}+search"]
    (tmp_path / "run" / "checkpoint.msgpack").write_bytes(b"three")
    assert contents.changed(before, digests(config)) == [f"checkpoint {run}+search has changed"]


def test_a_rehearsal_counts_and_keeps_nothing(design, tmp_path, capsys):
    out = tmp_path / "run"
    run(design, out, "--dry-run")
    assert "4 points, 24 scenarios, 2 schedulers, 6 batches" in capsys.readouterr().out
    assert not out.exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--schedulers", "diloco"], "beside diloco"),
        (["--schedulers", "hysteresis,diloco"], "diloco plays on a table of its own"),
        (["--reference", "random"], "reference: expected one of best_static, hysteresis"),
        (["--cluster", "[nowhere.yaml]"], "nowhere.yaml"),
        (["--model", "[llama-8b]"], "llama-8b"),
    ],
    ids=lambda x: str(x),
)
def test_what_is_not_there_is_refused_in_one_line(argv, said, design, tmp_path, capsys):
    out = tmp_path / "run"
    assert command.main([str(design), "--out", str(out), *argv]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and len(error) <= 500
    assert not out.exists()


def test_a_failing_batch_ends_the_sweep():
    def fails(batch):
        raise InputError(f"batch {batch.number}")

    batches = make_batches(SweepConfig(batch=8), design_points(SweepConfig()))
    with pytest.raises(InputError, match="batch"):
        list(executors.play_local(fails, batches, 2))


class DyingPlayer(FastPlayer):
    """Its process is killed in the second batch, the first time."""

    mark: str

    def columns(self, batch):
        mark = Path(self.mark)
        if batch.number == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().columns(batch)


@pytest.mark.nightly
def test_rows_of_ray_are_the_same_though_a_worker_is_killed(tmp_path):
    pytest.importorskip("ray", reason="ray, of the extra scale, is not installed")
    config = SweepConfig(strength=[0.1, 0.3], scenarios=8, batch=4, schedulers="best_static,ray")
    points = design_points(config)
    batches = make_batches(config, points)

    def make(config=config, points=points, mark=str(tmp_path / "killed")):
        player = DyingPlayer(config, points)
        player.mark = mark
        return player

    def joined(folder, played):
        folder.mkdir()
        parts = Parts(folder, fingerprint(config), digests(config))
        for batch, columns in played:
            parts.write(batch.number, columns)
        parts.join(len(batches))
        return parts.whole.read_bytes()

    here = joined(
        tmp_path / "here", executors.play_local(FastPlayer(config, points).columns, batches, 2)
    )
    with executors.ray_cluster(None, 2) as ray:
        there = joined(tmp_path / "there", executors.play_ray(ray, make, batches, 2))
    assert (tmp_path / "killed").exists() and there == here


class LostRay:
    """A Ray cluster whose last node is gone: nothing ends any more, or what has ended is not there."""

    class exceptions:  # as Ray calls its module
        RayActorError = ObjectLostError = type("Gone", (Exception,), {})
        GetTimeoutError = type("GetTimeoutError", (Exception,), {})

    def __init__(self, ends):
        self.ends = ends

    def remote(self, **_):
        task = SimpleNamespace(remote=lambda batch: batch.number)
        worker = SimpleNamespace(remote=lambda: SimpleNamespace(columns=task))
        return lambda _: worker

    def available_resources(self):
        return {"CPU": 2.0}

    def wait(self, running, timeout):
        return (running[:1], running[1:]) if self.ends else ([], running)

    def get(self, _, timeout):
        raise self.exceptions.GetTimeoutError

    def nodes(self):
        return [{"Alive": False}]


@pytest.mark.parametrize("ends", [False, True])
def test_a_ray_cluster_without_nodes_ends_the_sweep(ends):
    """Ray itself would wait for ever."""
    batches = [SimpleNamespace(number=n) for n in range(3)]
    with pytest.raises(InputError, match=r"no node of the Ray cluster is left.*--resume"):
        list(executors.play_ray(LostRay(ends), lambda: None, batches, 2))


@pytest.mark.nightly
def test_the_command_plays_on_ray_what_threads_play(tmp_path):
    """Nothing is given: workers build the world, compile and play for themselves."""
    pytest.importorskip("ray", reason="ray, of the extra scale, is not installed")
    words = ["--model", "[gpt2-medium]", "--global_batch", "64", "--seq", "1024", "--steps", "4"]
    words += ["--table_size", "4", "--layout_limit", "30", "--scenarios", "4", "--batch", "2"]
    words += ["--schedulers", "best_static,hysteresis"]
    tables = []
    for executor in ("local", "ray"):
        folder = tmp_path / executor
        argv = [*words, "--executor", executor, "--workers", "2", "--out", str(folder)]
        assert command.main(argv) == 0
        tables.append(pyarrow.parquet.read_table(folder / "scenarios.parquet").to_pandas())
    assert len(tables[0]) == 4 * 2
    pandas.testing.assert_frame_equal(*tables, rtol=1e-5)
