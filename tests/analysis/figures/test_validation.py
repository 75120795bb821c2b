"""Figures of validations and calibrations show the numbers recorded."""

import numpy as np
import pandas as pd
import pytest
from helpers import synthetic_validation as synthetic
from matplotlib.colors import to_rgba

from analysis import figures
from analysis.figures.calibration import by_identification
from analysis.figures.left_out import LEFT_OUT_COLUMNS
from analysis.statistics.bootstrap import bootstrap_interval

SMALL = synthetic.SMALL


@pytest.fixture(scope="module")
def runs():
    return synthetic.runs(SMALL)


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
    np.testing.assert_allclose(known.errorbar.lines[2][0].get_segments()[0][:, 0], [3.0, 6.0])
    assert new.errorbar is None
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
