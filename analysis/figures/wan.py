"""Predictions beside real runs over an emulated network."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from analysis.figures.style import line_styles, styled

WAN_COLUMNS = ("condition", "plan", "family", "calibrated_on", "predicted_s", "measured_s")
TICKS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
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
    if "measured_std_s" in runs:  # spread of the steps that a mark stands for
        spread = runs[runs["family"] != "local"]  # whose steps are of two kinds
        bars = {"fmt": "none", "ecolor": "0.35", "elinewidth": 0.8, "capsize": 1.5}
        x, y = spread["measured_s"], spread["predicted_s"]
        axes.errorbar(x, y, xerr=spread["measured_std_s"], **bars)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    ticks = [t for t in TICKS_S if ends[0] <= t <= ends[1]]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_ticks(ticks, [f"{t:g}" for t in ticks])
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


EFFICIENCY_COLUMNS = ("arm", "efficiency", "efficiency_half", "published")
EFFICIENCY_COLUMNS += ("published_low", "published_high", "extrapolated")


@styled
def wan_efficiency(losses: pd.DataFrame, arms: pd.DataFrame) -> Figure:
    """Left: loss of held-out text over tokens, by arm; right: what tokens were worth, beside the
    published fit.

    Args:
        losses: arm, seed, tokens, loss.
        arms: EFFICIENCY_COLUMNS, one row per arm; half widths and bands are of 95 %.

    Raises:
        ValueError: for an empty table.
    """
    if losses.empty or arms.empty:
        raise ValueError("no arms to draw")
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.1, 1.0))
    names = list(dict.fromkeys(losses["arm"]))
    for name, style in zip(names, line_styles(len(names)), strict=True):
        by = losses[losses["arm"] == name].groupby("tokens")["loss"]
        middle, low, high = by.mean(), by.min(), by.max()
        left.plot(middle.index / 1e3, middle, label=name, **{**style, "markersize": 3})
        left.fill_between(middle.index / 1e3, low, high, color=style["color"], alpha=0.12)
    left.set_xlabel("tokens [thousand]")
    left.set_ylabel("loss of held-out text [nats per byte]")
    left.set_title("mean, least and largest of the seeds")
    left.legend(fontsize=7)
    place = np.arange(len(arms))
    center = arms["published"].to_numpy(float)
    reach = [
        np.maximum(center - arms["published_low"], 0.0),
        np.maximum(arms["published_high"] - center, 0.0),
    ]
    half = arms["efficiency_half"].to_numpy(float)
    right.errorbar(
        arms["efficiency"], place - 0.12, xerr=half, fmt="o", color="0.1", label="measured here"
    )
    right.errorbar(center, place + 0.12, xerr=reach, fmt="s", color="0.5", label="published fit")
    right.axvline(1.0, color="0.3", linewidth=0.8)
    right.set_yticks(place, list(arms["arm"]))
    right.set_ylim(len(arms) - 0.5, -0.5)
    right.set_xlabel("token efficiency [share of synchronous training]")
    right.set_title("with 95 % intervals")
    right.legend(loc="best")
    return figure


PROGRESS_COLUMNS = ("scheduler", "t_s", "steps", "along", "measured", "switched")


@styled
def wan_progress(progress: pd.DataFrame) -> Figure:
    """Steps done over time by scheduler: measured, foreseen, and foreseen along the decisions taken.

    Args:
        progress: PROGRESS_COLUMNS.

    Raises:
        ValueError: for an empty table.
    """
    if progress.empty:
        raise ValueError("no progress to draw")
    names = list(dict.fromkeys(progress["scheduler"]))
    figure = Figure(figsize=(3.3 * len(names), 3.6), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(names), sharex=True, sharey=True))
    for axes, name in zip(panels, names, strict=True):
        own = progress[progress["scheduler"] == name]
        axes.plot(own["t_s"], own["measured"], color="0.1", label="measured")
        axes.plot(own["t_s"], own["steps"], color="0.45", linestyle="--", label="foreseen")
        along = {"color": "0.6", "linestyle": ":", "label": "along the decisions taken"}
        axes.plot(own["t_s"], own["along"], **along)
        turned = own[own["switched"].astype(bool)]
        axes.plot(turned["t_s"], turned["steps"], "v", color="0.3", label="foreseen change of plan")
        axes.set_title(name)
        axes.set_xlabel("time [s]")
    panels[0].set_ylabel("training steps done")
    panels[0].legend(loc="upper left", fontsize=7)
    return figure
