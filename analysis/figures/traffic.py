"""Where the bytes go: WAN traffic per directed link."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures.style import luminance, styled

TRAFFIC_COLUMNS = ("scheduler", "src", "dst", "wan_gb_per_step")
COLOUR_MAP = "YlGnBu"  # pale at zero, and darker with every step
_PANELS_PER_ROW = 3
_ANNOTATED_UP_TO = 12  # domains; beyond that the numbers would not fit their cells


def traffic_matrix(traffic: pd.DataFrame, scheduler: str, domains: Sequence[str]) -> np.ndarray:
    """WAN GB per step from row to column, [K, K]; NaN where no such link is recorded.

    Raises:
        ValueError: when a link occurs twice.
    """
    rows = traffic[traffic["scheduler"] == scheduler]
    if rows.duplicated(["src", "dst"]).any():
        raise ValueError(f"traffic of {scheduler!r} has a link twice")
    wide = rows.pivot(index="src", columns="dst", values="wan_gb_per_step")
    matrix = wide.reindex(index=domains, columns=domains).to_numpy(float, copy=True)
    np.fill_diagonal(matrix, np.nan)
    return matrix


def cell_text(value: float) -> str:
    """Two significant digits in at most four characters; a trace of traffic is not called zero."""
    if value == 0:
        return "0"
    if value < 0.01:
        return "<.01"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _annotate(axes: Axes, matrix: np.ndarray, mesh: matplotlib.cm.ScalarMappable) -> None:
    size = 8.5 if len(matrix) <= 6 else 6.5
    for (row, column), value in np.ndenumerate(matrix):
        if np.isfinite(value):
            dark = luminance(mesh.to_rgba(value)) < 0.35
            colour = "0.6" if value == 0 else "white" if dark else "black"
            axes.text(
                column, row, cell_text(value), ha="center", va="center", color=colour, fontsize=size
            )


@styled
def traffic_map(traffic: pd.DataFrame, schedulers: Sequence[str] | None = None) -> Figure:
    """WAN traffic from source (row) to destination (column), one panel per scheduler, one scale.

    Args:
        traffic: TRAFFIC_COLUMNS, one row per scheduler and directed link.
        schedulers: those to show; None shows all.

    Raises:
        ValueError: for a scheduler without traffic rows, or a link that occurs twice.
    """
    present = list(traffic["scheduler"].unique())
    schedulers = present if schedulers is None else list(schedulers)
    unknown = [name for name in schedulers if name not in present]
    if unknown:
        raise ValueError(f"no traffic of {unknown}; present are {present}")
    domains = list(pd.unique(pd.concat([traffic["src"], traffic["dst"]])))
    matrices = [traffic_matrix(traffic, name, domains) for name in schedulers]
    highest = max((np.nanmax(m, initial=0.0) for m in matrices), default=0.0) or 1.0
    columns = 2 if len(schedulers) == 4 else min(_PANELS_PER_ROW, len(schedulers))
    rows = -(-len(schedulers) // columns)
    side = min(0.4 + 0.45 * len(domains), 5.0)
    names = 0.075 * max(len(str(domain)) for domain in domains)
    size = (columns * side + names + 1.3, rows * (side + 0.5) + 0.7 * names + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    colours = matplotlib.colormaps[COLOUR_MAP].with_extremes(bad=(0, 0, 0, 0))
    for axes, name, matrix in zip(panels, schedulers, matrices, strict=False):
        mesh = axes.imshow(matrix, cmap=colours, vmin=0.0, vmax=highest)
        if len(domains) <= _ANNOTATED_UP_TO:
            _annotate(axes, matrix, mesh)
        axes.set_title(f"{name}\ntotal {np.nansum(matrix):.3g} GB per step")
        axes.set_xticks(
            range(len(domains)), domains, rotation=45, ha="right", rotation_mode="anchor"
        )
        axes.set_yticks(range(len(domains)), domains)
        axes.grid(visible=False)
        axes.patch.set(hatch="////", edgecolor="0.85")  # shows where there is no link
    for axes in panels[len(schedulers) :]:
        axes.set_visible(False)
    figure.supxlabel("destination", fontsize=9)
    figure.supylabel("source", fontsize=9)
    figure.colorbar(mesh, ax=panels.tolist(), label="WAN traffic [GB per step]", shrink=0.8)
    return figure
