"""Figures of a data-parallel run: who is slowest, how far ranks are apart, what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.style import fill_styles, line_styles, shades, styled
from analysis.statistics import first_step, p95, per_step

WINDOW = 15  # steps of the rolling median


def _order(table: pd.DataFrame) -> list[str]:
    """Arms from slow to fast."""
    return list(table.mean().sort_values(ascending=False).index)


def _boxes(axes: Axes, columns: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Horizontal boxes: quartiles, whiskers from the 5th to the 95th centile, mean as a diamond."""
    drawn = axes.boxplot(
        columns,
        orientation="horizontal",
        whis=(5, 95),
        showfliers=False,
        showmeans=True,
        patch_artist=True,
        widths=0.6,
        medianprops={"color": "black", "linewidth": 1.4},
        meanprops={"marker": "D", "markerfacecolor": "white", "markeredgecolor": "black"},
    )
    styles = fill_styles(min(len(columns), 10))
    for index, box in enumerate(drawn["boxes"]):
        box.set(**styles[index % len(styles)])
    axes.set_yticks(range(1, len(names) + 1), names)
    axes.invert_yaxis()


@styled
def max_step_time(merged: pd.DataFrame) -> Figure:
    """Slowest rank's compute time by step: rolling median per arm, quartile band."""
    table = per_step(merged, "compute_ms")
    names = _order(table)
    figure = Figure(figsize=(8.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, style in zip(names, line_styles(len(names)), strict=True):
        values = table[name].dropna()
        rolling = values.rolling(WINDOW, center=True, min_periods=5)
        axes.fill_between(
            values.index,
            rolling.quantile(0.25),
            rolling.quantile(0.75),
            color=style["color"],
            alpha=0.15,
            linewidth=0,
        )
        axes.plot(
            rolling.median(), label=name, markevery=max(1, len(values) // 9), markersize=4, **style
        )
    axes.set(xlabel="step", ylabel="compute time of the slowest rank [ms]", ylim=(0, None))
    axes.set_title(f"Slowest rank by step (median over {WINDOW} steps, band: quartiles)")
    figure.legend(loc="outside right upper", handlelength=3.5)
    return figure


@styled
def spread(merged: pd.DataFrame, column: str, label: str, title: str, note: str = "") -> Figure:
    """Distribution over steps of a column's standard deviation across ranks, per arm."""
    table = per_step(merged, column, "std")
    figure = Figure(figsize=(6.8, 1.6 + 0.32 * merged["arm"].nunique()), layout="constrained")
    axes = figure.subplots()
    names = _order(per_step(merged, "compute_ms"))
    if table.empty or table.isna().all(axis=None):
        _instead(axes, "not measured on this device\n(null in the records, not zero)")
        axes.set(xlabel=label, xticks=[], yticks=[])
    else:
        _boxes(axes, [table[name].dropna().to_numpy() for name in names], names)
        axes.set(xlabel=label, xlim=(0, None))
    axes.set_title(title)
    if note:
        figure.supxlabel(note, fontsize=7.5)
    return figure


def _instead(axes: Axes, text: str) -> None:
    """Words in the middle of axes that have nothing to show."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)


@styled
def distribution(merged: pd.DataFrame) -> Figure:
    """Empirical distribution of the slowest rank's compute time, P95 marked."""
    table = per_step(merged, "compute_ms")
    names = _order(table)
    figure = Figure(figsize=(8.2, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, style in zip(names, line_styles(len(names)), strict=True):
        values = np.sort(table[name].dropna().to_numpy())
        share = np.arange(1, len(values) + 1) / len(values)
        axes.plot(
            values,
            share,
            color=style["color"],
            linestyle=style["linestyle"],
            label=f"{name} (P95 {p95(values):.0f} ms)",
        )
        axes.plot(p95(values), 0.95, linestyle="", marker=style["marker"], color=style["color"])
    axes.axhline(0.95, color="0.6", linewidth=0.8)
    axes.set(xlabel="compute time of the slowest rank [ms]", ylabel="share of steps")
    axes.set_ylim(0, 1.01)
    axes.set_title("Step-time distribution; markers at the 95th percentile")
    figure.legend(loc="outside right upper", handlelength=3.5)
    return figure


@styled
def predicted_against_measured(late: pd.DataFrame, quality: dict) -> Figure:
    """Predicted against measured compute time per rank and step, on steps not fitted."""
    figure = Figure(figsize=(5.6, 4.6), layout="constrained")
    axes = figure.subplots()
    colours = shades(max(len(quality), 2), lightest=0.6)
    rng = np.random.default_rng(0)
    top = 0.0
    for name, marker, colour in zip(quality, cycle("ox+s"), colours, strict=False):
        rows = late[late["cost_group"] == name]
        shown = rows.iloc[rng.permutation(len(rows))[:2000]]
        label = f"{name} (mean abs. error {quality[name]['mape_pct']:.1f} %)"
        axes.plot(
            shown["predicted_cost_ms"],
            shown["compute_ms"],
            linestyle="",
            marker=marker,
            markersize=3,
            alpha=0.45,
            color=colour,
            markeredgewidth=0.6,
            label=label,
        )
        top = max(top, rows["compute_ms"].quantile(0.999), rows["predicted_cost_ms"].max())
    axes.set(xlabel=r"predicted $a + b\,kL + c\,kL^2$ [ms]", ylabel="measured compute time [ms]")
    axes.set_title("Fitted cost, on steps it has not seen")
    if top:
        axes.plot([0, top], [0, top], color="black", linewidth=0.9, label="equal")
        axes.set(xlim=(0, top * 1.03), ylim=(0, top * 1.03))
        axes.legend(loc="upper left")
    else:
        _instead(axes, "too few steps to fit a cost")
        axes.set(xticks=[], yticks=[])
    return figure


def draw_all(merged: pd.DataFrame, late: pd.DataFrame, quality: dict) -> dict[str, Figure]:
    """Every figure of a run by file stem."""
    skipped = first_step(merged) - int(merged["step"].min())
    note = f"first {skipped} steps left out" if skipped else ""
    std, apart = "standard deviation across ranks", "how far ranks are apart"
    return {
        "max_step_time": max_step_time(merged),
        "compute_spread": spread(
            merged, "compute_ms", f"{std} [ms]", f"Compute time: {apart}", note
        ),
        "padded_tokens_spread": spread(
            merged, "padded_tokens", f"{std} [tokens]", f"Padded tokens: {apart}", note
        ),
        "peak_memory_spread": spread(
            merged, "peak_mem_mb", f"{std} [MB]", f"Peak memory: {apart}", note
        ),
        "step_time_distribution": distribution(merged),
        "predicted_cost": predicted_against_measured(late, quality),
        "wall_time_spread": spread(
            merged,
            "step_time_ms",
            f"{std} [ms]",
            f"Wall step time: {apart} (says nothing)",
            "The gradient sum makes all ranks finish together, whatever their load.",
        ),
    }
