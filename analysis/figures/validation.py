"""Predicted beside measured: step times and their errors, memory, refits without the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from analysis.figures.style import line_styles, styled
from analysis.statistics import bootstrap_interval

STEP_COLUMNS = (
    "dataset",
    "row_id",
    "measured_s",
    "predicted_s",
    "predicted_lo_s",
    "predicted_hi_s",
    "error_pct",
)
MEMORY_COLUMNS = ("dataset", "row_id", "measured_gib", "predicted_gib")
BAND_PCT = 10.0
_PANELS_PER_ROW = 3
_SAME_POINTS = 0.05  # an error further than this from predicted / measured is another run's
_MANY = 200  # runs in a panel; beyond, markers are small and pale
_BAND = {"facecolor": "0.9", "edgecolor": "none"}
_DIAGONAL = {"color": "0.3", "linewidth": 0.9}
_SPREAD = {"color": "0.55", "linewidth": 0.9}


def compared(runs: pd.DataFrame, measured: str, predicted: str) -> pd.DataFrame:
    """The rows that hold both a measured and a predicted value.

    Raises:
        ValueError: naming the run, when one of the two is not positive.
    """
    rows = runs[runs[measured].notna() & runs[predicted].notna()]
    bad = rows[(rows[measured] <= 0) | (rows[predicted] <= 0)]
    if not bad.empty:
        run = bad.iloc[0]
        raise ValueError(f"run {run['row_id']}: {measured} and {predicted} have to be above 0")
    return rows


def timed_runs(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows with a measured step time.

    Raises:
        ValueError: naming the run, when a time is not positive or the error is not that of the
            predicted against the measured time.
    """
    rows = compared(runs, "measured_s", "predicted_s")
    error = 100 * (rows["predicted_s"] / rows["measured_s"] - 1)
    odd = rows[~((rows["error_pct"] - error).abs() <= _SAME_POINTS)]
    if not odd.empty:
        run = odd.iloc[0]
        raise ValueError(
            f"run {run['row_id']}: error_pct is {run['error_pct']:.2f}, but predicted_s against "
            f"measured_s gives {error[odd.index[0]]:.2f}"
        )
    return rows


def mean_absolute(errors: pd.Series) -> dict[str, float]:
    """Mean of absolute errors with its 95 % bootstrap interval over runs."""
    return bootstrap_interval(errors.abs().to_numpy())


def _dataset_styles(names: Sequence[str]) -> dict[str, dict]:
    """An open marker of its own for every data set."""
    return {
        name: {**style, "linestyle": "none", "markerfacecolor": "none"}
        for name, style in zip(names, line_styles(len(names)), strict=True)
    }


def _equal_log_axes(axes: Axes, values: Sequence[pd.Series]) -> None:
    """The same logarithmic range on both axes of a square panel, with the diagonal and its band."""
    finite = pd.concat(values).dropna()
    lo, hi = finite.min() / 1.25, finite.max() * 1.25
    ends = np.array([lo, hi])
    low, high = (1 + sign * BAND_PCT / 100 for sign in (-1, 1))
    axes.fill_between(ends, low * ends, high * ends, zorder=0.5, **_BAND)
    axes.plot(ends, ends, zorder=0.6, **_DIAGONAL)
    axes.set(xscale="log", yscale="log", xlim=(lo, hi), ylim=(lo, hi))
    ratio = hi / lo
    subs = (1, 1.5, 2, 3, 4, 5, 6, 8) if ratio < 15 else (1, 2, 5) if ratio < 300 else (1,)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    axes.set_box_aspect(1)


def _draw_runs(axes: Axes, rows: pd.DataFrame, style: dict) -> None:
    """Markers, with the interval of the calibration where it is known."""
    x, y = rows["measured_s"], rows["predicted_s"]
    known = rows[["predicted_lo_s", "predicted_hi_s"]].notna().all(axis=1)
    if known.any():  # drawn as it is: the prediction of the best fit need not lie within
        ends = rows.loc[known, ["predicted_lo_s", "predicted_hi_s"]].to_numpy().T
        axes.vlines(x[known], *ends, zorder=1.5, **_SPREAD)
    crowded = {"markersize": 2.5, "markeredgewidth": 0.5, "alpha": 0.6}
    spacious = {"markersize": 4.5, "markeredgewidth": 0.8}
    axes.plot(x, y, zorder=2, **style, **(crowded if len(rows) > _MANY else spacious))
    axes.text(
        0.04,
        0.96,
        f"n = {len(rows)}\nmean abs. error {rows['error_pct'].abs().mean():.1f} %\n"
        f"bias {rows['error_pct'].mean():+.1f} %",
        transform=axes.transAxes,
        va="top",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.5},
    )


def _key(intervals: bool) -> list:
    """Legend entries of the diagonal, the band and, where drawn, the intervals."""
    handles = [
        Line2D([], [], label="predicted = measured", **_DIAGONAL),
        Patch(label=f"±{BAND_PCT:g} %", **_BAND),
    ]
    if intervals:
        tick = {"linestyle": "none", "marker": "|", "markersize": 7, "color": _SPREAD["color"]}
        handles.append(Line2D([], [], label="90 % band", **tick))
    return handles


@styled
def step_times(runs: pd.DataFrame) -> Figure:
    """Predicted against measured step time, one panel per data set, logarithmic axes.

    Args:
        runs: STEP_COLUMNS; runs without a measured step time are left out, bounds may be missing.

    Raises:
        ValueError: when no run has a step time, or a run contradicts itself.
    """
    rows = timed_runs(runs)
    if rows.empty:
        raise ValueError("no run has a measured and a predicted step time")
    names = list(rows["dataset"].unique())
    columns = 2 if len(names) == 4 else min(_PANELS_PER_ROW, len(names))
    lines = -(-len(names) // columns)
    key = 0.4 if columns > 1 else 0.9
    figure = Figure(figsize=(3.1 * columns, 3.2 * lines + key), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, (name, style) in zip(panels, _dataset_styles(names).items(), strict=False):
        mine = rows[rows["dataset"] == name]
        _equal_log_axes(axes, [mine["measured_s"], mine["predicted_s"]])
        _draw_runs(axes, mine, style | {"color": "black"})  # a panel to itself: shape is enough
        axes.set(xlabel="measured step time [s]", ylabel="predicted step time [s]")
        axes.set_title(name)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    bounded = rows[["predicted_lo_s", "predicted_hi_s"]].notna().all(axis=1).any()
    figure.legend(handles=_key(bounded), loc="outside lower center", ncols=3 if columns > 1 else 1)
    return figure


@styled
def peak_memory(runs: pd.DataFrame) -> Figure:
    """Predicted against measured peak memory, one panel, a marker for each data set.

    Args:
        runs: MEMORY_COLUMNS; runs without a measured memory are left out.

    Raises:
        ValueError: when no run has a memory, or one is not positive.
    """
    rows = compared(runs, "measured_gib", "predicted_gib")
    if rows.empty:
        raise ValueError("no run has a measured and a predicted memory")
    figure = Figure(figsize=(7.6, 4.2), layout="compressed")
    axes = figure.subplots()
    _equal_log_axes(axes, [rows["measured_gib"], rows["predicted_gib"]])
    for name, style in _dataset_styles(list(rows["dataset"].unique())).items():
        mine = rows[rows["dataset"] == name]
        error = 100 * (mine["predicted_gib"] / mine["measured_gib"] - 1)
        label = f"{name}, n = {len(mine)}\nmean abs. error {error.abs().mean():.1f} %"
        label += f", bias {error.mean():+.1f} %"
        axes.plot(mine["measured_gib"], mine["predicted_gib"], label=label, **style)
    drawn, _ = axes.get_legend_handles_labels()
    figure.legend(handles=[*drawn, *_key(False)], loc="outside right upper")
    axes.set_xlabel("measured peak memory [GiB]")
    axes.set_ylabel("predicted peak memory [GiB]")
    return figure


def _draw_errors(axes: Axes, rows: pd.DataFrame, names: Sequence[str]) -> None:
    """Every run's signed error as a tick, and their quartiles as a box above the ticks."""
    for row, name in enumerate(names):
        errors = rows.loc[rows["dataset"] == name, "error_pct"].to_numpy()
        alpha = 0.25 if len(errors) > _MANY else 0.8
        ticks = {"marker": "|", "markersize": 6, "linestyle": "none", "color": "0.35"}
        axes.plot(errors, np.full(len(errors), row + 0.28), alpha=alpha, **ticks)
        axes.boxplot(
            [errors],
            positions=[row - 0.1],
            widths=0.4,
            orientation="horizontal",
            whis=(5, 95),
            showfliers=False,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": "0.85", "edgecolor": "0.25"},
            medianprops={"color": "black", "linewidth": 1.8},
        )
    axes.axvspan(-BAND_PCT, BAND_PCT, zorder=0.4, facecolor="0.95", edgecolor="none")
    axes.axvline(0, zorder=0.5, **_DIAGONAL)
    axes.set_xlabel("error of the step time [%]")
    axes.set_title("Every run, quartiles and 5 % to 95 %")


def _draw_peers(axes: Axes, names: Sequence[str], peers: Mapping[str, Mapping]) -> None:
    """Published errors of other simulators, below ours, one open marker for each of them."""
    who = list(dict.fromkeys(peer for name in names for peer in peers.get(name, {})))
    for peer, style in zip(who, line_styles(len(who)), strict=True):
        known = [
            (row + 0.16, peers[name][peer]) for row, name in enumerate(names) if peer in peers[name]
        ]
        rows, errors = zip(*known, strict=True)
        marker = {**style, "linestyle": "none", "markerfacecolor": "white", "markersize": 6}
        axes.plot(errors, rows, label=f"{peer}, published", **marker)


@styled
def step_errors(
    runs: pd.DataFrame, peers: Mapping[str, Mapping[str, float]] | None = None
) -> Figure:
    """Errors of the step time by data set: their distribution, and their mean beside peers'.

    Args:
        runs: STEP_COLUMNS; runs without a measured step time are left out.
        peers: data set -> simulator -> mean absolute error that was published of it [%].

    Raises:
        ValueError: when no run has a step time, or a run contradicts itself.
    """
    rows = timed_runs(runs)
    if rows.empty:
        raise ValueError("no run has a measured and a predicted step time")
    names = list(rows["dataset"].unique())
    known = {name: (peers or {}).get(name) or {} for name in names}
    figure = Figure(figsize=(9.6, 1.6 + 0.55 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.4, 1))
    _draw_errors(left, rows, names)
    _draw_peers(right, names, known)
    for row, name in enumerate(names):
        found = mean_absolute(rows.loc[rows["dataset"] == name, "error_pct"])
        value, lo, hi = (found[key] for key in ("estimate", "lo", "hi"))
        error = None if np.isnan(lo) else [[max(value - lo, 0.0)], [max(hi - value, 0.0)]]
        label = "this simulator, 95 % interval" if row == 0 else None
        mark = {"marker": "D", "color": "black", "markersize": 6, "linestyle": "none"}
        right.errorbar(value, row - 0.12, xerr=error, label=label, zorder=3, **mark)
    right.set_xlabel("mean absolute error of the step time [%]")
    right.set_xlim(left=0)
    right.set_title("Mean, beside published errors")
    left.set_yticks(
        range(len(names)), [f"{name}\nn = {(rows['dataset'] == name).sum()}" for name in names]
    )
    left.set_ylim(len(names) - 0.5, -0.5)
    for axes in (left, right):
        axes.grid(axis="y", visible=False)
    right.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=4)
    return figure
