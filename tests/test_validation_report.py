"""Validations and calibrations: figures show the numbers recorded, the report says them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import synthetic_runs
import synthetic_validation as synthetic
from matplotlib.colors import to_rgba
from test_report import drop_column, rows_of

from analysis import figures
from analysis.figures.calibration import by_identification
from analysis.figures.validation import LEFT_OUT_COLUMNS
from analysis.markdown import fixed, number
from analysis.records import RecordError, load
from analysis.report import METHOD, main, write_report
from analysis.sections.calibration import readable_unit
from analysis.sections.validation import VALIDATION_METHOD, in_sample, refit_table
from analysis.statistics import bootstrap_interval

SMALL = {name: (min(row[0], 12), *row[1:]) for name, row in synthetic.DATASETS.items()}


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


# --- figures ------------------------------------------------------------------------------------


def test_step_times_have_a_panel_per_data_set_with_its_runs_intervals_and_error(runs):
    figure = figures.step_times(runs)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == list(SMALL)
    for axes, name in zip(shown, SMALL, strict=True):
        mine = runs[(runs["dataset"] == name) & runs["measured_s"].notna()]
        (dots,) = [one for one in axes.lines if one.get_marker() != "None"]
        np.testing.assert_allclose(dots.get_xdata(), mine["measured_s"])
        np.testing.assert_allclose(dots.get_ydata(), mine["predicted_s"])
        ends = axes.collections[1].get_segments()
        np.testing.assert_allclose(
            [segment[:, 1] for segment in ends], mine[["predicted_lo_s", "predicted_hi_s"]]
        )
        said = axes.texts[0].get_text()
        assert f"n = {len(mine)}\n" in said
        assert f"mean abs. error {mine['error_pct'].abs().mean():.1f} %" in said
        assert axes.get_xscale() == axes.get_yscale() == "log"
        assert axes.get_xlim() == axes.get_ylim() and "[s]" in axes.get_xlabel()
    markers = [axes.lines[-1].get_marker() for axes in shown]
    assert len(set(markers)) == len(shown)


def test_the_band_around_the_diagonal_is_ten_per_cent_wide(runs):
    axes = figures.step_times(runs).axes[0]
    corners = axes.collections[0].get_paths()[0].vertices
    ratio = corners[:, 1] / corners[:, 0]
    assert (ratio.min(), ratio.max()) == (pytest.approx(0.9), pytest.approx(1.1))


def test_an_interval_beside_the_prediction_is_drawn_as_it_is(runs):
    beside = runs.assign(predicted_lo_s=1.2 * runs["predicted_s"]).iloc[:1]
    beside = beside.assign(predicted_hi_s=1.5 * beside["predicted_s"])
    (segment,) = figures.step_times(beside).axes[0].collections[1].get_segments()
    np.testing.assert_allclose(segment[:, 1] / beside["predicted_s"].item(), [1.2, 1.5])


def test_intervals_that_are_not_known_are_neither_drawn_nor_explained(runs):
    bare = runs.assign(predicted_lo_s=np.nan, predicted_hi_s=np.nan)
    figure = figures.step_times(bare)
    assert all(len(axes.collections) <= 1 for axes in figure.axes)  # the band alone
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["predicted = measured", "±10 %"]


def test_step_errors_show_every_run_its_quartiles_and_the_mean_beside_peers(runs):
    left, right = figures.step_errors(runs, synthetic.PEERS).axes
    for row, name in enumerate(SMALL):
        errors = runs.loc[(runs["dataset"] == name) & runs["measured_s"].notna(), "error_pct"]
        ticks = [one for one in left.lines if one.get_marker() == "|"][row]
        np.testing.assert_allclose(ticks.get_xdata(), errors)
        box = left.patches[row].get_path().vertices[:, 0]
        np.testing.assert_allclose([box.min(), box.max()], np.quantile(errors, [0.25, 0.75]))
        expected = bootstrap_interval(errors.abs().to_numpy())
        drawn = right.containers[row]
        assert drawn.lines[0].get_xdata()[0] == pytest.approx(expected["estimate"])
        if len(errors) == 1:
            assert not drawn.has_xerr
        else:
            ends = drawn.lines[2][0].get_segments()[0][:, 0]
            np.testing.assert_allclose(ends, [expected["lo"], expected["hi"]])
    peers = {one.get_label(): one for one in right.lines if "published" in str(one.get_label())}
    assert list(peers["other_sim, published"].get_xdata()) == [38.9, 1.5]
    assert np.round(peers["other_sim, published"].get_ydata()).tolist() == [0, 1]
    assert list(peers["third, published"].get_xdata()) == [8.4]
    assert len({one.get_marker() for one in peers.values()} | {"D"}) == 3


def test_step_errors_can_be_drawn_without_peers(runs):
    figure = figures.step_errors(runs)
    said = [text.get_text() for text in figure.legends[0].get_texts()]
    assert said == ["this simulator, 95 % interval"]


def test_memory_is_drawn_where_published_even_without_a_step_time(runs):
    (axes,) = figures.peak_memory(runs).axes
    drawn = {
        str(one.get_label()).split(",")[0]: one
        for one in axes.lines
        if one.get_linestyle() == "None"
    }
    assert set(drawn) == {"sharded", "small_gh", "lone"}
    assert drawn["lone"].get_xdata().tolist() == [40.0]
    assert "mean abs. error 5.0 %, bias +5.0 %" in drawn["lone"].get_label()
    assert "[GiB]" in axes.get_xlabel() and "[GiB]" in axes.get_ylabel()


def test_refits_are_pairs_of_bars_told_apart_by_hatch_with_known_intervals_only():
    row = dict.fromkeys(LEFT_OUT_COLUMNS, np.nan)
    refits = pd.DataFrame(
        [
            row | {"dataset": "a", "label": "x", "n": 5, "mape_pct": 9.0, "in_sample_pct": 4.0}
            | {"in_sample_lo": 3.0, "in_sample_hi": 6.0, "bias_pct": -9.0},
            row | {"dataset": "b", "label": "y", "n": 7, "mape_pct": 2.0},
        ]
    )  # fmt: skip
    (axes,) = figures.left_out_errors(refits).axes
    known, new = (group for group in axes.containers if hasattr(group, "patches"))
    np.testing.assert_array_equal([bar.get_width() for bar in known], [4.0, np.nan])
    np.testing.assert_array_equal([bar.get_width() for bar in new], [9.0, 2.0])
    assert known[0].get_hatch() != new[0].get_hatch()
    segments = [bars.errorbar.lines[2][0].get_segments() for bars in (known, new)]
    np.testing.assert_allclose(segments[0][0][:, 0], [3.0, 6.0])
    assert all(len(segment) == 0 for segment in segments[1])
    said = [text.get_text().strip() for text in axes.texts]
    assert said == ["n = 5, left-out bias -9.0 %", "n = 7"]


def test_parameters_are_divided_by_their_prior_and_filled_where_identified():
    table = synthetic.parameters()
    left, right = figures.parameters_fitted(table).axes
    names = by_identification(table)
    assert names[0] == "gemm_efficiency" and names[-1] == "restart_s"
    assert [tick.get_text() for tick in left.get_yticklabels()] == names
    assert left.get_xscale() == "log" and "prior" in left.get_xlabel()
    for axes, gpu in ((left, "A100-80GB"), (right, "H100-96GB-500W")):
        rows = table[table["gpu"] == gpu].set_index("parameter").loc[names]
        fits = [group for group in axes.containers if not hasattr(group, "patches")]
        for fit, bar, (_, one) in zip(fits, axes.patches, rows.iterrows(), strict=True):
            assert fit.lines[0].get_xdata()[0] == pytest.approx(one["value"] / one["prior"])
            ends = fit.lines[2][0].get_segments()[0][:, 0]
            np.testing.assert_allclose(ends, one[["lo", "hi"]].to_numpy(float) / one["prior"])
            span = [bar.get_x(), bar.get_x() + bar.get_width()]
            expected = one[["prior_lo", "prior_hi"]].to_numpy(float) / one["prior"]
            np.testing.assert_allclose(span, expected)
            face = to_rgba("black" if one["identified"] > 0.5 else "white")
            assert to_rgba(fit.lines[0].get_markerfacecolor()) == face
    assert "4 of 6 identified" in left.get_title(loc="left")
    assert "1 of 6 identified" in right.get_title(loc="left")


def test_a_parameter_that_one_gpu_lacks_leaves_its_row_empty():
    table = synthetic.parameters().iloc[:-1]
    left, right = figures.parameters_fitted(table).axes
    assert (len(left.patches), len(right.patches)) == (6, 5)


@pytest.mark.parametrize(
    ("draw", "change", "message"),
    [
        ("step_times", {"measured_s": 0.0}, "run one_node-0: measured_s .* above 0"),
        ("step_errors", {"error_pct": 77.0}, r"run one_node-0: error_pct is 77\.00"),
        ("step_errors", {"error_pct": np.nan}, "run one_node-0: error_pct is nan"),
        ("peak_memory", {"measured_gib": -1.0, "predicted_gib": 1.0}, "run one_node-0: measured"),
    ],
)
def test_a_run_that_contradicts_itself_is_named(runs, draw, change, message):
    odd = runs.copy()
    odd.loc[0, list(change)] = list(change.values())
    with pytest.raises(ValueError, match=message):
        getattr(figures, draw)(odd)


def test_odd_parameters_are_named():
    table = synthetic.parameters()
    with pytest.raises(ValueError, match="gemm_efficiency of A100-80GB stands there twice"):
        figures.parameters_fitted(pd.concat([table, table]))
    table.loc[1, "lo"] = 0.0
    with pytest.raises(ValueError, match=r"kernel_s of A100-80GB: .* above 0"):
        figures.parameters_fitted(table)


@pytest.mark.parametrize("draw", [figures.step_times, figures.step_errors, figures.peak_memory])
def test_nothing_measured_is_refused(runs, draw):
    with pytest.raises(ValueError, match="no run has a measured and a predicted"):
        draw(runs.assign(measured_s=np.nan, measured_gib=np.nan))


# --- the report ---------------------------------------------------------------------------------


def test_report_has_every_section_and_picture(story):
    run, _, text = story
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Predicted against measured",
        "Memory",
        "Left out of the fit",
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
    stems = ["step-times", "step-errors", "memory", "left-out", "parameters"]
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


def test_refits_stand_beside_the_error_in_sample_on_the_same_runs(story, runs):
    text = story[2]
    lines = text[text.index("| data set | left out |") :].split("\n\n")[0].splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in lines]
    assert [row[2] for row in cells] == ["model", "model", "source"]
    mine = runs[runs["dataset"] == "many_nodes"]
    for row, model in zip(cells, ("48x8192", "96x12288", None), strict=True):
        same = mine if model is None else mine[mine["model"] == model]
        assert row[3] == str(len(same))
        assert row[4] == f"{same['error_pct'].abs().mean():.1f}"
    assert cells[2][5:] == ["11.0", "[9.0, 13.5]", "-7.5"] and cells[0][6] == "–"


def test_in_sample_is_unknown_rather_than_that_of_other_runs(runs):
    timed = runs[runs["measured_s"].notna()]
    refit = {"kind": "model", "dataset": "many_nodes", "label": "48x8192", "n": 4}
    assert in_sample(timed, refit)["estimate"] > 0
    for odd in ({"n": 3}, {"label": "48 layers, hidden 819"}, {"dataset": "elsewhere"}):
        assert np.isnan(in_sample(timed, refit | odd)["estimate"])
    assert np.isnan(in_sample(None, refit)["estimate"])
    (row,) = refit_table([refit | {"mape_pct": 3.0}], None).to_dict("records")
    assert (row["mape_pct"], row["n"]) == (3.0, 4.0) and np.isnan(row["bias_pct"])


def test_parameters_are_listed_with_unit_prior_fit_interval_and_source(story):
    text = story[2]
    table = rows_of(text[text.index("## Parameters of A100") :], "parameter")
    kernel = table["kernel_s"]
    assert (kernel["unit"], kernel["prior"], kernel["fit"]) == ("µs", "4.00", "5.20")
    assert kernel["told by (share of information)"] == "one_node 0.62; profile 0.31"
    assert table["restart_s"]["told by (share of information)"] == "–"
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
