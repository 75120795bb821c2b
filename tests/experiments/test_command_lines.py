"""Command lines: help, refusals, files of settings; all of it before anything heavy is loaded."""

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import cli
from experiments.bench.config import BenchConfig
from experiments.calibrate.config import CalibrateConfig
from experiments.common import known
from experiments.common.options import _leaves, _parser, from_mapping, given_keys, parse
from experiments.doctor.config import DoctorConfig
from experiments.evaluate.config import EvaluateConfig
from experiments.fidelity.config import FidelityConfig
from experiments.jobs.config import JobsConfig
from experiments.kpi.config import KpiConfig
from experiments.plan.config import PlanConfig
from experiments.respond.config import RespondConfig
from experiments.runs.config import RunsConfig
from experiments.sweep.config import SweepConfig
from experiments.train.config import TrainConfig
from experiments.validate.config import ValidateConfig
from experiments.watch.config import WatchConfig
from jaxsim.files.errors import InputError

ROOT = Path(__file__).parents[2]
CONFIGS = {
    "bench": BenchConfig,
    "calibrate": CalibrateConfig,
    "doctor": DoctorConfig,
    "evaluate": EvaluateConfig,
    "fidelity": FidelityConfig,
    "jobs": JobsConfig,
    "kpi": KpiConfig,
    "plan": PlanConfig,
    "respond": RespondConfig,
    "runs": RunsConfig,
    "train": TrainConfig,
    "validate": ValidateConfig,
    "watch": WatchConfig,
}
REQUIRED = {"calibrate": ["--data", "d", "--out", "o"], "jobs": ["--out", "o"]}

LIGHT = """
import contextlib, io, sys
from experiments import cli

heavy = {"jax", "flax", "numpy", "pandas", "scipy", "matplotlib", "torch", "rich"}
for name in cli.COMMANDS:
    for argv in ([name, "--help"], [name, "--nonsense", "1"]):
        if argv == ["ddp", "--nonsense", "1"]:
            continue  # an option for the trainer, for all that this command knows
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            try:
                status = cli.main(argv)
            except SystemExit as end:
                status = end.code
        assert status == (0 if argv[1] == "--help" else 2), argv
        loaded = heavy & set(sys.modules)
        assert not loaded, (argv, loaded)
"""


def test_help_and_refusals_load_nothing_heavy():
    done = subprocess.run(
        [sys.executable, "-c", LIGHT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_version_and_the_package_as_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "experiments", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("hippo ") and not done.stderr


@pytest.mark.parametrize("name", CONFIGS)
def test_every_option_is_explained(name):
    for action in _parser(CONFIGS[name], name)._actions:
        assert (action.help or "").strip(), f"{name}: {action.option_strings}"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_keeps_line_breaks_and_ends_with_an_example(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "Attributes:" not in out and "null" not in out
    assert out.startswith("usage: ") and f"example:\n  hippo {name} " in out
    if name in ("network", "cluster", "wan", "probe"):  # several commands, each with its own
        for command in importlib.import_module(f"experiments.{name}.__main__").EXAMPLES:
            with pytest.raises(SystemExit):
                cli.main([name, command, "--help"])
            assert f"example:\n  hippo {name} {command} --" in capsys.readouterr().out


def test_help_lists_the_names_that_options_take(capsys):
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    lists = (
        known.CLUSTERS,
        known.EVERYBODY,
        known.MODELS,
        known.SUITES,
        known.JITTERS,
        known.SHARING,
    )
    assert {name for names in lists for name in names} <= set(words)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["evalute"], "did you mean evaluate?"),
        (["train", "--epoch", "3"], "did you mean --epochs?"),
        (["train", "--train.uper.clip", "3"], "did you mean --train.upper.clip?"),
        (["evaluate", "--schedulers", "best_static,histeresis"], "did you mean hysteresis?"),
        (["evaluate", "--model", "lama-7b"], "did you mean llama-7b?"),
        (["evaluate", "--jitter", "regimes"], "did you mean regime?"),
        (["evaluate", "--scenario.jitter", "outages"], "did you mean outage?"),
        (["evaluate", "--suite", "defualt"], "did you mean default?"),
        (["evaluate", "--sharing", "fare"], "did you mean fair?"),
        (["kpi", "--candidates", "sailer"], "did you mean sailor?"),
        (["respond", "--scheduler", "hi-ppo"], "did you mean hi_ppo?"),
        (["network", "fti"], "did you mean fit?"),
        (["network", "predict", "--traces", "a", "--sed", "1"], "did you mean --seed?"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_one_that_was_meant(argv, said, capsys):
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and said in err and len(err.encode()) <= 500


def counts(kind):
    """Options of whole numbers, of any config."""
    return [key for key, of in _leaves(kind) if of in (int, int | None, int | str)]


@pytest.mark.parametrize("name", CONFIGS)
def test_every_count_has_an_upper_limit_that_the_refusal_names(name):
    for key in counts(CONFIGS[name]):
        if key == "seed":
            continue  # not a count
        extra = ["--jobs", "2"] if (name, key) == ("bench", "steps") else []
        argv = [*REQUIRED.get(name, []), *extra, f"--{key}", "1" + "0" * 15]
        with pytest.raises(InputError) as error:
            parse(CONFIGS[name], argv, name)
        assert key in str(error.value) and (
            "<= " in str(error.value) or "at most" in str(error.value)
        )


@pytest.mark.parametrize("name", CONFIGS)
def test_without_options_all_keys_are_at_their_defaults(name):
    required = REQUIRED.get(name, [])
    keys = {key.strip("-"): value for key, value in zip(required[::2], required[1::2], strict=True)}
    assert parse(CONFIGS[name], required, name) == CONFIGS[name](**keys)
    assert sorted(given_keys(CONFIGS[name], required)) == sorted(keys)


@pytest.mark.parametrize("name", CONFIGS)
def test_null_is_no_value(name):
    for key, _ in _leaves(CONFIGS[name]):
        with pytest.raises(InputError, match=f"{name}: {key}: null is no value"):
            parse(CONFIGS[name], [*REQUIRED.get(name, []), f"--{key}", "null"], name)
        with pytest.raises(InputError, match=f"{name}: {key}: null is no value"):
            parse(CONFIGS[name], [*REQUIRED.get(name, []), f"--{key}=~"], name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs: 3\nepochs: 4\n", "'epochs' stands twice"),
        ("train: {upper: {clip: 0.1, clip: 0.2}}\n", "'clip' stands twice"),
        ("epoch: 3\n", "unknown key 'epoch'; did you mean epochs?"),
        ("train: {hiden: 8}\n", "unknown key 'train.hiden'; did you mean hidden?"),
        ("epochs: null\n", "epochs: null is no value"),
        ("scenario: null\n", "scenario: expected a mapping"),
        ("scenario: [1]\n", "scenario: expected a mapping"),
        ("- 3\n", "expected a mapping"),
        ("epochs: many\n", "epochs"),
        ("epochs: 0\n", "epochs: expected an integer >= 1"),
        ("scenario: {latency: 3}\n", "scenario.latency: expected"),
        ("weights: [0, 0, 0, 0]\n", "weights: expected four numbers >= 0, not all 0"),
        ("epochs: [1\n", "cannot be read as a configuration"),
        ("a: " + "[" * 5000 + "\n", "cannot be read as a configuration"),
        ("model: 2026-01-02\nepochs: x\n", "epochs"),
    ],
)
def test_a_refusal_of_a_file_names_the_file(tmp_path, capsys, text, said):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert cli.main(["train", "--seeds", "[1]", "--config", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and str(file) in err and said in err and len(err.encode()) <= 500


def test_a_refusal_of_the_command_line_names_no_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("epochs: 3\n")
    with pytest.raises(InputError) as error:
        parse(TrainConfig, ["--config", str(file), "--scenarios", "0"], "train")
    assert "scenarios" in str(error.value) and str(file) not in str(error.value)


def test_later_files_are_stronger_and_the_command_line_is_strongest(tmp_path):
    for name, text in {"a.yaml": "epochs: 3\nscenarios: 7\n", "b.yaml": "epochs: 4\n"}.items():
        (tmp_path / name).write_text(text)
    argv = ["--epochs=5", "--config", str(tmp_path / "a.yaml")]
    assert parse(TrainConfig, argv, "train").epochs == 5
    argv = ["--config", str(tmp_path / "a.yaml"), f"--config={tmp_path / 'b.yaml'}"]
    config = parse(TrainConfig, argv, "train")
    assert (config.epochs, config.scenarios) == (4, 7)
    assert sorted(given_keys(TrainConfig, argv)) == ["epochs", "scenarios"]


@pytest.mark.parametrize(
    ("argv", "key", "expected"),
    [
        (["--cluster", "four-aws-regions"], "cluster", ["four-aws-regions"]),
        (["--jitter=uniform,ou"], "jitter", ["uniform", "ou"]),
        (["--jitter", "[uniform,ou]"], "jitter", ["uniform", "ou"]),
        (["--strength", "0.1"], "strength", [0.1]),
        (["--weights", "1,0,1,0"], "weights", ["1,0,1,0"]),
    ],
)
def test_a_list_may_be_one_value_or_have_commas_between(argv, key, expected):
    assert getattr(parse(SweepConfig, argv, "sweep"), key) == expected


def test_weights_that_are_all_zero_are_refused():
    for kind, zeros in (
        (EvaluateConfig, "0,0,0,0"),
        (TrainConfig, "[0,0,0,0]"),
    ):
        with pytest.raises(InputError, match="not all 0"):
            parse(kind, ["--weights", zeros], "x")


def test_what_a_run_kept_is_read_back():
    config = EvaluateConfig(seeds=3, jitter="regime")
    assert from_mapping(EvaluateConfig, dataclasses.asdict(config), "run") == config


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--worlds", "load,heavy"], "heavy-tail"),
        (["--worlds", "load,drift", "--seq", "512"], "seq"),
        (["--worlds", "load", "--scenario.jitter", "none"], "scenario"),
        (["--worlds", "load", "--trace", "links.csv"], "trace"),
        (["--worlds", "load,drift", "--train.algorithm", "ppo"], "ppo"),
    ],
)
def test_named_worlds_say_themselves_what_they_are(argv, named):
    with pytest.raises(InputError, match=named):
        parse(TrainConfig, argv, "train")
    assert parse(TrainConfig, ["--worlds", "load, drift,load"], "train").names == ("load", "drift")
