"""Suites: which scenes, with which settings, and how a suite that was interrupted goes on."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml

from analysis import figures
from analysis.records import RunWriter, load
from analysis.report import report
from experiments.common.options import from_mapping, given_keys
from experiments.common.tables import suite_table
from experiments.evaluate import __main__ as evaluate
from experiments.evaluate.config import EvaluateConfig, resumed_config
from experiments.evaluate.inputs import check_inputs
from experiments.evaluate.jobs import arriving
from experiments.evaluate.suites import SHIPPED, load_suite, merged, run_suite, scene_configs
from jaxsim.cluster.cluster import load_cluster, repeat_regions
from jaxsim.files.errors import InputError
from jaxsim.load.jobs_file import read_jobs
from jaxsim.load.local_jobs import read_load_trace

NAMES = list(yaml.safe_load(SHIPPED.read_text())["suites"])


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """No test writes into the clone."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_every_suite_that_ships_is_understood_and_its_files_are_there(name):
    configs = scene_configs(load_suite(name), EvaluateConfig(suite=name), [])
    assert configs
    for config in configs.values():
        assert config.suite is None and config.global_batch == (
            512 if config.model == "llama-70b" else 1024
        )
        check_inputs(config)
        if config.jobs:  # every job arrives within the episode
            jobs, settings = read_jobs(config.jobs), config.world_settings
            assert len(jobs) == arriving(jobs, settings, config.jobs)
        spec = load_cluster(config.cluster)
        if config.load:
            trace = read_load_trace(config.load, spec.domains, spec.gpus, 60.0)
            # One region is gone for a while in every episode, wherever it starts.
            assert trace.shape[0] == config.world_settings.horizon and (trace[:, 1] == 8).any()
            assert trace[:, [0, 2, 3]].sum() == 0


def test_settings_come_from_defaults_then_the_command_line_then_the_scene(tmp_path):
    file = tmp_path / "mine.yaml"
    scene = {"jitter": "none", "scenario": {"load_share": 0.5}}
    defaults = {"seeds": 5, "steps": 7, "scenario": {"load_swing": 0.2, "load_share": 0.1}}
    file.write_text(yaml.safe_dump({"defaults": defaults, "scenes": {"a": scene, "b": {}}}))
    argv = ["--seeds", "9", "--jitter", "uniform", "--scenario.latency", "0.0"]
    config = from_mapping(
        EvaluateConfig, {"seeds": 9, "jitter": "uniform", "scenario": {"latency": 0.0}}, "test"
    )
    configs = scene_configs(load_suite(str(file)), config, given_keys(EvaluateConfig, argv))
    a, b = configs["a"], configs["b"]
    assert (a.seeds, a.steps, a.jitter, b.jitter) == (9, 7, "none", "uniform")
    assert (a.scenario.load_share, b.scenario.load_share, a.scenario.load_swing) == (0.5, 0.1, 0.2)
    assert a.scenario.latency == b.scenario.latency == 0.0


def test_files_are_looked_for_beside_the_suite(tmp_path):
    folder = tmp_path / "there"
    folder.mkdir()
    for name in ("sites.yaml", "links.yaml", "jobs.csv"):
        (folder / name).write_text("")
    scenes = {"a": {"cluster": "sites.yaml", "jitter": "links.yaml:heavy", "jobs": "jobs.csv"}}
    scenes["b"] = {"cluster": "gone.yaml", "jitter": "ou"}
    (folder / "mine.yaml").write_text(
        yaml.safe_dump({"scenes": scenes, "suites": {"one": ["a"], "two": ["b", "a"]}})
    )
    assert list(load_suite(str(folder / "mine.yaml")).scenes) == ["a", "b"]
    two = load_suite(f"{folder / 'mine.yaml'}:two")
    assert list(two.scenes) == ["b", "a"]
    assert two.scenes["a"]["cluster"] == str(folder / "sites.yaml")
    assert two.scenes["a"]["jitter"] == str(folder / "links.yaml:heavy")
    assert two.scenes["a"]["jobs"] == str(folder / "jobs.csv")
    # load_cluster says that it is not there; ou is no file.
    assert two.scenes["b"] == {"cluster": "gone.yaml", "jitter": "ou"}


def test_merging_goes_into_nested_mappings():
    assert merged({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}, "b": {"z": 5}}) == {
        "a": {"x": 1, "y": 4},
        "b": {"z": 5},
    }


@pytest.mark.parametrize(
    ("suite", "text", "named"),
    [
        ("nonesuch", None, ["nonesuch", *NAMES]),
        ("gone.yaml", None, ["gone.yaml"]),
        ("mine.yaml:three", "scenes: {a: {}}\nsuites: {one: [a]}\n", ["three", "known: one"]),
        ("mine.yaml", "scenes: {a: 3}\n", ["mine.yaml", "'a' is no scene"]),
        ("mine.yaml:one", "scenes: {a: {}}\nsuites: {one: [b]}\n", ["'b' is no scene", "a"]),
        ("mine.yaml", "scenery: {a: {}}\n", ["mine.yaml", "defaults, scenes, suites"]),
        ("mine.yaml", "scenes: {a: {}}\nextra: 3\n", ["'extra'", "allowed"]),
        ("mine.yaml", "scenes: {a: {jiter: none}}\n", ["mine: a", "jiter"]),
        ("mine.yaml", "scenes: {a: {seeds: 0}}\n", ["mine: a", "seeds", ">= 1"]),
        ("mine.yaml", "scenes: {a: {}}\nsuites: [a]\n", ["mine.yaml: suites", "mapping", "['a']"]),
        ("mine.yaml:x", "scenes: {a: {}}\nsuites: {x: }\n", ["mine.yaml: x", "at least one"]),
        ("mine.yaml", "scenes: {}\n", ["mine.yaml: scenes", "at least one"]),
        ("mine.yaml", "defaults: 3\nscenes: {a: {}}\n", ["mine.yaml: defaults", "mapping", "3"]),
        ("mine.yaml", "scenes: {a: {cluster: 5}}\n", ["mine: a", "cluster", "5"]),
        ("mine.yaml", "scenes: {8: {}}\n", ["mine.yaml: 8", "letters"]),
        ("mine.yaml", "scenes: {../x: {}}\n", ["mine.yaml: '../x'", "letters"]),
        ("mine.yaml", "scenes: {a: {}, b: {schedulers: me}}\n", ["mine: b", "'me'", "hysteresis"]),
        ("mine.yaml", "scenes: {a: {}, b: {trace: no.csv}}\n", ["mine: b", "no.csv"]),
        ("mine.yaml", "scenes: {a: {}, b: {jobs: no.csv}}\n", ["mine: b", "no.csv"]),
    ],
)
def test_a_bad_suite_is_one_line(suite, text, named, tmp_path, capsys):
    if text:
        Path("mine.yaml").write_text(text)
    assert evaluate.main(["--suite", suite, "--out", "run"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1
    assert all(part in err for part in named), err
    assert not Path("run").exists()


def row(regret):
    return {
        "headroom_pct": 100 * regret / (100 - regret),
        "regret_pct": regret,
        "regret_ci95_pct": [regret - 0.5, regret + 0.5],
        "bound_pct": regret + 2,
        "tokens_per_s": 1e4,
        "usd_per_mtoken": 0.5,
    }


def scenarios(regret):
    """Four scenarios with that mean regret, the last without headroom."""
    spread = [-0.5, 0.5, 0.0, 90.0]
    one = {"policy_seed": float("nan"), "scenario": range(4), "headroom_pct": [5.0, 5.0, 5.0, -1.0]}
    return pd.concat(
        [
            pd.DataFrame({"scheduler": "clairvoyant", "regret_pct": 0.0, **one}),
            pd.DataFrame(
                {"scheduler": "hysteresis", "regret_pct": [regret + x for x in spread], **one}
            ),
        ]
    )


class Play:
    """An evaluation whose result is known, and which stops where it is told to."""

    def __init__(self, stop_at=None):
        self.stop_at, self.played = stop_at, []

    def __call__(self, config):
        folder = Path(config.resume or config.out)
        resume = config.resume is not None
        self.played.append((folder.name, resume))
        with RunWriter.create("evaluate", {}, 0, folder, resume) as writer:
            if folder.name == self.stop_at:
                raise KeyboardInterrupt
            n = 1.0 + len(folder.name)
            summary = {
                "headroom": {"n_kept": config.seeds, "threshold_pct": 0.0},
                "schedulers": {"clairvoyant": row(0.0), "hysteresis": row(n)},
                "paired": {"hysteresis": {}},
            }
            writer.write_table("scenarios", scenarios(n))
            writer.finish(summary)
        return summary, folder


def config_of(**changes):
    Path("mine.yaml").write_text("defaults: {seeds: 4}\nscenes: {a: {}, bb: {}, ccc: {}}\n")
    return EvaluateConfig(suite="mine.yaml", **changes)


def test_an_interrupted_suite_goes_on_where_it_stopped(tmp_path, capsys):
    first = Play(stop_at="bb")
    with pytest.raises(KeyboardInterrupt):
        run_suite(config_of(out="run"), ["suite", "out"], first, check_inputs)
    out, err = capsys.readouterr()
    assert "--resume run" in err and not out
    assert first.played == [("a", False), ("bb", False)]
    assert load("run").run["status"] == "interrupted" and load("run/a").run["status"] == "finished"
    second = Play()
    config = resumed_config(EvaluateConfig(resume="run"), ["resume"])
    summary, folder = run_suite(config, ["resume"], second, check_inputs)
    assert second.played == [("bb", True), ("ccc", False)] and folder == Path("run")
    assert list(summary["scenes"]) == ["a", "bb", "ccc"]
    assert load("run").run["status"] == "finished"
    whole, _ = run_suite(config_of(out="whole"), ["suite", "out"], Play(), check_inputs)
    assert whole["scenes"] == summary["scenes"]
    frame = load("run").table("scenes")
    assert (frame["n_scenarios"] == 4).all() and len(frame) == 6


def test_the_table_and_the_report_of_a_suite_hold_every_scene(monkeypatch):
    monkeypatch.setattr(figures, "save", lambda figure, path: path.touch())
    summary, folder = run_suite(config_of(out="run"), ["suite", "out"], Play(), check_inputs)
    text = suite_table(summary)
    assert text.index("headroom") < text.index("regret")
    for scene in ("a", "bb", "ccc"):
        assert f"│ {scene} " in text
    # By hand: 2, 3 and 4 over the scenarios with headroom; one draw in 27 holds the worst alone.
    assert summary["means"]["hysteresis"]["regret_pct"] == pytest.approx(3.0)
    assert "in the mean over 3 scenes" in text and "│ clairvoyant │    0.0 │" in text
    assert "-3.50 to -2.50 │" in text
    page = report.write_report([folder]).read_text()
    assert "| clairvoyant | 0.0 | [0.0, 0.0] | -3.00 | [-3.50, -2.50] |" in page
    assert "| ccc | hysteresis | 4.2 | 4.0 | [3.5, 4.5] | 6.0 | – |" in page
    assert "figures/suite.png" in page
    json.dumps(summary, allow_nan=False)


def test_regions_repeat_until_there_are_enough():
    spec = load_cluster()
    many = repeat_regions(spec, 9)
    assert many.n_domains == 9 == len(set(many.domains))
    assert many.gpus == (spec.gpus * 3)[:9]
    assert many.bandwidth_gbps[1, 6] == spec.bandwidth_gbps[1, 2]
    assert many.rtt_ms[8, 4] == spec.rtt_ms[spec.rtt_ms > 0].min()  # twins: the nearest there is
    assert (many.bandwidth_gbps[~(many.rtt_ms == 0)] > 0).all()
    assert repeat_regions(spec, 2).bandwidth_gbps[0, 1] == spec.bandwidth_gbps[0, 1]
    with pytest.raises(InputError, match="one region"):
        repeat_regions(repeat_regions(spec, 1), 3)
