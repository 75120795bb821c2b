"""Schedulers side by side: progress with intervals, and what the reward is made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis.figures.style import ORACLES, fill_styles, role_marker, styled
from analysis.statistics import Interval, bootstrap_interval, scenario_matrix

COMPARISON_COLUMNS = ("scheduler", "policy_seed", "scenario", "progress_rel")
REWARD_PARTS = {  # column: (symbol, sign of its weight in the reward)
    "reward_eff": (r"$R_\mathrm{eff}$, efficiency", 1.0),
    "reward_util": (r"$R_\mathrm{util}$, utilisation", 1.0),
    "reward_cost": (r"$R_\mathrm{cost}$, egress / GPUs", -1.0),
    "reward_fair": (r"$R_\mathrm{fair}$, load variance", -1.0),
}
REWARD_PLOT_COLUMNS = ("scheduler", "policy_seed", "scenario", "reward", *REWARD_PARTS)
# The zoom shows those that reach this share of the best one's progress.
_ZOOM_FROM = 0.85


def learned_schedulers(scenarios: pd.DataFrame) -> list[str]:
    """Schedulers that have policy seeds."""
    return list(scenarios.loc[scenarios["policy_seed"].notna(), "scheduler"].unique())


def ranked_intervals(scenarios: pd.DataFrame, column: str) -> dict[str, Interval]:
    """Mean and 95 % interval of a column for each scheduler, best mean first."""
    found = {
        name: bootstrap_interval(scenario_matrix(scenarios, name, column).to_numpy())
        for name in scenarios["scheduler"].unique()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]["estimate"]))


def _draw_intervals(
    axes: Axes, intervals: dict[str, Interval], learned: Sequence[str], scale: float = 1.0
) -> None:
    """A dot with its interval in each row, first row on top."""
    for row, (name, interval) in enumerate(intervals.items()):
        value, lo, hi = (scale * interval[key] for key in ("estimate", "lo", "hi"))
        error = None if np.isnan(lo) else [[max(value - lo, 0.0)], [max(hi - value, 0.0)]]
        axes.errorbar(value, row, xerr=error, linewidth=1.6, zorder=3, **role_marker(name, learned))


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _draw_scenarios(axes: Axes, scenarios: pd.DataFrame, names: Sequence[str]) -> None:
    """Every scenario as a pale tick under its scheduler's dot (mean over policy seeds)."""
    for row, name in enumerate(names):
        values = 100 * scenario_matrix(scenarios, name, "progress_rel").mean(axis=1)
        axes.plot(values, np.full(len(values), row + 0.28), "|", color="0.55", markersize=4)


def _zoom(axes: Axes, scenarios: pd.DataFrame, names: Sequence[str]) -> None:
    """Limit a panel to the first rows, `names`, with nearly all of their scenarios in sight."""
    _draw_scenarios(axes, scenarios, names)
    shown = scenarios[scenarios["scheduler"].isin(names)].groupby("scheduler")["progress_rel"]
    lowest, highest = 100 * shown.quantile(0.05).min(), 100 * max(1.0, shown.max().max())
    margin = 0.04 * (highest - lowest)
    axes.set_xlim(lowest - margin, highest + margin)
    axes.set_title(f"The first {len(names)}, enlarged")
    axes.tick_params(axis="y", length=0)


def _legend_roles(figure: Figure, names: Sequence[str], learned: Sequence[str]) -> None:
    roles = {
        "learned": [name for name in names if name in learned],
        "oracle (sees the truth)": [n for n in names if n in ORACLES and n not in learned],
        "rival": [name for name in names if name not in learned and name not in ORACLES],
    }
    handles = [
        Line2D([], [], label=role, linestyle="", **role_marker(members[0], learned))
        for role, members in roles.items()
        if members
    ]
    handles.append(Line2D([], [], label="one scenario", linestyle="", marker="|", color="0.55"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


@styled
def schedulers_compared(scenarios: pd.DataFrame, learned: Sequence[str] | None = None) -> Figure:
    """Progress relative to clairvoyant, mean and 95 % interval, best on top.

    Where the schedulers lie far apart a second panel zooms in on the best ones.

    Args:
        scenarios: COMPARISON_COLUMNS.
        learned: names to mark as learned; None marks those with policy seeds.

    Raises:
        ValueError: when a scheduler lacks a scenario or policy seed that it has elsewhere.
    """
    learned = learned_schedulers(scenarios) if learned is None else learned
    intervals = ranked_intervals(scenarios, "progress_rel")
    names = list(intervals)
    estimates = np.array([interval["estimate"] for interval in intervals.values()])
    close = estimates >= _ZOOM_FROM * estimates[0]
    zoomed = bool(close.sum() >= 2 and not close.all())
    figure = Figure(figsize=(9.0 if zoomed else 6.0, 1.5 + 0.36 * len(names)), layout="constrained")
    axes = figure.subplots(1, 1 + zoomed, sharey=True, squeeze=False)[0]
    _draw_scenarios(axes[0], scenarios, names)
    for one in axes:
        _draw_intervals(one, intervals, learned, scale=100)
        one.axvline(100, color="0.3", linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
        one.grid(axis="y", visible=False)
        one.set_xlabel("progress / clairvoyant's [%]")
    _name_rows(axes[0], names)
    axes[0].set_title(f"Mean and 95 % interval, {scenarios['scenario'].nunique()} scenarios")
    if zoomed:
        _zoom(axes[1], scenarios, [name for name, shown in zip(names, close, strict=True) if shown])
    _legend_roles(figure, names, learned)
    return figure


def weighted_parts(
    scenarios: pd.DataFrame, weights: Sequence[float] | None, tolerance: float = 1e-3
) -> pd.DataFrame | None:
    """What each part adds to the reward, one column per part; None where that is unknown.

    `weights` are believed only if the weighted parts add up to the reward in every row.
    """
    if weights is None or len(weights) != len(REWARD_PARTS):
        return None
    signed = [
        sign * weight for (_, sign), weight in zip(REWARD_PARTS.values(), weights, strict=True)
    ]
    contributions = scenarios[list(REWARD_PARTS)] * signed
    miss = (contributions.sum(axis=1) - scenarios["reward"]).abs()
    return contributions if (miss <= tolerance * (1 + scenarios["reward"].abs())).all() else None


def _draw_stack(axes: Axes, contributions: pd.DataFrame, names: Sequence[str]) -> None:
    """Diverging bars: positive parts to the right of zero, negative ones to the left."""
    means = contributions.groupby("scheduler").mean().loc[list(names)]
    ends = {1: np.zeros(len(names)), -1: np.zeros(len(names))}
    for column, style in zip(REWARD_PARTS, fill_styles(len(REWARD_PARTS)), strict=True):
        values = means[column].to_numpy()
        if not values.any():
            continue
        start = np.where(values >= 0, ends[1], ends[-1])
        label = REWARD_PARTS[column][0]
        axes.barh(range(len(names)), values, left=start, height=0.62, label=label, **style)
        for sign in ends:
            ends[sign] = ends[sign] + np.where(np.sign(values) == sign, values, 0.0)
    axes.axvline(0, color="0.2", linewidth=0.8)


@styled
def reward_parts(
    scenarios: pd.DataFrame,
    weights: Sequence[float] | None = None,
    learned: Sequence[str] | None = None,
) -> Figure:
    """The reward and its parts per scheduler, with 95 % intervals, highest reward on top.

    The first panel stacks what each part adds to the reward (weight times part), where the weights
    are known and explain the reward; the others show the parts themselves, unweighted.

    Args:
        scenarios: REWARD_PLOT_COLUMNS.
        weights: (w1, w2, w3, w4) of R = w1 R_eff + w2 R_util - w3 R_cost - w4 R_fair.
        learned: names to mark as learned; None marks those with policy seeds.
    """
    learned = learned_schedulers(scenarios) if learned is None else learned
    totals = ranked_intervals(scenarios, "reward")
    names = list(totals)
    figure = Figure(figsize=(13.0, 1.6 + 0.36 * len(names)), layout="constrained")
    axes = figure.subplots(1, 1 + len(REWARD_PARTS), sharey=True, width_ratios=[1.8, 1, 1, 1, 1])
    contributions = weighted_parts(scenarios, weights)
    if contributions is not None:
        _draw_stack(axes[0], contributions.assign(scheduler=scenarios["scheduler"]), names)
        figure.legend(loc="outside lower center", ncols=len(REWARD_PARTS))
    _draw_intervals(axes[0], totals, learned)
    _name_rows(axes[0], names)
    axes[0].grid(axis="y", visible=False)
    axes[0].set_title("Reward, marker = total" if contributions is not None else "Reward, total")
    axes[0].set_xlabel("reward (dimensionless)")
    for panel, (column, (symbol, sign)) in zip(axes[1:], REWARD_PARTS.items(), strict=True):
        intervals = ranked_intervals(scenarios, column)
        _draw_intervals(panel, {name: intervals[name] for name in names}, learned)
        panel.set_title(symbol)
        panel.set_xlabel("unweighted, " + ("higher" if sign > 0 else "lower") + " is better")
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.tick_params(axis="y", length=0)
        panel.grid(axis="y", visible=False)
    return figure
