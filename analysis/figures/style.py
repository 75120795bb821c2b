"""One look for every figure: readable in grey, distinguished by shape first and by colour second."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec

import matplotlib
import numpy as np
from matplotlib.figure import Figure

ORACLES = ("replan_oracle", "clairvoyant")
RC = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.0,
    "hatch.linewidth": 0.7,
    "errorbar.capsize": 2.5,
    "figure.dpi": 100.0,
    "savefig.dpi": 150.0,
}
_DASHES = ((0, ()), (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (9, 2)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
_HATCHES = ("", "////", "....", "xxxx", "----", "\\\\\\\\", "++++", "oo", "||||", "**")
MOVING_HATCH = "////////"  # denser than any fill's: a plan being moved into

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw under RC without touching the caller's settings.

    Figures are made from `matplotlib.figure.Figure`, never through pyplot: no backend is chosen,
    no window opens, nothing stays in a global list, and a notebook still displays what it gets.
    """

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(RC):
            return draw(*args, **kwargs)

    return wrapped


def save(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG (or as what the suffix says)."""
    with matplotlib.rc_context(RC):
        figure.savefig(path)
    return path


def shades(
    count: int, name: str = "viridis", lightest: float = 0.8
) -> list[tuple[float, float, float]]:
    """`count` colours from dark to light with equal steps of lightness (the map's own promise).

    A line's lightest fifth of the map is left out: it is hard to see on white.
    """
    positions = np.linspace(0.0, lightest, count) if count > 1 else [0.0] * count
    return [matplotlib.colormaps[name](position)[:3] for position in positions]


def line_styles(count: int) -> list[dict]:
    """Line styles that differ in dash and marker, whatever the colour: at most 50.

    Raises:
        ValueError: for more than dashes and markers distinguish.
    """
    allowed = len(_DASHES) * len(_MARKERS)
    if count > allowed:
        raise ValueError(f"{count} lines; at most {allowed} are distinguishable")
    return [
        {
            "color": color,
            "linestyle": _DASHES[i % len(_DASHES)],
            "marker": _MARKERS[(i + i // len(_MARKERS)) % len(_MARKERS)],
        }
        for i, color in enumerate(shades(count))
    ]


def fill_styles(count: int) -> list[dict]:
    """Fill styles for bars and bands that differ in hatch, whatever the colour: at most 10.

    Raises:
        ValueError: for more than there are hatches.
    """
    if count > len(_HATCHES):
        raise ValueError(f"{count} fills; at most {len(_HATCHES)} are distinguishable")
    colours = np.array(shades(count, "cividis", 1.0)) * 0.6 + 0.4  # pale: text is written on them
    return [
        {"facecolor": tuple(colour), "hatch": hatch, "edgecolor": "0.25", "linewidth": 0.5}
        for colour, hatch in zip(colours, _HATCHES, strict=False)
    ]


def role_marker(scheduler: str, learned: Sequence[str]) -> dict:
    """The marker of a scheduler's role: learned, oracle (sees the truth) or rival."""
    if scheduler in learned:
        return {"marker": "D", "color": "black", "markerfacecolor": "black", "markersize": 6}
    if scheduler in ORACLES:
        return {"marker": "s", "color": "0.2", "markerfacecolor": "white"}
    return {"marker": "o", "color": "0.2", "markerfacecolor": "0.8"}


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of an RGB colour, 0 (black) to 1 (white), as grey print shows it."""
    rgb = np.asarray(colour[:3], float)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
