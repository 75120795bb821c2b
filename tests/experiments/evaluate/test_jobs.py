"""evaluate --jobs from the command line: what it writes, and what it refuses. The episodes themselves
are those of agents/many_jobs/test_many_jobs.py; here their results are given, but for one test that
plays everything."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.summary_keys import SUMMARY_KEYS

from agents.many_jobs.metrics import JobMetrics
from analysis.records import load
from analysis.report import report
from experiments.evaluate import __main__ as evaluate
from experiments.evaluate import jobs as evaluate_jobs
from experiments.jobs import __main__ as jobs_command
from jaxsim.load.jobs_file import read_jobs

PHILLY = Path(__file__).parents[3].parent / "shared" / "data" / "load"
PHILLY = PHILLY / "philly_vc_jobs_gavel.csv.gz"
JOBS = ["0,llama-7b,512,4096,1e9", "60,llama-13b,512,4096,2e9"]


@pytest.fixture
def jobs_file(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(["arrival_s,model,global_batch,seq,tokens", *JOBS]) + "\n")
    return str(path)


def metrics(jct_s, finished=(1.0, 1.0), overcommitted=0):
    done = all(finished)
    return JobMetrics(
        jct_s=np.array(jct_s),
        jct_normalised=np.array(jct_s) / 100.0,
        queueing_s=np.array([10.0, 30.0]),
        finished=np.array(finished),
        progress=np.array([5.0, 6.0]),
        moves=np.array([0.0, 1.0]),
        step_s=np.array([2.0, np.nan]),
        step_s_std=np.array([0.5, np.nan]),
        memory_utilisation=np.array([0.75, np.nan]),
        comm_to_compute=np.array([0.25, np.nan]),
        overlap=np.array([0.5, np.nan]),
        tokens_per_s=np.array(1e5),
        bandwidth_utilisation=np.array(0.125),
        wan_gb_per_step=np.array(3.0),
        usd_per_mtoken=np.array(1.5),
        makespan_s=np.array(max(jct_s) if done else np.nan),
        utilisation=np.array(0.25),
        fairness=np.array(0.9),
        overcommitted=np.array(overcommitted),
    )


PLAYED = {
    "mast": [metrics((200.0, 400.0)), metrics((300.0, 500.0))],
    "hysteresis": [metrics((150.0, 250.0)), metrics((900.0, 100.0), finished=(0.0, 1.0))],
}


@pytest.fixture
def given(monkeypatch):
    """No world is built and nothing is played: the episodes' results are PLAYED."""
    monkeypatch.setattr(evaluate_jobs, "load_jobs_world", lambda *_, **__: None)
    monkeypatch.setattr(evaluate_jobs, "jobs_bank", lambda *_, **__: (np.zeros(2), np.zeros(2)))
    monkeypatch.setattr(evaluate_jobs, "jobs_scenarios", lambda *_: [])
    monkeypatch.setattr(
        evaluate_jobs.JobsEvaluation, "play", lambda self, one: iter(PLAYED[one.name])
    )
    times_ms = np.linspace(1.0, 3.0, 101)
    monkeypatch.setattr(evaluate_jobs.JobsEvaluation, "decision_ms", lambda *_: times_ms)


def test_results_of_many_jobs(given, jobs_file, tmp_path, capsys):
    folder, result = tmp_path / "run", tmp_path / "result.json"
    argv = ["--jobs", jobs_file, "--schedulers", "mast,hysteresis", "--seeds", "2"]
    assert evaluate.main([*argv, "--out", str(folder), "--json", str(result)]) == 0
    body = json.loads(result.read_text())
    assert body["scenario"]["n_jobs"] == 2 and body["scenario"]["sharing"] == "fair"
    mast, hysteresis = (body["schedulers"][name] for name in ("mast", "hysteresis"))
    assert mast["jobs"]["jct_mean_s"] == 350.0 and mast["jobs"]["queueing_mean_s"] == 20.0
    assert mast["jobs"]["makespan_s"] == 450.0 and mast["jobs"]["unfinished"] == 0.0
    assert mast["jobs"]["jct_normalised_mean"] == 3.5 and mast["utilisation"] == 0.25
    assert mast["regret_pct"] is None and mast["replans"] == 0.5
    low, high = mast["jobs"]["jct_normalised_ci95"]
    assert 3.0 <= low < 3.5 < high <= 4.0
    # The makespan of a scenario in which a job is left is not known; the other counts.
    assert hysteresis["jobs"]["makespan_s"] == 250.0 and hysteresis["jobs"]["unfinished"] == 0.5
    table = load(folder).table("jobs")
    assert len(table) == 2 * 2 * 2 and set(table["model"]) == {"llama-7b", "llama-13b"}
    shown = capsys.readouterr().out
    assert "2 of 2 jobs arrive in time, links shared fair" in shown and "hysteresis" in shown
    assert set(mast) == SUMMARY_KEYS | {"jobs"}
    assert {key for key in SUMMARY_KEYS if mast[key] is None} == {
        *("headroom_pct", "regret_pct", "regret_ci95_pct", "bound_pct", "gain_over_pct"),
        *("efficiency", "efficiency_band", "effective_tokens_per_s", "usd_per_effective_mtoken"),
    }
    measured = ("step_s", "step_s_std", "memory_utilisation", "bandwidth_utilisation", "overlap")
    assert [mast[key] for key in measured] == [2.0, 0.5, 0.75, 0.125, 0.5]
    assert (mast["decision_ms_p50"], mast["decision_ms_p99"]) == pytest.approx((2.0, 2.98))
    assert mast["jobs"]["overcommitted"] == 0
    assert "GPUs held beyond the available ones: 0 at most" in shown
    page = report.write_report([folder]).read_text()
    assert "| mast | 3.50 |" in page and "| hysteresis | 3.50 |" in page
    assert "the most under any scheduler: 0." in page


OF_ONE_JOB = {  # figures that need an optimum, or one price of a token
    *("headroom_pct", "regret_pct", "regret_ci95_pct", "bound_pct", "gain_over_pct"),
    *("efficiency", "efficiency_band", "effective_tokens_per_s", "usd_per_effective_mtoken"),
}


@pytest.mark.nightly
@pytest.mark.usefixtures("scoring_is_optimised")
@pytest.mark.skipif(not PHILLY.exists(), reason="the Philly trace is not beside the project")
def test_sixteen_philly_jobs_on_eight_regions_for_a_thousand_intervals(tmp_path):
    """Nothing is given here: the world is built, local jobs come and go, everything is played."""
    jobs_file, folder = tmp_path / "jobs.csv", tmp_path / "run"
    argv = ["--trace", str(PHILLY), "--out", str(jobs_file), "--seed", "1", "--work_scale", "3"]
    assert jobs_command.main(argv) == 0
    cluster = "eight-aws-regions"
    argv = ["--cluster", str(cluster), "--jobs", str(jobs_file), "--schedulers", "mast"]
    argv += ["--seeds", "1", "--steps", "1000", "--table-size", "30", "--layout-limit", "8"]
    argv += ["--scenario.load_share", "0.5", "--scenario.load_swing", "0.2"]
    assert evaluate.main([*argv, "--out", str(folder)]) == 0

    table, row = load(folder).table("jobs"), load(folder).summary["schedulers"]["mast"]
    budget = np.array([job.spec.step_budget for job in read_jobs(jobs_file)])
    assert len(table) == 16 and (table["overcommitted"] == 0).all()
    assert row["jobs"]["overcommitted"] == 0
    assert ((table["queueing_s"] >= 0) & (table["queueing_s"] <= table["jct_s"])).all()
    assert (table["jct_normalised"] >= 1 - 1e-4).all()
    # Longer than the rest of an interval and a restart: somebody finds no room.
    assert table["queueing_s"].max() > 120
    done = (table["finished"] == 1).to_numpy()
    assert 0 < done.sum() < 16
    np.testing.assert_allclose(table["progress"][done], budget[done], rtol=2e-5)
    assert (table["progress"][~done] < budget[~done]).all()
    assert row["jobs"]["unfinished"] == 16 - done.sum()
    missing = {key for key in SUMMARY_KEYS if row[key] is None}
    # Nobody sends anything over the WAN under mast: there is nothing to overlap.
    assert missing == {*OF_ONE_JOB, "overlap"}
    assert 0 < row["utilisation"] < 1 and 0 < row["memory_utilisation"] <= 1
    assert row["usd_per_mtoken"] > 0 and row["tokens_per_s"] > 0 and row["step_s"] > 0
    assert 0 < row["decision_ms_p50"] <= row["decision_ms_p99"]


def test_who_is_behind_the_best_is_said_with_a_paired_interval(
    given, jobs_file, tmp_path, monkeypatch, capsys
):
    """Scenarios differ by far more than schedulers do: alone the intervals overlap, paired they are
    apart. 3.1, 9.2 against 3.0, 9.0."""
    close = {"hysteresis": [310.0, 920.0], "mast": [300.0, 900.0]}
    played = {name: [metrics((x, x)) for x in values] for name, values in close.items()}
    monkeypatch.setattr(
        evaluate_jobs.JobsEvaluation, "play", lambda self, one: iter(played[one.name])
    )
    argv = ["--jobs", jobs_file, "--schedulers", "hysteresis,mast", "--seeds", "2"]
    assert evaluate.main([*argv, "--out", str(tmp_path / "run")]) == 0
    summary = load(tmp_path / "run").summary
    mast, hysteresis = (summary["schedulers"][name]["jobs"] for name in ("mast", "hysteresis"))
    assert summary["best"] == "mast" and list(summary["schedulers"]) == ["hysteresis", "mast"]
    assert mast["behind_best"] == 0.0 and mast["behind_best_ci95"] == [0.0, 0.0]
    assert hysteresis["behind_best"] == pytest.approx(0.15)
    assert hysteresis["behind_best_ci95"] == pytest.approx([0.1, 0.2])
    assert hysteresis["jct_normalised_ci95"][0] < mast["jct_normalised_ci95"][1]
    shown = capsys.readouterr().out
    assert "0.15 (0.10 to 0.20)" in shown and "completion less that of mast" in shown


def test_gpus_that_were_given_away_twice_end_the_evaluation(
    given, jobs_file, tmp_path, monkeypatch, capsys
):
    leak = [metrics((200.0, 400.0)), metrics((300.0, 500.0), overcommitted=3)]
    monkeypatch.setattr(evaluate_jobs.JobsEvaluation, "play", lambda *_: iter(leak))
    argv = ["--jobs", jobs_file, "--schedulers", "mast", "--seeds", "2"]
    assert evaluate.main([*argv, "--out", str(tmp_path / "run")]) == 2
    text = capsys.readouterr().err.strip().splitlines()[-1]
    assert text.startswith("error: jobs: under mast jobs held 3 GPUs more") and "scenario 1" in text
    assert load(tmp_path / "run").run["status"] != "finished"


def test_an_interrupted_evaluation_plays_on_with_who_is_missing(
    given, jobs_file, tmp_path, monkeypatch, capsys
):
    argv = ["--jobs", jobs_file, "--schedulers", "mast,hysteresis", "--seeds", "2"]
    assert evaluate.main([*argv, "--out", str(tmp_path / "whole")]) == 0
    asked = []

    def stops(self, one):
        asked.append(one.name)
        if asked == ["mast", "hysteresis"]:
            raise KeyboardInterrupt
        return iter(PLAYED[one.name])

    monkeypatch.setattr(evaluate_jobs.JobsEvaluation, "play", stops)
    folder = str(tmp_path / "run")
    assert evaluate.main([*argv, "--out", folder]) == 130
    assert f"--resume {folder}" in capsys.readouterr().err
    assert evaluate.main(["--resume", folder]) == 0
    assert asked == ["mast", "hysteresis", "hysteresis"]
    assert load(folder).summary == load(tmp_path / "whole").summary
    assert load(folder).table("jobs").equals(load(tmp_path / "whole").table("jobs"))


def test_an_interrupted_suite_goes_on_within_a_scene_of_many_jobs(
    given, jobs_file, tmp_path, monkeypatch, capsys
):
    scenes = {"a": {"jobs": jobs_file}, "b": {"jobs": jobs_file, "sharing": "crux"}}
    suite = {"defaults": {"schedulers": "mast,hysteresis", "seeds": 2}, "scenes": scenes}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(suite))
    asked = []

    def stops(self, one):
        asked.append((self.config.sharing, one.name))
        if len(asked) == 4:
            raise KeyboardInterrupt
        return iter(PLAYED[one.name])

    monkeypatch.setattr(evaluate_jobs.JobsEvaluation, "play", stops)
    folder = str(tmp_path / "run")
    assert evaluate.main(["--suite", str(tmp_path / "mine.yaml"), "--out", folder]) == 130
    assert evaluate.main(["--resume", folder]) == 0
    assert asked[4:] == [("crux", "hysteresis")]
    frame = load(folder).table("scenes")
    assert frame["jct_normalised"].tolist() == [3.5] * 4 and frame["regret_pct"].isna().all()
    assert "completion" in capsys.readouterr().out
    assert "| b | mast |" in report.write_report([folder]).read_text()


def test_late_jobs_are_said_not_to_count(given, jobs_file, tmp_path, capsys):
    argv = ["--jobs", jobs_file, "--schedulers", "mast", "--seeds", "2", "--steps", "1"]
    assert evaluate.main([*argv, "--out", str(tmp_path / "run")]) == 0
    scenario = load(tmp_path / "run").summary["scenario"]
    assert (scenario["n_counted"], scenario["n_jobs"]) == (1, 2)
    assert "1 of 2 jobs arrive in time" in capsys.readouterr().out


def test_what_the_world_is_built_with_is_honoured(given, jobs_file, tmp_path, monkeypatch):
    built = []

    def build(*args, **plans):
        built.append((*args, plans))

    monkeypatch.setattr(evaluate_jobs, "load_jobs_world", build)
    argv = ["--jobs", jobs_file, "--schedulers", "mast", "--seeds", "2", "--domains", "6"]
    argv += ["--layout-limit", "77", "--allow", "any", "--out", str(tmp_path / "run")]
    assert evaluate.main(argv) == 0
    [(spec, _, _, layout_limit, plans)] = built
    assert spec.n_domains == 6 and layout_limit == 77
    assert plans == {"allow": "any", "efficiency": "published"}


def test_jobs_that_arrive_after_the_end_do_not_count(given, jobs_file, tmp_path, monkeypatch):
    late = metrics((200.0, np.nan), finished=(1.0, np.nan))
    monkeypatch.setattr(evaluate_jobs.JobsEvaluation, "play", lambda *_: iter([late]))
    argv = ["--jobs", jobs_file, "--schedulers", "mast", "--seeds", "1"]
    assert evaluate.main([*argv, "--out", str(tmp_path / "run")]) == 0
    got = load(tmp_path / "run").summary["schedulers"]["mast"]
    assert got["jobs"]["jct_mean_s"] == 200.0 and got["jobs"]["unfinished"] == 0.0
    assert got["jobs"]["behind_best_ci95"] == [None, None], "one scenario has no interval"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--schedulers", "clairvoyant"], ["schedulers", "clairvoyant", "mast"]),
        (["--schedulers", "astrologer"], ["schedulers", "astrologer", "mast"]),
        (["--sharing", "lottery"], ["sharing", "fair, crux", "lottery"]),
        (["--jobs", "missing.csv"], ["missing.csv", "cannot be read"]),
        (["--weights", "1,0,1,0"], ["weights", "--jobs"]),
        (["--tuning-scenarios", "4"], ["tuning_scenarios", "--jobs"]),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(jobs_file, tmp_path, capsys, extra, words):
    folder = tmp_path / "run"
    argv = ["--jobs", jobs_file, "--schedulers", "mast", "--out", str(folder), *extra]
    assert evaluate.main(argv) == 2
    text = capsys.readouterr().err.strip()
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} is not in {text!r}"
    assert not folder.exists()


def test_jobs_that_all_come_too_late_are_refused(tmp_path, capsys):
    path = tmp_path / "late.csv"
    path.write_text("arrival_s,model,global_batch,seq,tokens\n61,llama-7b,512,4096,1e9\n")
    folder = tmp_path / "run"
    argv = ["--jobs", str(path), "--schedulers", "mast", "--steps", "1", "--out", str(folder)]
    assert evaluate.main(argv) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "late.csv: arrival_s" in text and "61 s" in text
    assert not folder.exists()
