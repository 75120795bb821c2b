"""Where the closed form of a pipeline's time stops holding, measured by the event-exact one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.style import line_styles, styled

FIDELITY_COLUMNS = ("sweep", "schedule", "x", "ratio")
SWEEPS = {
    "latency": "one-way latency / stage time",
    "jitter": "jitter of the links inside the step: ± share of their bandwidth",
}
_TOLERANCE = 0.02  # the two forms agree within this where the closed form's assumptions hold


def _draw(axes: Axes, table: pd.DataFrame, schedules: Sequence[str]) -> None:
    """Median and 90 % band of the ratio over x, one line per schedule."""
    for style, name in zip(line_styles(len(schedules)), schedules, strict=True):
        groups = table[table["schedule"] == name].groupby("x")["ratio"]
        x = np.array(sorted(groups.groups), float)
        low, middle, high = (groups.quantile(q).sort_index().to_numpy() for q in (0.05, 0.5, 0.95))
        axes.plot(x, middle, label=name, **style)
        axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)
    axes.axhspan(1 - _TOLERANCE, 1 + _TOLERANCE, color="0.85", zorder=0)
    axes.axhline(1.0, color="0.3", linewidth=0.8)


@styled
def closed_against_event(ratios: pd.DataFrame, setting: str = "") -> Figure:
    """Closed form / event-exact step time, one panel per sweep.

    Args:
        ratios: FIDELITY_COLUMNS, one row per simulated step; `sweep` is a key of SWEEPS.
        setting: what all steps have in common, for the title.

    Raises:
        ValueError: for an unknown sweep or an empty table.
    """
    present = list(ratios["sweep"].unique())
    unknown = [name for name in present if name not in SWEEPS]
    if unknown or not present:
        raise ValueError(f"sweeps {unknown or present}; expected some of {list(SWEEPS)}")
    schedules = list(ratios["schedule"].unique())
    figure = Figure(figsize=(4.6 * len(present) + 0.4, 3.9), layout="constrained")
    panels = figure.subplots(1, len(present), sharey=True, squeeze=False)[0]
    for axes, sweep in zip(panels, present, strict=True):
        part = ratios[ratios["sweep"] == sweep]
        _draw(axes, part, schedules)
        axes.set_xlabel(SWEEPS[sweep])
        if sweep == "latency":
            axes.set_xscale("log")
        axes.set_title(sweep)
    panels[0].set_ylabel("closed form / event-exact step time")
    handles, labels = panels[0].get_legend_handles_labels()
    note = "median, band 5-95 % of random steps; grey: ±2 %"
    figure.legend(
        handles, labels, loc="outside lower center", ncols=3, title=note, title_fontsize=8
    )
    if setting:
        figure.suptitle(setting, fontsize=9.5, x=0.01, ha="left")
    return figure
