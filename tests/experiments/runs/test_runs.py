"""Run folders listed and compared."""

import json

import pytest

from analysis.records import RunWriter
from experiments.cli import main


def run(path, kind="evaluate", config=None, summary=None):
    with RunWriter.create(kind, config or {}, 0, path) as writer:
        if summary is not None:
            writer.finish(summary)


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("outputs/a", config={"model": "llama-7b", "seeds": 4}, summary={"x": {"step_s": 2.0}})
    run("outputs/b", config={"model": "llama-7b", "seeds": 8}, summary={"x": {"step_s": 1.5}})
    run("outputs/deep/c", "train", {"model": "llama-13b"})
    return tmp_path


def told(capsys, *argv):
    assert main(["runs", *argv, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_run_is_listed_with_its_state(outputs, capsys):
    runs = {r["folder"]: r for r in told(capsys)["runs"]}
    assert set(runs) == {"outputs/a", "outputs/b", "outputs/deep/c"}
    assert runs["outputs/a"]["status"] == "finished"
    assert runs["outputs/deep/c"]["status"] == "incomplete"
    assert runs["outputs/a"]["about"] == {"model": "llama-7b"}
    assert [r["kind"] for r in told(capsys, "--kind", "train")["runs"]] == ["train"]
    assert main(["runs"]) == 0
    out = capsys.readouterr().out
    assert "outputs/deep/c" in out and "model llama-13b" in out


def test_two_runs_differ_where_they_differ(outputs, capsys):
    found = told(capsys, "--compare", "outputs/a,outputs/b")
    assert found["config"] == {"seeds": [4, 8]} and found["summary"] == {"x.step_s": [2.0, 1.5]}
    same = told(capsys, "--compare", "outputs/a,outputs/a")
    assert same["config"] == same["summary"] == {}
    assert main(["runs", "--compare", "outputs/a,outputs/b"]) == 0
    assert "x.step_s: 2 -> 1.5 (-25.0 %)" in capsys.readouterr().out


def test_a_broken_folder_is_named_and_the_others_are_listed(outputs, capsys):
    (outputs / "outputs" / "b" / "run.json").write_text("{")
    result = told(capsys)
    assert len(result["runs"]) == 2 and "outputs/b" in result["unreadable"][0]


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--root", "nowhere"], "nowhere"),
        (["--compare", "outputs/a"], "two run folders"),
        (["--compare", "outputs/a,outputs/zz"], "outputs/zz"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(outputs, capsys, argv, named):
    assert main(["runs", *argv]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and named in err
