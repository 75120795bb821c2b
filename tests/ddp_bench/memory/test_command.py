"""The command as a user starts it: its result, its run folder, what it refuses."""

import functools
import json

import pytest

pytest.importorskip("torch")

from helpers import toolbox_command

from analysis.records import load
from experiments import memory

SMALL = ("--quick", "--settings", "1", "--repeats", "1")


run = functools.partial(toolbox_command.run, "memory")


@pytest.mark.nightly
def test_the_result_holds_what_was_predicted_measured_and_chosen(tmp_path):
    done = run(
        *SMALL, "--capacity_mb", "8", "--out", tmp_path / "run", "--json", tmp_path / "result.json"
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["peak_error_pct"] <= 5 and result["budget_kept"] is True
    assert len(result["settings"]) == 1 and result["reserve"] == 0.2
    for row in result["budgets"]:
        assert row["budget_bytes"] <= 0.8 * row["capacity_bytes"]
        assert row["measured_bytes"] <= row["budget_bytes"] and row["gap_pct"] <= 3
    assert set(result["replay"]) == {"first_fit", "best_fit", "buddy", "pools", "caching"}
    record = load(tmp_path / "run")
    assert record.run["status"] == "finished" and record.summary == result
    assert record.tables() == ["budgets", "settings"]
    assert {f.name for f in (tmp_path / "run" / "figures").iterdir()} == {
        "allocators.png",
        "timeline.png",
    }


@pytest.mark.nightly
def test_a_capacity_below_the_least_is_answered_not_hidden(tmp_path):
    given = (*SMALL, "--capacity_mb", "0.5", "--json", "-")
    done = run(*given, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["budget_kept"] is None
    (row,) = result["budgets"]
    assert row["kept"] is None and "the least needs" in row["why_not"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reserve", "1"), "reserve is 1.0: allowed are numbers in [0, 1)"),
        (("--model", "huge"), "invalid choice: 'huge'"),
        (("--models", "tiny,huge"), "models is 'tiny,huge': allowed tiny, small, wide, deep"),
        (("--json", "absent/result.json"), "absent/result.json"),
        (("--rows", "many"), "--rows"),
        (("--offload_dir", "absent"), "offload_dir is 'absent'"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, said):
    toolbox_command.assert_refused("memory", tmp_path, arguments, said)


def test_hippo_passes_everything_on(capfd):
    assert memory.main(["--reserve", "2"]) == 2
    assert "reserve is 2.0" in capfd.readouterr().err
