"""One episode on a time axis: what the links did, what was decided, what came of it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.figures.style import MOVING_HATCH, fill_styles, line_styles, styled

TIMELINE_COLUMNS = ("scheduler", "t_s", "step_s", "progress_rate", "in_transition", "plan")
LINK_COLUMNS = ("t_s", "src", "dst", "bandwidth_gbps")
MEASURES = {"step_s": "step time [s]", "progress_rate": "progress [training steps/s]"}
_LINKS_NAMED = 5
_PLANS_NAMED = 9
_OTHER = "other plans"
_UNNAMED = {"facecolor": "white", "edgecolor": "0.25", "linewidth": 0.5}
_MOVING = {**_UNNAMED, "hatch": MOVING_HATCH}
_LOG_FROM = 15.0  # step times further apart than this need a logarithmic axis


def time_axis(longest_s: float) -> tuple[float, str]:
    """Seconds per unit, and the unit, for an episode of that length."""
    return (3600.0, "h") if longest_s >= 2 * 3600 else (60.0, "min")


def interval_s(times: pd.Series) -> float:
    """Length [s] of a decision interval: the median distance between the times of one scheduler."""
    distinct = np.unique(times)
    return float(np.median(np.diff(distinct))) if len(distinct) > 1 else 1.0


def runs_of_equal(values: Iterable) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of every stretch of equal neighbours."""
    first = 0
    for _, stretch in itertools.groupby(values):
        end = first + sum(1 for _ in stretch)
        yield first, end
        first = end


def _draw_links(axes: Axes, links: pd.DataFrame, unit: float) -> None:
    """The links that move most are named; the others stay in the background."""
    wide = links.pivot_table(index="t_s", columns=["src", "dst"], values="bandwidth_gbps")
    movement = (wide.std() / wide.mean()).sort_values(ascending=False)
    named = list(movement.index[:_LINKS_NAMED])
    times = wide.index.to_numpy() / unit
    every = max(1, len(times) // 12)
    for i, (pair, style) in enumerate(zip(named, line_styles(len(named)), strict=True)):
        offset = (i * every // max(1, len(named)), every)
        label = f"{pair[0]} → {pair[1]}"
        axes.step(times, wide[pair], where="post", label=label, markevery=offset, **style)
    rest = [pair for pair in wide.columns if pair not in named]
    for i, pair in enumerate(rest):
        label = f"{len(rest)} steadier links" if i == 0 else None
        style = {"color": "0.8", "linewidth": 0.7, "zorder": 1}
        axes.step(times, wide[pair], where="post", label=label, **style)
    axes.set_ylabel("link bandwidth\n[Gbit/s]")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0))


def plan_letters(timeline: pd.DataFrame) -> dict[str, str]:
    """Letters A, B, ... for the plans in force longest; a plan without a letter is an 'other'."""
    often = timeline["plan"].value_counts()
    return {plan: chr(ord("A") + i) for i, plan in enumerate(often.index[:_PLANS_NAMED])}


def _plan_key(timeline: pd.DataFrame) -> list[Patch]:
    """Legend entries of the plans, wrapped between domains; plans without a letter share one."""
    letters = plan_letters(timeline)
    handles = []
    for (plan, letter), style in zip(letters.items(), fill_styles(len(letters)), strict=True):
        breakable = f"{letter}: {plan}".replace(">", " > ")
        lines = textwrap.wrap(breakable, 36, break_on_hyphens=False, subsequent_indent="    ")
        handles.append(
            Patch(label="\n".join(lines).replace(" > ", ">").replace(" >", ">"), **style)
        )
    if timeline["plan"].nunique() > len(letters):
        handles.append(Patch(label=_OTHER, **_UNNAMED))
    if timeline["in_transition"].any():
        handles.append(Patch(label="moving (no progress)", **_MOVING))
    return handles


def _draw_decisions(
    axes: Axes, timeline: pd.DataFrame, schedulers: Sequence[str], unit: float
) -> None:
    """One band per scheduler: its plan in force, hatched while moving to it."""
    letters = plan_letters(timeline)
    styles = dict(zip(letters, fill_styles(len(letters)), strict=True))
    length = interval_s(timeline["t_s"]) / unit
    span = (timeline["t_s"].max() - timeline["t_s"].min()) / unit + length
    for row, name in enumerate(schedulers):
        rows = timeline[timeline["scheduler"] == name].sort_values("t_s")
        start = rows["t_s"].to_numpy() / unit
        for first, end in runs_of_equal(zip(rows["plan"], rows["in_transition"], strict=True)):
            plan, moving = rows["plan"].iloc[first], rows["in_transition"].iloc[first]
            width = start[end - 1] + length - start[first]
            style = _MOVING if moving else styles.get(plan, _UNNAMED)
            axes.barh(row, width, left=start[first], height=0.7, **style)
            if not moving and width > 0.025 * span:
                letter = letters.get(plan, "·")
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
                middle = start[first] + width / 2
                axes.text(middle, row, letter, ha="center", va="center", fontsize=8, bbox=box)
    axes.set_yticks(range(len(schedulers)), schedulers)
    axes.set_ylim(len(schedulers) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_ylabel("plan in force")
    beside = {"loc": "upper left", "bbox_to_anchor": (1.005, 1.0)}
    axes.legend(handles=_plan_key(timeline), handlelength=2.5, **beside)


def _draw_measure(
    axes: Axes, timeline: pd.DataFrame, schedulers: Sequence[str], measure: str, unit: float
) -> None:
    """The outcome of each scheduler; a step time has a gap while there are no steps."""
    for name, style in zip(schedulers, line_styles(len(schedulers)), strict=True):
        rows = timeline[timeline["scheduler"] == name].sort_values("t_s")
        values = rows[measure].to_numpy(float)
        if measure == "step_s":
            values = np.where(rows["in_transition"], np.nan, values)
        every = max(1, len(values) // 12)
        axes.step(rows["t_s"] / unit, values, where="post", label=name, markevery=every, **style)
    finite = np.array([line.get_ydata() for line in axes.lines], float)
    finite = finite[np.isfinite(finite) & (finite > 0)]
    if measure == "step_s" and finite.size and finite.max() > _LOG_FROM * finite.min():
        axes.set_yscale("log")
    axes.set_ylabel(MEASURES[measure])
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0))


@styled
def episode_timeline(
    timeline: pd.DataFrame,
    links: pd.DataFrame,
    schedulers: Sequence[str] | None = None,
    measure: str = "step_s",
) -> Figure:
    """Link bandwidths, plans in force and step time (or progress) of one episode, one time axis.

    Args:
        timeline: TIMELINE_COLUMNS, one row per scheduler and decision interval.
        links: LINK_COLUMNS, one row per directed link and decision interval.
        schedulers: those to show, top to bottom; None shows all.
        measure: a key of MEASURES for the lowest panel.

    Raises:
        ValueError: for a scheduler that is not in the timeline or an unknown measure.
    """
    present = list(timeline["scheduler"].unique())
    schedulers = present if schedulers is None else list(schedulers)
    unknown = [name for name in schedulers if name not in present]
    if unknown:
        raise ValueError(f"no timeline of {unknown}; present are {present}")
    if measure not in MEASURES:
        raise ValueError(f"measure is {measure!r}; allowed are {', '.join(MEASURES)}")
    shown = timeline[timeline["scheduler"].isin(schedulers)]
    end = shown["t_s"].max() + interval_s(shown["t_s"])
    unit, name = time_axis(end - shown["t_s"].min())
    key_lines = sum(1 + patch.get_label().count("\n") for patch in _plan_key(shown))
    decisions = max(0.7 + 0.35 * len(schedulers), 0.4 + 0.175 * key_lines)  # [inches]
    figure = Figure(figsize=(11.0, 5.0 + decisions), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True, height_ratios=[2.1, decisions, 2.1])
    _draw_links(axes[0], links, unit)
    _draw_decisions(axes[1], shown, schedulers, unit)
    _draw_measure(axes[2], shown, schedulers, measure, unit)
    axes[2].set_xlabel(f"time [{name}]")
    axes[2].set_xlim(shown["t_s"].min() / unit, end / unit)
    return figure
