"""The `hippo` command, and the configurations that ship."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from analysis.report import __main__ as report
from experiments import cli
from experiments.common.options import from_mapping, parse
from experiments.evaluate import __main__ as evaluate
from experiments.evaluate.config import EvaluateConfig
from experiments.sweep.config import SweepConfig
from experiments.train import __main__ as train
from experiments.train.config import TrainConfig

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "configs"
CONFIGS = sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("algo/*.yaml")])


def _over(held, given):
    """`held` with what is given in its place, nested."""
    nested = {k: _over(held[k], v) if isinstance(v, dict) else v for k, v in given.items()}
    return {**held, **nested}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.name)
def test_every_configuration_that_ships_is_understood(path):
    kind = {"evaluate": EvaluateConfig, "sweep": SweepConfig}.get(path.stem, TrainConfig)
    config = from_mapping(kind, yaml.safe_load(path.read_text()), str(path))
    for key, value in yaml.safe_load(path.read_text()).items():
        held = getattr(config, key)
        if isinstance(value, dict):
            held = dataclasses.asdict(held)
            assert _over(held, value) == held
        if not isinstance(value, dict | list):
            assert held == value


def test_the_command_line_overrides_the_file(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("epochs: 7\nscenarios: 5\ntrain: {hidden: 16, upper: {clip: 0.1}}\n")
    argv = ["--config", str(file), "--epochs", "9", "--train.upper.minibatches=2"]
    config = parse(TrainConfig, argv, "train")
    assert (config.epochs, config.scenarios, config.train.hidden) == (9, 5, 16)
    assert (config.train.upper.clip, config.train.upper.minibatches) == (0.1, 2)
    assert config.train.lower == TrainConfig().train.lower


def test_hippo_hands_over_to_the_entry_points(capsys, monkeypatch):
    heard = []
    for module in (train, evaluate, report):
        monkeypatch.setattr(module, "main", lambda argv, m=module: heard.append((m, argv)) or 5)
    for name, module in (("train", train), ("evaluate", evaluate), ("report", report)):
        assert cli.main([name, "--a", "b"]) == 5
        assert heard[-1] == (module, ["--a", "b"])


def test_hippo_without_or_with_an_unknown_subcommand(capsys):
    assert cli.main(["fly"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "'fly'" in err
    assert all(name in err for name in cli.COMMANDS)
    assert cli.main([]) == 2
    capsys.readouterr()
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


def test_every_subcommand_of_hippo_exists_and_explains_itself(capfd):
    for name in cli.COMMANDS:
        try:
            status = cli.main([name, "--help"])
        except SystemExit as end:  # by argparse; a room of real training is a process of its own
            status = end.code
        assert status == 0
        assert len(capfd.readouterr().out.splitlines()) > 3, name
