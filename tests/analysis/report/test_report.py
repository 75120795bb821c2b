"""The report: sections from the records, missing tables said, bad input refused in one line."""

import json
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from helpers import synthetic_runs as synthetic
from helpers.report_text import drop_column, rows_of

from analysis import records
from analysis.records import RecordError, RunWriter, load
from analysis.report.__main__ import main
from analysis.report.report import command_of, write_report
from analysis.report.sections import markdown
from analysis.report.sections.evaluation import chosen_schedulers, find_weights, verdict

PICTURES = ["learning-curve", "reward", "schedulers", "timeline", "traffic"]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """An evaluation and its training run with their report, written once; not to be changed."""
    folder = tmp_path_factory.mktemp("story")
    evaluation = synthetic.evaluate_run(folder / "evaluation", count=16, steps=40)
    training = synthetic.train_run(folder / "training", updates=20)
    path = write_report([evaluation, training])
    return evaluation, training, path.read_text()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A small evaluation, made once; `evaluation` is a copy for a test to spoil."""
    return synthetic.evaluate_run(tmp_path_factory.mktemp("pristine") / "run", count=8, steps=20)


@pytest.fixture
def evaluation(tmp_path, pristine):
    return Path(shutil.copytree(pristine, tmp_path / "evaluation"))


@pytest.fixture
def undrawn(monkeypatch):
    """For tests of the text alone: pictures are made, not painted (the slow part)."""
    monkeypatch.setattr("analysis.figures.save", lambda figure, path: path.touch())


def test_the_report_says_what_the_oracle_and_the_bound_leave_out(story):
    _, _, text = story
    said = " ".join(text.split())
    assert "never gives up a move halfway" in said and "other shares lie outside" in said
    assert "nothing can beat" not in said


def test_the_report_says_that_rivals_know_the_trace(evaluation, undrawn):
    del undrawn
    assert "**Trace.**" not in write_report([evaluation]).read_text()
    summary = json.loads((evaluation / "summary.json").read_text())
    summary["scenario"] = {**(summary.get("scenario") or {}), "trace": "links.csv"}
    records.write_json(evaluation / "summary.json", summary)
    text = write_report([evaluation]).read_text()
    assert "tuned on the trace file that the schedulers are compared on" in text


# --- what is in it ------------------------------------------------------------------------------


def test_report_has_every_section_and_picture_and_no_dead_link(story):
    evaluation, _, text = story
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert titles == [
        "Schedulers",
        "Paired gains of hi_ppo",
        "One episode",
        "WAN traffic by link",
        "The reward and its parts",
        "Learning curve",
        "What was run",
        "How the numbers are made",
        "Reproduce",
    ]
    linked = re.findall(r"!\[.*\]\((.*)\)", text)
    on_disk = sorted(path.stem for path in (evaluation / "figures").glob("*.png"))
    assert on_disk == sorted(Path(link).stem for link in linked) == PICTURES
    assert all((evaluation / link).stat().st_size > 10_000 for link in linked)
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text)


def test_every_picture_has_a_caption(story):
    lines = [line for line in story[2].splitlines() if line]
    for line, below in pairwise(lines):
        if line.startswith("!["):
            assert below.startswith("*") and below.endswith("*") and len(below) > 80


def test_headroom_comes_first_and_is_the_recorded_one(story):
    evaluation, _, text = story
    headroom = load(evaluation).summary["headroom"]
    assert 0 < headroom["n_kept"] < headroom["n_scenarios"] == 16
    first = text.split("\n\n")[2]
    assert first.startswith(f"**Headroom.** In {headroom['n_kept']} of 16 scenarios (")
    assert f"({100 * headroom['share_of_scenarios']:.1f} %)" in first
    assert "at least 3 %" in first


def test_table_of_schedulers_equals_the_summary(story):
    evaluation, _, text = story
    schedulers = load(evaluation).summary["schedulers"]
    table = rows_of(text, "scheduler")
    assert list(table) == sorted(schedulers, key=lambda name: schedulers[name]["regret_pct"])
    for name, row in schedulers.items():
        lo, hi = row["regret_ci95_pct"]
        shown = table[name]
        assert shown["progress / clairvoyant's [%]"] == f"{100 - row['regret_pct']:.1f}"
        assert shown["95 % interval"] == f"[{100 - hi:.1f}, {100 - lo:.1f}]"
        assert float(shown["regret [%]"]) == pytest.approx(row["regret_pct"], abs=0.05)
        assert float(shown["to bound [%]"]) == pytest.approx(row["bound_pct"], abs=0.05)
        assert float(shown["utilisation [%]"]) == pytest.approx(100 * row["utilisation"], abs=0.05)
        for title, key in {
            "step time [s]": "step_s",
            "WAN [GB/step]": "wan_gb_per_step",
            "USD / million tokens": "usd_per_mtoken",
            "decision p50 [ms]": "decision_ms_p50",
            "decision p99 [ms]": "decision_ms_p99",
            "replans": "replans",
        }.items():
            assert float(shown[title]) == pytest.approx(row[key], rel=0.006)


def test_paired_gains_equal_the_summary(story):
    evaluation, _, text = story
    gains = load(evaluation).summary["paired"]["hi_ppo"]
    table = rows_of(text, "against")
    assert set(table) == set(gains)
    for name, row in gains.items():
        assert float(table[name]["gain [points]"]) == pytest.approx(row["gain_pct"], abs=0.005)
        assert table[name]["95 % interval"] == f"[{row['ci95'][0]:.2f}, {row['ci95'][1]:.2f}]"
    assert table["clairvoyant"]["verdict"] == "worse"
    assert table["random"]["verdict"] == "better"
    above = sum(row["ci95"][0] > 0 for row in gains.values())
    assert f"against {above} of the {len(gains)} others" in text


def test_report_follows_the_records_not_itself(evaluation, undrawn):
    path = evaluation / "summary.json"
    summary = json.loads(path.read_text())
    summary["schedulers"]["hysteresis"].update(step_s=123.0, regret_pct=55.0, decision_ms_p99=None)
    path.write_text(json.dumps(summary))
    text = write_report([evaluation]).read_text()
    row = rows_of(text, "scheduler")["hysteresis"]
    assert (row["step time [s]"], row["regret [%]"], row["decision p99 [ms]"]) == (
        "123",
        "55.0",
        "–",
    )
    assert "**Warning.** `summary.json` gives hysteresis a regret of 55.00 %" in text


def test_an_unchanged_evaluation_raises_no_warning(story):
    assert "Warning" not in story[2]


def test_learning_table_holds_the_last_values_of_each_seed(story):
    table = rows_of(story[2], "seed")
    metrics, evaluations = synthetic.metrics(3, 20), synthetic.evaluations(3)
    for seed in range(3):
        last = metrics[metrics["seed"] == seed].iloc[-1]
        assert table[str(seed)]["environment steps"] == f"{last['env_steps']:,.0f}"
        shown = float(table[str(seed)]["progress / best static's"])
        assert shown == pytest.approx(last["progress_rel"], abs=0.005)
        regret = evaluations[evaluations["seed"] == seed]["regret_pct"].iloc[-1]
        assert table[str(seed)]["held-out regret [%]"] == f"{regret:.2f}"


def test_trainings_are_drawn_side_by_side_where_there_are_several(tmp_path, story):
    assert "side by side" not in story[2]
    one, two = (synthetic.train_run(tmp_path / name, updates=20) for name in ("one", "two"))
    lines = write_report([one, two]).read_text().splitlines()
    assert "## Learning curves side by side" in lines  # of no single run
    assert "## Learning curve (one)" in lines and "## Learning curve (two)" in lines
    data = (one / "figures" / "learning-compared.csv").read_text()
    assert "one, mean of 3 seeds" in data and "two, mean of 3 seeds" in data
    timed = pd.read_csv(two / "metrics.csv").drop(columns="train_s")
    timed.to_csv(two / "metrics.csv", index=False)
    text = write_report([one, two]).read_text()
    assert "Learning curves side by side: no evaluation with a time in two." in text
    assert "## Learning curves side by side" not in text


def test_report_tells_config_machine_commit_and_versions(story):
    evaluation, training, text = story
    for folder in (evaluation, training):
        run = load(folder).run
        assert json.dumps(run["config"], indent=2) in text
        assert run["started"] in text and run["machine"]["platform"] in text
        assert (run["git_commit"] or "outside version control") in text
        assert f"numpy {run['packages']['numpy']}" in text
    assert f"analysis.report {evaluation} {training}" in text


def test_writing_a_report_again_gives_the_same_text(tmp_path, evaluation, undrawn):
    training = synthetic.train_run(tmp_path / "training", updates=5)
    text = write_report([evaluation, training]).read_text()
    assert write_report([evaluation, training, training]).read_text() == text


def test_nothing_is_written_into_the_other_runs(story):
    assert not (story[1] / "report.md").exists() and not (story[1] / "figures").exists()


# --- parts missing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "title", "picture"),
    [
        ("timeline", "One episode", "timeline"),
        ("links", "One episode", "timeline"),
        ("traffic", "WAN traffic by link", "traffic"),
        ("scenarios", "The reward and its parts", "reward"),
    ],
)
def test_a_missing_table_leaves_its_section_out_and_says_so(
    evaluation, undrawn, table, title, picture
):
    (evaluation / f"{table}.csv").unlink()
    text = write_report([evaluation]).read_text()
    assert f"## {title}" not in text and f"{picture}.png" not in text
    left_out = text[text.index("## Left out") :]
    assert f"has no `{table}.csv`" in left_out
    assert "## Schedulers" in text and rows_of(text, "scheduler")


def test_a_training_run_without_evaluations_has_one_panel_and_says_so(tmp_path, undrawn):
    run = synthetic.train_run(tmp_path / "training", updates=10)
    (run / "eval.csv").unlink()
    text = write_report([run]).read_text()
    assert "Regret during training" in text[text.index("## Left out") :]
    assert "held-out" not in rows_of(text, "seed")["0"]


def test_an_evaluation_without_a_learned_scheduler_has_no_gains(tmp_path, undrawn):
    run = synthetic.evaluate_run(tmp_path / "evaluation", count=8, steps=20, learned=())
    assert "## Paired gains" not in write_report([run]).read_text()


def test_bench_and_unknown_kinds_are_reported_as_they_are(tmp_path):
    bench = synthetic.bench_run(tmp_path / "bench")
    with RunWriter.create("other", {}, 0, tmp_path / "other") as run:
        run.finish({"speedup": 1.25, "nested": {"x": 1}})
    text = write_report([bench, run.dir]).read_text()
    row = rows_of(text, "what")["env"]
    assert (row["domains"], row["per_s"], row["peak_memory_gb"]) == ("8", "300,000", "–")
    assert "| speedup | 1.25 |" in text and "none for runs of kind `other`" in text


def test_a_comparison_of_fidelities_has_its_table_and_picture_and_loses_nothing(tmp_path):
    points = [(sweep, x) for sweep in ("latency", "jitter") for x in (0.1, 0.2)]
    rows = [
        {"sweep": sweep, "schedule": schedule, "x": x, "sample": n, "ratio": 1 + worse * n * x}
        for sweep, x in points
        for schedule, worse in (("1F1B", 0.0), ("GPipe", -0.5))
        for n in range(3)
    ]
    config = {"samples": 3, "micro_batches": 8, "spread": 0.1, "send": 0.3}
    with RunWriter.create("fidelity", config, 0, tmp_path / "run") as run:
        run.write_table("ratios", pd.DataFrame(rows))
        (run.figures / "fidelity.png").write_bytes(b"the run's own")
        run.finish({})
    text = write_report([run.dir]).read_text()
    assert "| latency | 1F1B | 6 | 1.000 | 1.000 | 1.000 | 100.0 |" in text
    assert "| jitter | GPipe | 6 | 0.925 | 0.800 | 1.000 | 33.3 |" in text
    assert (run.dir / "figures" / "fidelity.png").read_bytes() == b"the run's own"
    assert (run.dir / "figures" / "closed-form.png").exists()
    assert "clairvoyant" not in text and "Left out" not in text


def test_two_evaluations_are_told_apart_and_an_unfinished_run_is_marked(
    tmp_path, evaluation, undrawn
):
    other = Path(shutil.copytree(evaluation, tmp_path / "other"))
    run = json.loads((other / "run.json").read_text())
    changed = {"run_id": "other", "status": "interrupted"}
    (other / "run.json").write_text(json.dumps(run | changed))
    text = write_report([evaluation, other]).read_text()
    assert "## Schedulers (run)" in text and "## Schedulers (other)" in text
    assert "figures/schedulers.png" in text and "figures/schedulers-2.png" in text
    assert "**Warning.** The run other is marked `interrupted`." in text


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("scenarios", "progress_rel"),
        ("scenarios", "reward_util"),
        ("timeline", "in_transition"),
        ("links", "bandwidth_gbps"),
        ("traffic", "dst"),
    ],
)
def test_a_missing_column_names_file_and_column_and_writes_nothing(
    evaluation, capsys, table, column
):
    drop_column(evaluation / f"{table}.csv", column)
    before = sorted(evaluation.iterdir())
    assert main([str(evaluation)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert f"{table}.csv" in err and f"'{column}'" in err
    assert sorted(evaluation.iterdir()) == before


def test_a_missing_column_of_a_training_run_names_it(tmp_path):
    run = synthetic.train_run(tmp_path / "training", updates=5)
    drop_column(run / "metrics.csv", "env_steps")
    with pytest.raises(RecordError, match=r"metrics\.csv: lacks the columns \['env_steps'\]"):
        write_report([run])


def test_a_table_that_contradicts_itself_names_the_file(evaluation):
    path = evaluation / "scenarios.csv"
    frame = pd.read_csv(path)
    pd.concat([frame, frame[:1]]).to_csv(path, index=False)
    with pytest.raises(RecordError, match=r"scenarios\.csv: .* twice"):
        write_report([evaluation])


def test_an_evaluation_without_its_summary_is_refused(evaluation):
    (evaluation / "summary.json").unlink()
    with pytest.raises(RecordError, match=r"summary\.json: lacks the keys \['schedulers', 'head"):
        write_report([evaluation])


def test_a_folder_that_is_no_run_and_an_empty_list_are_refused(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: not a run folder (no run.json)\n"
    with pytest.raises(RecordError, match="no run folder given"):
        write_report([])


def test_the_command_works_from_a_shell(tmp_path):
    run = synthetic.train_run(tmp_path / "training", updates=5)
    root = Path(records.__file__).parents[1]
    command = [sys.executable, "-m", "analysis.report", run]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(run / "report.md"), "")


def test_a_wrong_command_line_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert capsys.readouterr().err == "error: the following arguments are required: RUN\n"


# --- pieces -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (
            ["/a/experiments/train.py", "--out", "b c"],
            "python -m experiments.train --out 'b c'",
        ),
        (["/a/experiments/__main__.py"], "python -m experiments"),
        (
            ["/experiments/a/experiments/train/__main__.py", "--epochs", "3"],
            "python -m experiments.train --epochs 3",
        ),
        (["/venv/bin/hippo", "train"], "hippo train"),
    ],
)
def test_commands_are_given_as_a_user_types_them(argv, command):
    assert command_of(argv) == command


@pytest.mark.parametrize("argv", [None, [], ["-c"], [""]])
def test_a_run_without_a_command_says_so(argv):
    assert command_of(argv).startswith("# ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (float("nan"), "–"),
        (0.0, "0"),
        (7, "7"),
        (1234567, "1,234,567"),
        (0.123456, "0.123"),
        (12.3456, "12.3"),
        (-1.5, "-1.50"),
        (123456.7, "123,457"),
        (0.00001234, "0.0000123"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert markdown.number(value) == text


def test_fixed_numbers_have_no_negative_zero():
    assert [markdown.fixed(x) for x in (-0.04, -0.06, 2, None)] == ["0.0", "-0.1", "2.0", "–"]
    assert markdown.interval([None, 1.0]) == "–"


def test_cells_cannot_break_their_table():
    assert markdown.cell("a|b\nc") == "a\\|b c"


def test_verdicts_follow_the_interval():
    bounds = [[0.1, 0.2], [-0.2, -0.1], [-0.1, 0.1], [None, None]]
    assert [verdict(b) for b in bounds] == ["better", "worse", "not told apart", "not measured"]


def test_weights_are_found_however_they_are_nested():
    assert find_weights({"env": {"reward": {"weights": [1, 0.5, 0, 0]}}}) == [1, 0.5, 0, 0]
    assert find_weights({"weights": "1,0,0,0"}) == [1, 0, 0, 0]
    assert find_weights({"weights": [1, 2]}) is find_weights(None) is None


def test_pictures_of_few_schedulers_hold_the_learned_clairvoyant_and_the_best_rival(evaluation):
    record = load(evaluation)
    present = list(synthetic.SCHEDULERS)
    chosen = chosen_schedulers(record, present)
    assert chosen == ["clairvoyant", "hi_ppo", "self_tuning_hysteresis", "best_static"]
    assert chosen_schedulers(record, ["random", "hi_ppo"]) == ["hi_ppo", "random"]
