"""Errors of groups of runs that a fit did without: beside those as calibrated, beside a closed
form's, and against distance."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.style import fill_styles, line_styles, styled

LEFT_OUT_COLUMNS = (
    "dataset",
    "label",
    "n",
    "mape_pct",
    "bias_pct",
    "in_sample_pct",
    "in_sample_lo",
    "in_sample_hi",
)
GROUP_COLUMNS = ("kind", "dataset", "label", "n", "mape_pct", "baseline_pct")
DISTANCE_COLUMNS = ("kind", "dataset", "row_id", "distance", "error_pct")
_WORST_PCT = 100.0  # errors beyond it are drawn at it


@styled
def left_out_errors(refits: pd.DataFrame) -> Figure:
    """Mean absolute error on runs as calibrated, and after a refit without them, in pairs.

    Args:
        refits: LEFT_OUT_COLUMNS, errors in per cent, and `kind`, what was left out, where there are
            several; a missing value or bound is not drawn.
    """
    figure = Figure(figsize=(7.6, 1.3 + 0.62 * len(refits)), layout="constrained")
    axes = figure.subplots()
    rows = np.arange(len(refits))
    known = refits["in_sample_pct"].to_numpy(float)
    ends = refits[["in_sample_lo", "in_sample_hi"]].to_numpy(float).T
    whiskers = {
        "xerr": np.array([known - ends[0], ends[1] - known]).clip(min=0.0),
        "ecolor": "0.2",
        "error_kw": {"elinewidth": 1.0},
    }
    upper, lower = fill_styles(2)
    label = "calibration of this run"
    axes.barh(rows - 0.18, known, height=0.34, label=label, **upper, **whiskers)
    label = "refitted without these runs"
    axes.barh(rows + 0.18, refits["mape_pct"].to_numpy(float), height=0.34, label=label, **lower)
    tips = refits[["in_sample_pct", "in_sample_hi", "mape_pct"]].max(axis=1)
    for row, (tip, n, bias) in enumerate(zip(tips, refits["n"], refits["bias_pct"], strict=True)):
        said = f" n = {n:.0f}" + ("" if pd.isna(bias) else f", left-out bias {bias:+.1f} %")
        axes.text(0.0 if pd.isna(tip) else tip, row, said, va="center", fontsize=8)
    names = refits["dataset"] + "\n" + refits["label"]
    if "kind" in refits:
        names = names + ", by " + refits["kind"]
    axes.set_yticks(rows, names)
    axes.set_ylim(len(refits) - 0.4, -0.6)
    axes.set_xlim(0, 1.4 * max(np.nanmax(tips, initial=0.0), 1e-9))
    axes.set_xlabel("mean absolute error of the step time [%]")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def left_out_baselines(groups: pd.DataFrame) -> Figure:
    """Mean absolute error of left-out groups by data set, beside the closed form's.

    Args:
        groups: GROUP_COLUMNS, a row per data set, GPU type and kind of group; errors in per cent.

    Raises:
        ValueError: when there is no group.
    """
    if groups.empty:
        raise ValueError("no group was left out")
    parts = groups.assign(
        ours=groups["n"] * groups["mape_pct"], theirs=groups["n"] * groups["baseline_pct"]
    )
    sums = parts.groupby(["kind", "dataset"], sort=False)[["n", "ours", "theirs"]].sum()
    sums = sums.sort_index()
    figure = Figure(figsize=(7.6, 1.2 + 0.34 * len(sums)), layout="constrained")
    axes = figure.subplots()
    rows = np.arange(len(sums))
    bars = (("ours", "simulator"), ("theirs", "FLOPs / peak x one constant per GPU type"))
    for i, ((column, label), style) in enumerate(zip(bars, fill_styles(2), strict=True)):
        value = (sums[column] / sums["n"]).clip(upper=_WORST_PCT)
        axes.barh(rows + (i - 0.5) * 0.36, value, height=0.34, label=label, **style)
    axes.set_yticks(rows, [f"{dataset}, by {kind}" for kind, dataset in sums.index])
    axes.set_ylim(len(sums) - 0.4, -0.6)
    axes.set_xlabel(f"mean absolute error of the step time, left out [%], at most {_WORST_PCT:g}")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
def error_by_distance(rows: pd.DataFrame) -> Figure:
    """Error of every left-out run against how far it lies outside the calibrated domain.

    Args:
        rows: DISTANCE_COLUMNS; distance in doublings, NaN for a stack left out as a whole.

    Raises:
        ValueError: when there is no run.
    """
    if rows.empty:
        raise ValueError("no run was left out")
    far = rows["distance"].fillna(rows["distance"].max() + 2.0)
    figure = Figure(figsize=(7.6, 4.0), layout="constrained")
    axes = figure.subplots()
    names = list(rows["dataset"].unique())
    for name, style in zip(names, line_styles(len(names)), strict=True):
        mine = rows["dataset"] == name
        error = rows.loc[mine, "error_pct"].clip(-_WORST_PCT, _WORST_PCT)
        shape = {**style, "linestyle": "none", "markerfacecolor": "none"}
        axes.plot(far[mine], error, label=name, markersize=3.5, alpha=0.5, **shape)
    bins = np.unique(np.floor(far))
    median = [rows.loc[np.floor(far) == b, "error_pct"].abs().median() for b in bins]
    line = {"color": "black", "linewidth": 1.2, "drawstyle": "steps-post"}
    for sign, label in ((1.0, "median of the absolute errors"), (-1.0, None)):
        axes.plot(bins, sign * np.array(median), label=label, **line)
    axes.axhline(0.0, color="0.3", linewidth=0.8)
    axes.set_xlabel("doublings outside the calibrated domain (rightmost: whole stack left out)")
    axes.set_ylabel("error of the step time [%]")
    figure.legend(loc="outside lower center", ncols=4)
    return figure
