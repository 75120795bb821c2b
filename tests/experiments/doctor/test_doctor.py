"""What is installed here, and what is missing for which command."""

import json
import subprocess

import pytest

from experiments.cli import COMMANDS, main
from experiments.doctor import checks


@pytest.fixture(scope="module")
def found():
    return checks.examined(COMMANDS)


def test_every_command_is_judged_and_packages_are_compared_with_what_is_asked_for(found):
    assert set(found["commands"]) == set(COMMANDS)
    rows = {row["name"]: row for row in found["packages"]}
    assert rows["jax"]["extra"] == "" and rows["jax"]["version"] and rows["jax"]["fits"]
    assert rows["jax[cuda13]"]["extra"] == "cuda"
    assert rows["torch"]["extra"] == "ddp" and rows["pytest"]["extra"] == "dev"
    assert found["devices"][0]["platform"] in ("cpu", "gpu", "tpu", "cuda")
    assert set(found["export_checks"]) == set(checks.FRAMEWORKS)
    assert found["commands"]["plan"]["ready"]


def test_the_screen_and_the_json_say_the_same(found, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("experiments.doctor.telling.examined", lambda commands: found)
    assert main(["doctor"]) == 0
    told = capsys.readouterr().out
    assert all(f" {name} " in told for name in COMMANDS) and "compiled programs" in told
    assert main(["doctor", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found))
    assert main(["doctor", "--json", str(tmp_path / "nowhere" / "x.json")]) == 2


def row(name, extra, version, fits):
    return {"name": name, "extra": extra, "wanted": ">=2", "version": version, "fits": fits}


def test_what_is_missing_is_named_with_the_way_to_install_it():
    packages = [row("jax", "", "3", True), row("torch", "ddp", None, False)]
    assert checks.ready("evaluate", packages, "")["ready"]
    lacking = checks.ready("ddp", packages, "")
    assert not lacking["ready"] and "torch>=2: pip install 'hippo-sched[ddp]'" in lacking["missing"]
    old = [row("jax", "", "1", False)]
    assert checks.ready("evaluate", old, "")["missing"] == ["jax>=2 (found 1)"]


def test_an_emulated_network_needs_what_its_own_check_says():
    packages = [row("torch", "ddp", None, False)]
    lacking = checks.ready("wan", packages, "the process lacks CAP_NET_ADMIN")
    assert lacking["missing"] == ["the process lacks CAP_NET_ADMIN"]
    assert any(text.startswith("run, study: torch") for text in lacking["parts"])
    assert checks.ready("wan", [], "")["ready"]


def test_a_framework_that_is_not_there_is_only_a_part_of_the_comparison():
    packages = [row("torch", "ddp", "3", True), row("deepspeed", "toolbox", None, False)]
    found = checks.ready("comparative", packages, "")
    assert found["ready"] and found["parts"] == ["deepspeed>=2: pip install 'hippo-sched[toolbox]'"]


def test_what_only_an_option_needs_is_missing_for_that_option():
    packages = [row("pyarrow", "scale", "3", True), row("ray", "scale", None, False)]
    packages += [row("plotly", "html", None, False)]
    sweep = checks.ready("sweep", packages, "")
    assert sweep["ready"] and sweep["parts"][0].startswith("--executor ray: ray>=2: pip install")
    assert not checks.ready("sweep", [row("pyarrow", "scale", None, False)], "")["ready"]
    report = checks.ready("report", packages, "")
    assert report["ready"] and report["parts"][0].startswith("--html: plotly>=2")


def test_a_framework_of_another_release_than_the_export_is_for_is_not_ready(monkeypatch):
    monkeypatch.setattr(checks, "_importable", lambda module: True)
    monkeypatch.setattr(checks.metadata, "version", lambda package: "0.2.2")
    found = checks.exports()
    assert not found["torchtitan"]["ready"] and found["torchtitan"]["missing"] == []
    assert found["torchtitan"]["other_releases"][0] == (
        "torchtitan 0.2.2 is here, the export is for 0.3.0"
    )
    monkeypatch.setattr(checks.metadata, "version", lambda package: "0.3.0+cu126")
    assert checks.other_releases({"torchtitan": "0.3.0"}) == []
    assert checks.exports()["chakra"]["ready"]  # no release is compared


def test_a_check_that_does_not_start_is_no_crash(monkeypatch):
    def fails(*_):
        raise subprocess.CalledProcessError(1, "python")

    monkeypatch.setattr(checks, "module_output", fails)
    assert "does not start" in checks.wide_area_network()


def test_folders_say_whether_they_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    (tmp_path / "program").write_bytes(b"x" * 300_000)
    first, *_ = checks.folders()
    assert first == {
        "for": "compiled programs",
        "path": str(tmp_path),
        "exists": True,
        "writable": True,
        "mb": 0.3,
    }
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "new" / "one"))
    assert checks.folders()[0]["exists"] is False and checks.folders()[0]["writable"] is True
