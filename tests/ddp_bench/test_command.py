"""`hippo ddp` without torch: what it starts, in which order, and when it stops."""

import ast
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
