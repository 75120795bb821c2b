"""Predictions beside real runs over an emulated network."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.style import line_styles, styled

WAN_COLUMNS = ("condition", "plan", "family", "calibrated_on", "predicted_s", "measured_s")
BANDS = (0.10, 0.25)  # what errors are held to: their median, their 90th centile


def _errors_pct(table: pd.DataFrame) -> pd.Series:
    return 100.0 * (table["predicted_s"] / table["measured_s"] - 1.0)


@styled
def wan_predictions(runs: pd.DataFrame) -> Figure:
    """Left: predicted over measured step time, by family; right: errors by condition.

    Args:
        runs: WAN_COLUMNS, one row per condition and plan.

    Raises:
        ValueError: for an empty table.
    """
    if runs.empty:
        raise ValueError("no runs to draw")
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.25))
    families = list(dict.fromkeys(runs["family"]))
    styles = dict(zip(families, line_styles(len(families)), strict=True))
    _draw_pairs(left, runs, styles)
    _draw_conditions(right, runs, styles)
    handles, labels = left.get_legend_handles_labels()
    note = "filled: predicted before it was measured; hollow: calibrated on"
    figure.legend(
        handles, labels, loc="outside lower center", ncols=4, title=note, title_fontsize=8
    )
    return figure


def _mark(axes: Axes, x, y, rows: pd.DataFrame, style: dict, label: str | None = None) -> None:
    """Points of one family; those calibrated on are hollow."""
    seen = rows["calibrated_on"].astype(bool).to_numpy()
    shape = {"linestyle": "none", "marker": style["marker"], "color": style["color"]}
    axes.plot(x[~seen], y[~seen], label=label, markersize=5, **shape)
    axes.plot(x[seen], y[seen], markerfacecolor="white", markersize=5, **shape)


def _draw_pairs(axes: Axes, runs: pd.DataFrame, styles: dict[str, dict]) -> None:
    both = runs[["measured_s", "predicted_s"]].to_numpy()
    ends = np.array([both.min() / 1.3, both.max() * 1.3])
    for band, shade in zip(reversed(BANDS), ("0.93", "0.84"), strict=True):
        axes.fill_between(ends, ends * (1 - band), ends * (1 + band), color=shade, linewidth=0)
    axes.plot(ends, ends, color="0.3", linewidth=0.8)
    for family, rows in runs.groupby("family", sort=False):
        x, y = rows["measured_s"].to_numpy(), rows["predicted_s"].to_numpy()
        _mark(axes, x, y, rows, styles[family], str(family).replace("_", " "))
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    axes.set_xlabel("measured step time [s]")
    axes.set_ylabel("predicted step time [s]")
    axes.set_title("grey: ±10 % and ±25 %")


def _draw_conditions(axes: Axes, runs: pd.DataFrame, styles: dict[str, dict]) -> None:
    names = list(dict.fromkeys(runs["condition"]))
    for band, shade in zip(reversed(BANDS), ("0.93", "0.84"), strict=True):
        axes.axvspan(-100 * band, 100 * band, color=shade, linewidth=0)
    axes.axvline(0.0, color="0.3", linewidth=0.8)
    offsets = np.linspace(-0.28, 0.28, len(styles)) if len(styles) > 1 else [0.0]
    for (family, style), offset in zip(styles.items(), offsets, strict=True):
        rows = runs[runs["family"] == family]
        place = rows["condition"].map(names.index).to_numpy(float) + offset
        _mark(axes, _errors_pct(rows).to_numpy(), place, rows, style)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel("predicted - measured [% of measured]")
    axes.set_title("error by condition")
