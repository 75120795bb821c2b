"""`hippo ddp` without torch: what it starts, in which order, and when it stops."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from analysis.records import RunWriter
from experiments import ddp

ROOT = Path(__file__).parents[2]


@pytest.fixture
def calls(monkeypatch):
    """Commands that would have been started; every one succeeds unless named in `failing`."""
    made, failing = [], {}

    def python(*arguments):
        made.append(arguments)
        return failing.get(arguments[0], 0)

    monkeypatch.setattr(ddp, "_python", python)
    return made, failing


def test_checks_trains_replays_and_analyses_one_folder(calls, tmp_path):
    made, _ = calls
    assert ddp.main(["--out", str(tmp_path), "--ranks", "2", "--steps", "5"]) == 0
    modules = [call[0] for call in made]
    assert modules == [
        "ddp_bench.train_ddp",
        "torch.distributed.run",
        "ddp_bench.replay",
        "analysis.analyze_metrics",
    ]
    assert "--validate_only" in made[0] and made[0][-1] == "2"
    assert "--nproc_per_node=2" in made[1]
    assert all(str(tmp_path) in call for call in made)
    assert made[1][made[1].index("--steps") + 1] == "5"


@pytest.mark.parametrize(
    ("module", "status"), [("ddp_bench.train_ddp", 2), ("torch.distributed.run", 1)]
)
def test_stops_at_the_first_failure_with_its_status(calls, module, status):
    made, failing = calls
    failing[module] = status
    assert ddp.main([]) == status
    assert made[-1][0] == module


def test_the_shipped_configuration_is_used_unless_one_is_named(calls):
    made, _ = calls
    ddp.main(["--config", "mine.yaml"])
    assert str(ddp.DEFAULT_CONFIG) not in made[0]
    ddp.main([])
    assert str(ddp.DEFAULT_CONFIG) in made[4]


def test_resuming_takes_ranks_and_settings_from_the_run(calls, tmp_path, capsys):
    made, _ = calls
    with RunWriter.create("ddp", {"ranks": 2}, 0, tmp_path / "x") as writer:
        writer.finish({})
    assert ddp.main(["--resume", str(tmp_path / "x")]) == 0
    assert not {"--output_dir", "--config"} & set(made[1])
    assert made[0][-1] == "2" and "--nproc_per_node=2" in made[1]
    assert made[-1][-1] == str(tmp_path / "x")
    assert ddp.main(["--resume", str(tmp_path / "absent")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_bad_settings_end_with_status_2_before_anything_starts(capfd):
    assert ddp.main(["--mode", "turbo"]) == 2
    assert capfd.readouterr().err.count("\n") == 1
    assert ddp.main(["--ranks", "0"]) == 2


@pytest.mark.parametrize(
    ("script", "chosen"),
    [
        ("run_static.sh", ["--mode", "static"]),
        ("run_dynamic.sh", ["--mode", "dynamic"]),
        ("run_all.sh", ["--arms", "static,dynamic,pooled"]),
    ],
)
def test_scripts_choose_the_schedule_and_pass_arguments_on(tmp_path, script, chosen):
    echo = tmp_path / "python"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    done = subprocess.run(
        [ROOT / "experiments" / script, "--out", "my runs/1"],
        env={**os.environ, "PYTHON": str(echo)},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = ["-m", "experiments.ddp", *chosen, "--out", "my runs/1"]
    assert done.stdout.splitlines() == wanted


def test_requirements_are_those_of_the_project_and_all_that_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["ddp"]
    lines = (ROOT / "ddp_bench" / "requirements.txt").read_text().splitlines()
    required = [line for line in lines if line and not line.startswith("#")]
    assert set(required) <= {*project["dependencies"], *extra} and set(extra) <= set(required)
    folders = (ROOT / "ddp_bench", ROOT / "analysis")
    files = [file for folder in folders for file in folder.rglob("*.py")]
    files.append(ROOT / "experiments" / "ddp.py")
    found = {name.split(".")[0] for file in files for name in imports(file)}
    found -= {*sys.stdlib_module_names, "ddp_bench", "analysis", "experiments"}
    # With transformers come tokenizers and huggingface_hub, with datasets pyarrow.
    # Of a report, the one HTML file alone needs plotly and markdown-it-py: the extra `html`.
    brought = {"tokenizers", "huggingface_hub", "pyarrow", "plotly", "markdown_it"}
    # Frameworks are imported in ranks of the comparison alone: the extra `toolbox`.
    brought |= {"deepspeed", "megatron", "torchtitan"}
    named = {
        re.match(r"[a-z-]+", line)[0].replace("pyyaml", "yaml").replace("-", "_")
        for line in required
    }
    assert found - brought == named


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_packages_import_only_what_they_may():
    assert not any(name.startswith("ddp_bench") for name in imports(ROOT / "experiments/ddp.py"))
    for path in (ROOT / "ddp_bench").rglob("*.py"):
        names = set(imports(path))
        assert not any(n.split(".")[0] in ("jax", "jaxsim", "agents", "experiments") for n in names)
        assert {n for n in names if n.startswith("analysis")} <= {"analysis.records"}
    for path in (ROOT / "analysis").rglob("*.py"):
        assert not any(name.split(".")[0] == "ddp_bench" for name in imports(path))
