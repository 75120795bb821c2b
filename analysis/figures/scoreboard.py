"""Scoreboards: the key figures against their targets, and the regret of every scene of a suite."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures.style import role_marker, styled

KPI_COLUMNS = (
    "scheduler",
    "name",
    "part",
    "rival",
    "value",
    "lo",
    "hi",
    "target",
    "unit",
    "headroom",
    "status",
)
SCENE_COLUMNS = (
    "scene",
    "scheduler",
    "headroom_pct",
    "regret_pct",
    "regret_lo_pct",
    "regret_hi_pct",
    "bound_pct",
    "n_scenarios",
)
FRONT_COLUMNS = ("cluster", "scheduler", "step_s", "wan_gb_per_mtoken", "usd_per_mtoken")
_SUBJECTS = (  # the policy and the best that is not learned, one above the other in each row
    {"marker": "D", "color": "black", "markersize": 6},
    {"marker": "o", "color": "0.3", "markerfacecolor": "0.8"},
)
_FRONT = {"marker": "o", "color": "0.75", "markersize": 9, "markeredgecolor": "0.4"}
_SETTLED = tuple(  # small marks, so that those at one place are seen beside each other
    {"marker": marker, "color": shade, "markerfacecolor": "none", "markersize": size}
    for marker, shade, size in (
        *(("D", "black", 5), ("s", "0.2", 7), ("^", "0.1", 6), ("v", "0.3", 6), ("x", "black", 6)),
        *(("+", "0.1", 8), ("1", "0.2", 8), ("2", "0.2", 8), ("<", "0.3", 6), (">", "0.3", 6)),
    )
)
_BEST = {"marker": "s", "color": "0.2", "markerfacecolor": "white", "markersize": 7}
_TARGET = {"color": "0.2", "linewidth": 1.3, "linestyle": (0, (4, 1.5))}
_MEANING = {  # of the values on a panel's axis
    "training time": "time saved",
    "utilisation": "relative rise",
    "WAN cost": "saved per trained token",
    "Pareto coverage": "share of the front",
    "decision latency": "99th percentile",
    "jitter robustness": "throughput lost",
    "hierarchical response": "99th percentile",
    "load stability": "share of the intervals",
}
_COLUMNS = 4
_WIDE = 30.0  # a panel whose values span more than this factor gets a logarithmic axis


@styled
def key_figures(kpis: pd.DataFrame) -> Figure:
    """A panel for each KPI, a row for each rival or part: values with 95 % intervals, the target
    and what the best possible reaches.

    Args:
        kpis: KPI_COLUMNS, at most two schedulers, those first met first.

    Raises:
        ValueError: for more schedulers than have distinct styles.
    """
    schedulers = list(kpis["scheduler"].unique())
    if len(schedulers) > len(_SUBJECTS):
        raise ValueError(f"{len(schedulers)} schedulers; at most {len(_SUBJECTS)} can be drawn")
    names = list(kpis["name"].unique())
    rows = -(-len(names) // _COLUMNS)
    figure = Figure(figsize=(14.0, 0.9 + 2.3 * rows), layout="constrained")
    panels = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        _draw_kpi(axes, kpis[kpis["name"] == name], schedulers)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    handles = [
        Line2D([], [], linestyle="", label=label, **style)
        for label, style in zip(schedulers, _SUBJECTS, strict=False)
    ]
    handles.append(Line2D([], [], linestyle="", label="best possible", **_BEST))
    handles.append(Line2D([], [], label="target", **_TARGET))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _draw_kpi(axes: Axes, rows: pd.DataFrame, schedulers: Sequence[str]) -> None:
    labels = list(dict.fromkeys(_label(row) for row in rows.itertuples()))
    place = {label: i for i, label in enumerate(labels)}
    numbers = rows[["value", "target", "headroom"]].to_numpy(float)
    numbers = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    if rows["unit"].iloc[0] != "%" and len(numbers) and numbers.max() > _WIDE * numbers.min():
        axes.set_xscale("log")
    for row in rows.itertuples():
        y, which = place[_label(row)], schedulers.index(row.scheduler)
        axes.plot([row.target] * 2, [y - 0.45, y + 0.45], zorder=1, **_TARGET)
        if which == 0 and np.isfinite(row.headroom):
            axes.plot(row.headroom, y, linestyle="", zorder=2, **_BEST)
        if np.isfinite(row.value):
            error = [[max(row.value - row.lo, 0.0)], [max(row.hi - row.value, 0.0)]]
            error = None if np.isnan(row.lo) else error
            shift = 0.0 if len(schedulers) == 1 else 0.3 * which - 0.15
            axes.errorbar(row.value, y + shift, xerr=error, zorder=3, **_SUBJECTS[which])
    _note_missing(axes, rows, place)
    unit = rows["unit"].iloc[0]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_title(rows["name"].iloc[0])
    axes.set_xlabel(f"{_MEANING.get(rows['name'].iloc[0], 'value')} [{unit}]")
    axes.grid(axis="y", visible=False)


def _note_missing(axes: Axes, rows: pd.DataFrame, place: dict[str, int]) -> None:
    """Say where nothing was measured for anybody."""
    known = {_label(row) for row in rows.itertuples() if np.isfinite(row.value)}
    for label, y in place.items():
        if label not in known:
            axes.annotate(
                "not measured",
                (0.02, y),
                xycoords=("axes fraction", "data"),
                va="center",
                color="0.4",
                fontsize=7.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.0},
            )


def _label(row) -> str:
    parts = [text for text in (row.part, row.rival) if isinstance(text, str) and text]
    return "\n".join(parts)


@styled
def trade_offs(fronts: pd.DataFrame) -> Figure:
    """A column for each cluster: price and WAN bytes of a token over the time of a step, of the plans
    on the front and of those in which schedulers settle.

    Args:
        fronts: FRONT_COLUMNS; `scheduler` is "front" for the plans on it.
    """
    clusters = list(fronts["cluster"].unique())
    figure = Figure(figsize=(1.2 + 5.2 * len(clusters), 6.6), layout="constrained")
    panels = figure.subplots(2, len(clusters), squeeze=False, sharex="col")
    names = [name for name in fronts["scheduler"].unique() if name != "front"]
    upright = {"usd_per_mtoken": "USD per million tokens"}
    upright |= {"wan_gb_per_mtoken": "WAN [GB] per million tokens"}
    for column, cluster in enumerate(clusters):
        own = fronts[fronts["cluster"] == cluster]
        for axes, (key, label) in zip(panels[:, column], upright.items(), strict=True):
            front = own[own["scheduler"] == "front"].sort_values("step_s")
            axes.plot(front["step_s"], front[key], linestyle="", label="front", **_FRONT)
            for name, style in zip(names, itertools.cycle(_SETTLED), strict=False):
                points = own[own["scheduler"] == name]
                axes.plot(points["step_s"], points[key], linestyle="", label=name, **style)
            axes.set_ylabel(label)
        panels[0, column].set_title(str(cluster))
        panels[0, column].set_yscale("log")
        panels[1, column].set_yscale("symlog", linthresh=0.1)
        panels[1, column].set_ylim(-0.03, 2.0 * max(own["wan_gb_per_mtoken"].max(), 0.1))
        panels[1, column].set_xscale("log")
        panels[1, column].set_xlabel("time of a step, efficiency included [s]")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5))
    return figure


@styled
def suite_regrets(scenes: pd.DataFrame, learned: Sequence[str] = ()) -> Figure:
    """A panel for each scene: regret of every scheduler with its paired 95 % interval.

    Args:
        scenes: SCENE_COLUMNS; a scheduler need not be in every scene.
        learned: names to mark as learned.
    """
    names = list(scenes["scene"].unique())
    mean = scenes.groupby("scheduler")["regret_pct"].mean()
    order = [str(name) for name in mean.sort_values(na_position="last").index]
    rows = -(-len(names) // _COLUMNS)
    columns = min(len(names), _COLUMNS)
    size = (2.0 + 2.9 * columns, 0.9 + rows * (0.8 + 0.24 * len(order)))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes, name in zip(panels, names, strict=False):
        of_scene = scenes[scenes["scene"] == name]
        for row in of_scene[of_scene["regret_pct"].notna()].itertuples():
            low = max(row.regret_pct - row.regret_lo_pct, 0.0)
            high = max(row.regret_hi_pct - row.regret_pct, 0.0)
            error = None if np.isnan(low) else [[low], [high]]
            marker = role_marker(row.scheduler, learned)
            axes.errorbar(row.regret_pct, order.index(row.scheduler), xerr=error, **marker)
        axes.set_title(name)
        axes.set_xlabel("regret to clairvoyant [%]")
        axes.grid(axis="y", visible=False)
        axes.axvline(0, color="0.3", linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)
    panels[0].set_yticks(range(len(order)), order)
    panels[0].set_ylim(len(order) - 0.5, -0.5)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    return figure
