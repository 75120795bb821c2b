"""The report of validations and calibrations says what was recorded, and what is missing."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import synthetic_runs
from helpers import synthetic_validation as synthetic
from helpers.report_text import drop_column, rows_of

from analysis.records import RecordError, load
from analysis.report.__main__ import main
from analysis.report.report import METHOD, write_report
from analysis.report.sections.calibration import readable_unit
from analysis.report.sections.left_out import as_calibrated, group_table
from analysis.report.sections.markdown import fixed, number
from analysis.report.sections.validation import VALIDATION_METHOD

SMALL = synthetic.SMALL


@pytest.fixture(scope="module")
def runs():
    return synthetic.runs(SMALL)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A validation and a calibration with their report, painted once; not to be changed."""
    folder = tmp_path_factory.mktemp("story")
    validation = synthetic.validate_run(folder / "validation", SMALL)
    calibration = synthetic.calibrate_run(folder / "calibration")
    return validation, calibration, write_report([validation, calibration]).read_text()


@pytest.fixture
def undrawn(monkeypatch):
    monkeypatch.setattr("analysis.figures.save", lambda figure, path: path.touch())


@pytest.fixture
def validation(tmp_path, story):
    """A copy for a test to spoil, without its report."""
    return Path(
        shutil.copytree(
            story[0], tmp_path / "run", ignore=shutil.ignore_patterns("figures", "report.md")
        )
    )


def change_summary(run, **changes):
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_table(run, change):
    path = run / "metrics.csv"
    frame = pd.read_csv(path)
    change(frame)
    frame.to_csv(path, index=False)


def left_out_section(text):
    return text[text.index("## Left out\n") :]


# --- the report ---------------------------------------------------------------------------------


def test_report_has_every_section_and_picture(story):
    run, _, text = story
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Predicted against measured",
        "Memory",
        "Left out of the fit",
        "Beside a closed form",
        "The runs predicted worst",
        "Fit to measured runs",
        "Parameters, prior and fit",
        "Parameters of A100-80GB",
        "Parameters of H100-96GB-500W",
        "What was run",
        "How the numbers are made",
        "Reproduce",
    ]
    linked = re.findall(r"!\[.*\]\((.*)\)", text)
    stems = ["step-times", "step-errors", "memory", "refits", "left-out", "parameters"]
    assert [Path(link).stem for link in linked] == stems
    assert all((run / link).stat().st_size > 10_000 for link in linked)
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text) and "Warning" not in text


def test_data_sets_stand_beside_their_peers(story):
    run, _, text = story
    table, datasets = rows_of(text, "data set"), load(run).summary["datasets"]
    assert list(table) == list(datasets)
    for name, row in datasets.items():
        shown = table[name]
        assert shown["mean abs. error [%]"] == f"{row['mape_pct']:.1f}"
        assert float(shown["bias [%]"]) == pytest.approx(row["bias_pct"], abs=0.05)
        assert shown["memory, mean abs. error [%]"] == fixed(row["memory_mape_pct"])
    assert table["one_node"]["published mean abs. errors [%]"] == "third 8.4; other_sim 38.9"
    assert table["sharded"]["published mean abs. errors [%]"] == "–"
    lo, hi = map(float, table["sharded"]["95 % interval"].strip("[]").split(", "))
    assert lo < datasets["sharded"]["mape_pct"] < hi and table["lone"]["95 % interval"] == "–"


@pytest.mark.parametrize(
    ("peers", "said"),
    [
        ({"one_node": {"a": 1e3, "b": 1e-3}}, "on 0 of 1; it is not on one_node."),
        ({"one_node": {"a": 1e3}, "sharded": {"b": 1e-3}}, "on 1 of 2; it is not on sharded."),
        ({"one_node": {"a": 1e3}}, "on 1 of 1."),
    ],
)
def test_who_is_nearer_is_said_against_the_best_peer(validation, undrawn, peers, said):
    change_summary(validation, peers=peers)
    assert f"below the smallest published one {said}" in write_report([validation]).read_text()


def test_coverage_of_the_calibrations_interval_is_counted(validation, undrawn):
    def bounds(frame):
        timed = frame.index[frame["measured_s"].notna()]
        frame.loc[timed, ["predicted_lo_s", "predicted_hi_s"]] = np.nan
        frame.loc[timed[0], ["predicted_lo_s", "predicted_hi_s"]] = [1e-6, 1e6]
        frame.loc[timed[1], ["predicted_lo_s", "predicted_hi_s"]] = [1e5, 1e6]

    change_table(validation, bounds)
    assert "time of 1 of 2 runs (50.0 %)" in write_report([validation]).read_text()


def test_skipped_rows_are_counted(story):
    assert "2 rows of the data could not be used" in story[2]


def test_the_worst_runs_are_listed_worst_first(story, runs):
    table = rows_of(story[2], "run")
    errors = runs.set_index("row_id")["error_pct"].dropna()
    assert list(table) == list(errors.abs().sort_values(ascending=False).index[:10])
    for name, row in table.items():
        one = runs.set_index("row_id").loc[name]
        assert row["error [%]"] == f"{one['error_pct']:.1f}"
        assert row["predicted [s]"] == number(one["predicted_s"])
        assert row["tp x cp x pp x dp"] == "8 x 1 x 4 x 2" and row["GPUs"] == "64"


def test_refits_stand_beside_the_error_as_calibrated_on_the_same_runs(story, runs):
    text = story[2]
    start = text.index("| data set or stack | GPU | left out by |")
    lines = text[start:].split("\n\n")[0].splitlines()[2:]
    by_model, by_scale, stack = (line.strip("| ").split(" | ") for line in lines)
    assert [row[2] for row in (by_model, by_scale, stack)] == ["model", "scale", "stack"]
    mine = runs[runs["dataset"] == "many_nodes"]
    same = f"{mine['error_pct'].abs().mean():.1f}"
    assert by_model[3:] == [str(len(mine)), same, "8.0", "3.2", "91.5", "6.5", "30.2"]
    assert by_scale[3:] == [str(len(mine)), same, "11.0", "-7.5", "91.5", "–", "30.2"]
    assert stack[0] == "megatron-fused" and stack[3:6] == ["60", "–", "11.0"]


def test_the_error_as_calibrated_is_unknown_rather_than_that_of_other_runs(runs):
    timed = runs[runs["measured_s"].notna()]
    mine = timed[timed["dataset"] == "many_nodes"]
    group = {"kind": "model", "dataset": "many_nodes", "n": len(mine)}
    group["label"] = mine["gpu"].iloc[0]
    assert as_calibrated(timed, group)["estimate"] > 0
    for odd in ({"n": 3}, {"label": "V100-32GB"}, {"dataset": "elsewhere"}, {"kind": "stack"}):
        assert np.isnan(as_calibrated(timed, group | odd)["estimate"])
    assert np.isnan(as_calibrated(None, group)["estimate"])
    (row,) = group_table([group | {"mape_pct": 3.0}], None).to_dict("records")
    assert (row["mape_pct"], row["n"]) == (3.0, len(mine)) and np.isnan(row["bias_pct"])


def test_parameters_are_listed_with_unit_prior_fit_interval_and_source(story):
    text = story[2]
    table = rows_of(text[text.index("## Parameters of A100") :], "parameter")
    kernel = table["kernel_s"]
    assert (kernel["unit"], kernel["prior"], kernel["fit"]) == ("µs", "4.00", "5.20")
    assert kernel["identified by (share of information)"] == "one_node 0.62; profile 0.31"
    assert table["restart_s"]["identified by (share of information)"] == "–"
    assert table["restart_s"]["unit"] == "s"
    assert [float(row["identified"]) for row in table.values()] == sorted(
        (float(row["identified"]) for row in table.values()), reverse=True
    )
    assert "4 of 6 parameters of A100-80GB, 1 of 6 parameters of H100-96GB-500W" in text


def test_parameters_that_left_their_prior_are_named(story, tmp_path, undrawn):
    assert "outside the prior" not in story[2]
    run = Path(shutil.copytree(story[1], tmp_path / "run"))
    change_table(run, lambda frame: frame.loc.__setitem__((0, "value"), 0.5))
    text = write_report([run]).read_text()
    said = "On A100-80GB the fit lies outside the prior's 95 % interval for gemm_efficiency:"
    assert text.count("outside the prior") == 1 and said in text


@pytest.mark.parametrize(
    ("unit", "size", "scale"),
    [("s", 11.4, (1.0, "s")), ("s", 9e-4, (1e3, "ms")), ("s", 4e-6, (1e6, "µs")),
     ("s", 1e-9, (1e6, "µs")), ("B", 1e-6, (1.0, "B"))],
)  # fmt: skip
def test_seconds_are_shown_in_a_unit_that_can_be_read(unit, size, scale):
    assert readable_unit(unit, size) == scale


def test_names_that_look_like_numbers_stay_as_they_are(validation, undrawn):
    def rename(frame):
        worst = frame["error_pct"].abs().idxmax()
        frame["row_id"] = [f"{i:03d}" for i in range(len(frame))]
        frame.loc[worst, "row_id"] = "007e1"

    change_table(validation, rename)
    assert next(iter(rows_of(write_report([validation]).read_text(), "run"))) == "007e1"


def test_definitions_are_those_of_the_kinds_reported(story, tmp_path, undrawn):
    assert VALIDATION_METHOD in story[2] and METHOD not in story[2]
    training = synthetic_runs.train_run(tmp_path / "training", updates=5)
    alone = write_report([training]).read_text()
    assert METHOD in alone and VALIDATION_METHOD not in alone
    both = write_report([training, story[1]]).read_text()
    assert METHOD in both and VALIDATION_METHOD in both
    assert both.count("A dash means") == 1


# --- parts missing, bad input -------------------------------------------------------------------


def test_no_refits_no_peers_no_memory_are_said_or_left_out(tmp_path, undrawn):
    only = {"one_node": SMALL["one_node"], "many_nodes": SMALL["many_nodes"]}
    run = synthetic.validate_run(tmp_path / "run", only, left_out=False, peers=None)
    change_table(run, lambda frame: frame.__setitem__("measured_gib", np.nan))
    text = write_report([run]).read_text()
    assert "## Memory" not in text and "## Left out of the fit" not in text
    assert "Other simulators" not in text
    assert "published mean abs. errors [%]" not in rows_of(text, "data set")["one_node"]
    said = left_out_section(text)
    assert "Memory: no run" in said and "holds no refits" in said


def test_a_validation_without_its_runs_keeps_the_tables_of_its_summary(validation, undrawn):
    (validation / "metrics.csv").unlink()
    text = write_report([validation]).read_text()
    assert rows_of(text, "data set")["one_node"]["published mean abs. errors [%]"]
    assert "95 % interval |" not in text.split("## Left out of the fit")[0]
    assert "has no `metrics.csv`" in left_out_section(text)


def test_a_validation_of_memory_alone_has_no_step_times(validation, undrawn):
    def untimed(frame):
        frame[["measured_s", "error_pct"]] = np.nan

    change_table(validation, untimed)
    text = write_report([validation]).read_text()
    assert "## Memory" in text and "step-times" not in text and "predicted worst" not in text


def test_a_summary_that_disagrees_with_its_runs_raises_a_warning(validation, undrawn):
    datasets = json.loads((validation / "summary.json").read_text())["datasets"]
    datasets["sharded"]["mape_pct"] = 55.0
    change_summary(validation, datasets=datasets)
    text = write_report([validation]).read_text()
    assert "**Warning.** `summary.json` gives sharded a mean absolute error of 55.00 %" in text
    assert text.count("**Warning.**") == 1


def test_a_data_set_without_step_times_is_in_the_table_alone_and_that_is_said(validation, undrawn):
    datasets = json.loads((validation / "summary.json").read_text())["datasets"]
    change_summary(validation, datasets=datasets | {"links": {"n": 9, "mape_pct": 6.5}})
    text = write_report([validation]).read_text()
    assert rows_of(text, "data set")["links"]["mean abs. error [%]"] == "6.5"
    assert "Of links no step time was measured" in text and "Warning" not in text


def test_missing_columns_and_contradictions_name_the_file(validation, story, tmp_path, capsys):
    change_table(validation, lambda frame: frame.__setitem__("error_pct", 1e3))
    assert main([str(validation)]) == 2
    assert "metrics.csv: run one_node-0: error_pct" in capsys.readouterr().err
    drop_column(validation / "metrics.csv", "micro_batch")
    with pytest.raises(RecordError, match=r"metrics\.csv: lacks the columns \['micro_batch'\]"):
        write_report([validation])
    calibration = Path(shutil.copytree(story[1], tmp_path / "calibration"))
    change_table(calibration, lambda frame: frame.__setitem__("value", -1.0))
    with pytest.raises(RecordError, match=r"metrics\.csv: parameter gemm_efficiency"):
        write_report([calibration])
    drop_column(calibration / "metrics.csv", "told_by")
    with pytest.raises(RecordError, match=r"metrics\.csv: lacks the columns \['told_by'\]"):
        write_report([calibration])


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_without_its_summary_is_refused(story, tmp_path, which):
    run = Path(shutil.copytree(story[which], tmp_path / "run"))
    (run / "summary.json").unlink()
    with pytest.raises(RecordError, match=r"summary\.json: lacks the keys \['datasets'\]"):
        write_report([run])


def test_a_refit_that_lacks_a_key_is_refused(validation):
    change_summary(validation, left_out=[{"kind": "model", "dataset": "many_nodes"}])
    with pytest.raises(RecordError, match=r"summary\.json: left_out: .* lacks the keys \['label'"):
        write_report([validation])
