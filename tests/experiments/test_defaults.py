"""One set of defaults for all commands."""

import pytest

from experiments.common.options import from_mapping, parse
from experiments.evaluate.config import EvaluateConfig
from experiments.jobs.config import JobsConfig
from experiments.kpi.config import KpiConfig
from experiments.plan.config import PlanConfig
from experiments.respond.config import RespondConfig
from experiments.train.config import TrainConfig

CONFIGS = [EvaluateConfig(), KpiConfig(), RespondConfig(), TrainConfig(), JobsConfig(out="x")]
CONFIGS += [PlanConfig()]
SAME = {"model": "llama-7b", "global_batch": 1024, "seq": 4096, "table_size": 48}
SAME |= {"layout_limit": 4000, "cluster": None}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_every_command_begins_from_the_same_world(config):
    for name, value in SAME.items():
        if hasattr(config, name) and (name, type(config)) != ("cluster", KpiConfig):
            assert getattr(config, name) == value
    if hasattr(config, "scenario"):
        assert config.scenario.base_spread == 0.25


def test_a_trace_says_what_the_links_are_unless_the_spread_is_asked_for():
    assert parse(EvaluateConfig, ["--trace", "t.csv"], "evaluate").world_settings.base_spread == 0
    assert parse(EvaluateConfig, [], "evaluate").world_settings.base_spread == 0.25
    asked = ["--trace", "t.csv", "--scenario.base-spread", "0.25"]
    assert parse(EvaluateConfig, asked, "evaluate").world_settings.base_spread == 0.25
    # As a scene of a suite says it, and as a run folder kept it.
    scene = {"trace": "t.csv"}
    assert from_mapping(EvaluateConfig, scene, "scene").world_settings.base_spread == 0
    kept = {"trace": "t.csv", "scenario": {"base_spread": 0.25}}
    assert from_mapping(EvaluateConfig, kept, "run").world_settings.base_spread == 0.25
