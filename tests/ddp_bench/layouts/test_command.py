"""The command as a user starts it: its result, its run folder, what it refuses."""

import functools
import json

import pytest

pytest.importorskip("torch")

from helpers import toolbox_command

from analysis.records import load
from ddp_bench.parallel.__main__ import main as of_parallel
from experiments import parallel

SMALL = ("--quick", "--cases", "2:tiny:4x16", "--layouts", "dp2,dp2-zero3,pp2-1f1b-m2")


run = functools.partial(toolbox_command.run, "layouts", timeout_s=600)


@pytest.mark.nightly
def test_the_result_holds_what_was_predicted_measured_and_moved(tmp_path):
    given = (*SMALL, "--out", tmp_path / "run", "--json", tmp_path / "result.json")
    done = run(*given)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip()
    result = json.loads((tmp_path / "result.json").read_text())
    names = [row["name"] for row in result["layouts"]]
    assert sorted(names) == ["dp2", "dp2-zero3", "pp2-1f1b-m2"]
    for row in result["layouts"]:
        assert sum(row["parts"].values()) == pytest.approx(row["predicted_s"])
        assert 0 < row["least_s"] <= row["measured_s"]
    predicted = [row["predicted_s"] for row in result["layouts"]]
    assert predicted == sorted(predicted) and result["layouts"][0]["is_finalist"]
    assert result["top1_gap_pct"] == max(result["top1_gaps_pct"].values()) >= 0
    assert result["relayout_loss_gap"] <= 1e-6
    assert result["relayout_order_kept"] is True and result["relayout_equal"] is True
    assert {(r["ranks"], r["ranks_after"]) for r in result["moves"]} == {(2, 2), (2, 1)}
    assert result["context_parallel"]["runs"] or result["context_parallel"]["reason"]
    assert len(result["adaptive"]["steps"]) == 16
    record = load(tmp_path / "run")
    assert record.run["status"] == "finished" and record.summary == result
    assert record.tables() == ["layouts", "moves"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cases", "2:huge:8x16"), "cases is '2:huge:8x16': allowed is RANKS:MODEL:ROWSxTOKENS"),
        (("--cases", "1:tiny:8x16"), "allowed are 2 to 64 ranks"),
        (("--cases", "7:tiny:8x16"), "no layout of 'all' fits it"),
        (
            ("--cases", "2:tiny:8x16", "--layouts", "tp4"),
            "tp4: 2 heads of keys cannot be shared by 4",
        ),
        (("--cases", "2:tiny:8x16", "--layouts", "dp4"), "dp4: needs 4 ranks, there are 2"),
        (("--layouts", "fast"), "'fast' names no layout: allowed are names such as dp2"),
        (("--cases", "2:tiny:8x16", "--start", "dp4"), "start is 'dp4': allowed "),
        (("--what", "predict,move"), "what is 'predict,move': allowed all, predict, moves, loop"),
        (("--hysteresis", "-1"), "hysteresis is -1.0: allowed are numbers in [0, inf)"),
        (("--rounds", "many"), "--rounds"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, said):
    toolbox_command.assert_refused("layouts", tmp_path, arguments, said)


def test_hippo_passes_everything_on(capfd):
    assert parallel.main(["--hysteresis", "-2"]) == 2
    assert "hysteresis is -2.0" in capfd.readouterr().err


def test_hippo_shows_its_own_name(capfd):
    with pytest.raises(SystemExit):
        parallel.main(["--help"])
    assert "hippo parallel --quick" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quick", "--json", "absent/found.json"], "json is 'absent/found.json'"),
        (["--out", "somewhere", "--hysteresis", "-2"], "hysteresis is -2.0"),
        (["--what=speed"], "what is 'speed'"),
    ],
)
def test_the_module_of_the_same_name_passes_everything_on_too(words, said, capfd):
    assert of_parallel(words) == parallel.main(words) == 2
    first, second = capfd.readouterr().err.splitlines()
    assert first == second and said in first


def test_a_job_is_still_a_job(tmp_path, capfd):
    for words in (["absent.json"], ["--out", str(tmp_path), "absent.json"]):
        assert of_parallel(words) == 2
    assert of_parallel(["absent.json", "--quick"]) == 2
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 3 and all(line.startswith("parallel: ") for line in said)
    assert "absent.json" in said[0] and said[0] == said[1] and "--quick" in said[2]


@pytest.mark.nightly
def test_parts_that_are_not_asked_for_are_not_done(tmp_path):
    asked = {"moves": ("moves",), "loop": ("adaptive",), "predict": ("layouts", "top1_gap_pct")}
    for what, keys in asked.items():
        done = run(*SMALL, "--what", what, "--out", tmp_path / what, "--json", "-")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        others = {key for name, of in asked.items() if name != what for key in of}
        assert all(found[key] for key in keys) or keys == ("layouts", "top1_gap_pct")
        assert not any(found[key] for key in others)
        assert (found["relayout_loss_gap"] is None) == (what != "moves")
        if what == "loop":  # the slowest by a profile of its own
            assert found["adaptive"]["start"] in ("dp2", "dp2-zero3", "pp2-1f1b-m2")
        if what == "predict":
            assert len(found["layouts"]) == 3 and found["top1_gap_pct"] >= 0
