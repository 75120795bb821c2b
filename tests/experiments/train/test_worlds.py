"""Worlds of a suite's file: those that `evaluate --suite` plays, many in one training."""

import numpy as np
import pandas as pd
import pytest
from helpers.toy_world import two_sites_yaml

from experiments.common import parse
from experiments.evaluate.config import EvaluateConfig
from experiments.evaluate.suites import load_suite, scene_configs
from experiments.train import __main__ as command
from experiments.train.config import TrainConfig
from experiments.train.worlds import asked_worlds, check_worlds, training_worlds
from jaxsim.files import InputError

TRACE = "t_s,src,dst,factor\n" + "".join(f"{60 * t},north,south,{1 + t}\n" for t in range(8))
SCENES = """
defaults: {global_batch: 64, seq: 512, model: gpt2-medium, schedulers: best_static}
scenes:
  moving: {cluster: two-sites.yaml, trace: links.csv, layout_limit: 50, table_size: 12}
  taken: {cluster: two-sites.yaml, jitter: regime, allow: any, scenario: {load_share: 0.5}}
  repeated: {cluster: two-sites.yaml, jitter: none, domains: 3, steps: 40}
suites:
  quiet: [repeated]
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "two-sites.yaml").write_text(two_sites_yaml(40.0, 30.0))
    (tmp_path / "links.csv").write_text(TRACE)
    (tmp_path / "mine.yaml").write_text(SCENES)
    return str(tmp_path / "mine.yaml")


def config(worlds, *more):
    return parse(TrainConfig, ["--worlds", worlds, *more], "train")


def test_scenes_of_a_file_are_worlds_beside_named_ones(file, tmp_path):
    drift, moving, taken, repeated = asked_worlds(config(f"drift,{file}"))
    assert [drift.name, moving.name, taken.name] == ["drift", "moving", "taken"]
    assert {one.cluster for one in (moving, taken, repeated)} == {str(tmp_path / "two-sites.yaml")}
    assert (moving.model, moving.global_batch, moving.seq) == ("gpt2-medium", 64, 512)
    assert moving.trace == str(tmp_path / "links.csv") and moving.layout_limit == 50
    # Links move as the trace says: nothing is drawn on top.
    assert moving.scenario.jitter == "none" and moving.scenario.base_spread == 0.0
    assert taken.scenario.load_share == 0.5 and taken.scenario.jitter == "regime"
    assert (drift.table_size, moving.table_size) == (48, 12)
    assert repeated.domains == 3 and repeated.scenario.horizon == 40
    assert [one.allow for one in (moving, taken)] == ["synchronous", "any"]
    assert asked_worlds(config(file, "--allow", "any"))[0].allow == "any"
    assert [one.name for one in asked_worlds(config(f"{file}:quiet"))] == ["repeated"]


def test_they_are_drawn_as_an_evaluation_of_the_file_draws_them(file):
    scenes = scene_configs(load_suite(file), EvaluateConfig(), [])
    assert {one.name: one.scenario for one in asked_worlds(config(file))} == {
        name: scene.world_settings for name, scene in scenes.items()
    }


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        ("{jobs: jobs-8.csv}", "new: jobs: expected one job to train for"),
        ('{weights: "1,0,1,0"}', "new: weights, budget: not allowed .* expected train --weights"),
        ("{budget: 20}", "new: weights, budget: not allowed"),
        ("{jitter: stormy}", "jitter"),
        ("{modell: llama-7b}", "modell"),
    ],
)
def test_scenes_that_nobody_can_train_for_are_refused(file, tmp_path, scene, said):
    other = tmp_path / "other.yaml"
    other.write_text(f"scenes:\n  new: {scene}\n")
    with pytest.raises(InputError, match=said):
        check_worlds(config(str(other)))


def test_worlds_have_names_of_their_own_and_ppo_has_one(file, tmp_path):
    (tmp_path / "other.yaml").write_text("scenes:\n  drift: {jitter: ou}\n")
    with pytest.raises(InputError, match="'drift' is there twice"):
        asked_worlds(config(f"drift,{tmp_path / 'other.yaml'}"))
    with pytest.raises(InputError, match="ppo learns from one world"):
        asked_worlds(config(file, "--train.algorithm", "ppo"))
    with pytest.raises(InputError, match="no suite"):
        asked_worlds(config(f"{file}:loud"))
    assert command.main(["--worlds", f"{file}:loud", "--dry_run", "true"]) == 2


def test_a_trace_of_a_scene_trains_on_its_first_part(file, monkeypatch):
    built = []

    def given(*args, **keys):
        built.append((args, keys))
        return None, None, None

    monkeypatch.setattr("experiments.train.worlds.load_world", given)
    moving, taken, repeated = training_worlds(config(file))
    link = (slice(None), 0, 1)
    assert moving.traces["network_trace"][link].tolist() == [1, 2, 3, 4, 5, 6]
    assert moving.held_out["network_trace"][link].tolist() == [7, 8]
    assert taken.traces["network_trace"] is repeated.traces["network_trace"] is None
    assert [keys["loaded"] for _, keys in built] == [False, True, False]
    assert [keys["allow"] for _, keys in built] == ["synchronous", "any", "synchronous"]


@pytest.mark.nightly
def test_one_policy_learns_from_the_scenes_of_a_file(file, tmp_path):
    run = tmp_path / "run"
    sizes = ["--epochs", "2", "--scenarios", "4", "--eval_scenarios", "2", "--seeds", "[0]"]
    argv = ["--worlds", f"{file},steady", "--table_size", "6", "--eval_every", "1", *sizes]
    assert command.main([*argv, "--out", str(run)]) == 0
    rows = pd.read_csv(run / "worlds.csv")
    assert set(rows["world"]) == {"moving", "taken", "repeated", "steady"}
    assert np.isfinite(rows["regret_pct"]).all()
