"""How links move, measured and modelled; and how well their next bandwidth is predicted."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.style import line_styles, styled

MOVEMENT_COLUMNS = ("source", "value", "lo", "hi")
PREDICTION_COLUMNS = ("predictor", "horizon_s", "error_pct", "lo", "hi")
MEASURED = "measured"
_WIDE_PCT = 30.0


def _sources(table: pd.DataFrame) -> list[str]:
    """The processes of a table, in its order."""
    return [name for name in table["source"].unique() if name != MEASURED]


def _of(table: pd.DataFrame, source: str) -> pd.DataFrame:
    rows = table[table["source"] == source]
    if rows.empty:
        raise ValueError(f"no rows of the source {source!r}")
    return rows


def _band(axes: Axes, at: pd.Series, rows: pd.DataFrame, label: str) -> None:
    axes.fill_between(at, rows["lo"], rows["hi"], color="0.85", linewidth=0, label=label)


@styled
def fitted_quantiles(quantiles: pd.DataFrame) -> Figure:
    """Quantiles of every process against those measured, one panel each, symmetric log axes.

    Args:
        quantiles: MOVEMENT_COLUMNS and `level`; value, lo and hi are deviations [%].

    Raises:
        ValueError: when nothing was measured.
    """
    measured, names = _of(quantiles, MEASURED), _sources(quantiles)
    figure = Figure(figsize=(2.2 * len(names) + 0.4, 2.9), layout="constrained")
    panels = figure.subplots(1, len(names), sharex=True, sharey=True, squeeze=False)[0]
    x = measured["value"].to_numpy()
    limits = 1.1 * np.abs(quantiles[["lo", "hi"]].to_numpy()).max()
    for axes, name in zip(panels, names, strict=True):
        rows = _of(quantiles, name)
        axes.plot([-limits, limits], [-limits, limits], color="0.4", linewidth=0.8)
        across = np.array([x - measured["lo"], measured["hi"] - x]).clip(min=0.0)
        y = rows["value"].to_numpy()
        up = np.array([y - rows["lo"], rows["hi"] - y]).clip(min=0.0)
        style = {"color": "0.6", "ecolor": "0.75", "elinewidth": 0.8, "capsize": 0}
        axes.errorbar(x, y, yerr=up, xerr=across, linestyle="none", **style)
        axes.plot(x, y, color="black", marker="o", markersize=3, linestyle="none")
        for wall in (-_WIDE_PCT, _WIDE_PCT):
            axes.axvline(wall, color="0.7", linestyle=(0, (2, 2)), linewidth=0.8)
        axes.set_title(name)
        axes.set_xscale("symlog", linthresh=5)
        axes.set_yscale("symlog", linthresh=5)
        ticks = [-100, -30, -10, 0, 10, 30, 100]
        axes.set_xticks(ticks, [f"{t:+d}" if t else "0" for t in ticks], rotation=90)
        axes.set_yticks(ticks, [f"{t:+d}" if t else "0" for t in ticks])
        axes.minorticks_off()
        axes.set_xlim(-limits, limits)
        axes.set_ylim(-limits, limits)
    panels[0].set_ylabel("process: deviation from\nthe path's median [%]")
    figure.supxlabel("measured: deviation from the path's median [%]", fontsize=9)
    return figure


@styled
def fitted_memory(memory: pd.DataFrame, outside: pd.DataFrame) -> Figure:
    """Autocorrelation by lag, and the share of intervals outside +-30 %, measured and modelled.

    Args:
        memory: MOVEMENT_COLUMNS and `lag_s` [s]; rank autocorrelation, all paths together.
        outside: MOVEMENT_COLUMNS and `path`; value, lo and hi are shares [%].

    Raises:
        ValueError: when nothing was measured.
    """
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.3))
    measured, names = _of(memory, MEASURED), _sources(memory)
    _band(left, measured["lag_s"], measured, "measured, 95 %")
    left.plot(measured["lag_s"], measured["value"], color="black", linewidth=2.2, label=MEASURED)
    for name, style in zip(names, line_styles(len(names)), strict=True):
        rows = _of(memory, name)
        left.plot(rows["lag_s"], rows["value"], label=name, **style)
    left.axhline(0.0, color="0.4", linewidth=0.8)
    left.set_xlabel("lag [s]")
    left.set_ylabel("rank autocorrelation, all paths")
    left.legend(ncols=2)
    shares = _of(outside, MEASURED).sort_values("value", ascending=False)
    place = np.arange(len(shares))
    spread = np.array([shares["value"] - shares["lo"], shares["hi"] - shares["value"]]).clip(0.0)
    bar = {"facecolor": "0.9", "edgecolor": "0.25", "hatch": "////", "linewidth": 0.5}
    caps = {"ecolor": "0.25", "error_kw": {"elinewidth": 0.9}}
    right.bar(place, shares["value"], yerr=spread, width=0.8, label="measured, 95 %", **bar, **caps)
    for name, style in zip(names, line_styles(len(names)), strict=True):
        rows = _of(outside, name).set_index("path").loc[shares["path"], "value"]
        plain = {**style, "linestyle": "none"}
        right.plot(place, rows, label=name, markeredgecolor="white", markeredgewidth=0.4, **plain)
    right.set_xticks(place, [str(i + 1) for i in place])
    right.set_xlabel("measured path, in order of this share")
    right.set_ylabel("share of intervals outside ±30 % [%]")
    right.set_ylim(bottom=0)
    right.legend(ncols=2)
    return figure


@styled
def prediction_errors(errors: pd.DataFrame, reference: str) -> Figure:
    """Error of every predictor by horizon, and by how much each beats a reference one.

    Args:
        errors: PREDICTION_COLUMNS and gain_pct, gain_lo, gain_hi (share of the reference's error
            that a predictor saves, [%]); intervals are 95 %.
        reference: name of the predictor that the others are compared with.
    """
    figure = Figure(figsize=(9.6, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(errors["predictor"].unique())
    width = 0.6 * np.diff(np.unique(errors["horizon_s"])).min() / len(names)
    for i, (name, style) in enumerate(zip(names, line_styles(len(names)), strict=True)):
        rows = errors[errors["predictor"] == name]
        at = rows["horizon_s"] + (i - (len(names) - 1) / 2) * width
        for axes, value, low, high in (
            (left, "error_pct", "lo", "hi"),
            (right, "gain_pct", "gain_lo", "gain_hi"),
        ):
            if axes is right and name == reference:
                continue
            spread = np.array([rows[value] - rows[low], rows[high] - rows[value]]).clip(0.0)
            axes.errorbar(at, rows[value], yerr=spread, elinewidth=0.8, label=name, **style)
    left.set_ylabel("mean absolute error [% of the path's median]")
    left.set_ylim(bottom=0)
    right.set_ylabel(f"error saved against {reference} [%]")
    right.axhline(0.0, color="0.3", linewidth=1.0)
    for axes in (left, right):
        axes.set_xlabel("horizon [s]")
    left.legend(ncols=2)
    return figure
