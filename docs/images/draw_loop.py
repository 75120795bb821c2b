"""Draw the loop of the project: `python docs/images/draw_loop.py` writes loop.svg and loop.png.

Black on greys alone, so that it prints. Text in the SVG stays text: it can be searched and read out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).parent
# Verb, package, what it does, a command that does it: clockwise from the top left.
STEPS = (
    ("measure", "ddp_bench", "real runs, published and your own", "hippo ddp"),
    ("calibrate", "jaxsim.calibration", "learns a GPU type's efficiency", "hippo calibrate"),
    ("simulate", "jaxsim", "plan + network -> seconds, USD", "jaxsim.step(...)"),
    ("decide", "agents", "Hi-PPO, its rivals, the oracles", "hippo train"),
    ("validate", "experiments", "oracles, rivals, measured runs", "hippo evaluate, validate"),
    ("explain", "analysis", "tables, figures, one report", "hippo report"),
)
WIDTH, HEIGHT = 2.6, 1.35
PLACES = ((0.0, 2.3), (3.7, 2.3), (7.4, 2.3), (7.4, 0.0), (3.7, 0.0), (0.0, 0.0))
# What flows along the arrow that leaves each step.
FLOWS = (
    "step times",
    "efficiencies",
    "a world",
    "plans",
    "tables of a run",
    "what to measure next",
)


def draw() -> Figure:
    """The loop as a figure."""
    with matplotlib.rc_context({"font.family": "sans-serif", "font.size": 10}):
        figure = Figure(figsize=(10.6, 4.1))
        axes = figure.add_axes((0.01, 0.02, 0.98, 0.96))
        axes.set_xlim(-0.15, 10.15)
        axes.set_ylim(-0.15, 3.8)
        axes.set_aspect("equal")
        axes.axis("off")
        for number, (step, (x, y)) in enumerate(zip(STEPS, PLACES, strict=True), start=1):
            _box(axes, number, step, x, y)
        for i, flow in enumerate(FLOWS):
            _arrow(axes, PLACES[i], PLACES[(i + 1) % len(PLACES)], flow)
    return figure


def _box(axes, number: int, step: tuple[str, str, str, str], x: float, y: float) -> None:
    verb, package, does, command = step
    shape = FancyBboxPatch(
        (x, y),
        WIDTH,
        HEIGHT,
        boxstyle="round,pad=0,rounding_size=0.12",
        facecolor="0.94",
        edgecolor="0.2",
        linewidth=1.2,
    )
    axes.add_patch(shape)
    middle = x + WIDTH / 2
    axes.text(
        middle, y + 1.12, f"{number} {verb}", ha="center", va="center", fontsize=13, weight="bold"
    )
    axes.text(middle, y + 0.81, package, ha="center", va="center", fontsize=11, family="monospace")
    axes.text(middle, y + 0.51, does, ha="center", va="center", fontsize=9, color="0.2")
    axes.text(
        middle,
        y + 0.22,
        command,
        ha="center",
        va="center",
        fontsize=9,
        family="monospace",
        color="0.3",
    )


def _arrow(axes, start: tuple[float, float], end: tuple[float, float], flow: str) -> None:
    (x0, y0), (x1, y1) = start, end
    gap = 0.08
    if x0 == x1:  # up or down, from the middle of one box to the middle of the other
        middle = x0 + WIDTH / 2
        down = y1 < y0
        ends = (
            (middle, y0 - gap if down else y0 + HEIGHT + gap),
            (middle, y1 + HEIGHT + gap if down else y1 - gap),
        )
        at, aligned = (middle + 0.12, (ends[0][1] + ends[1][1]) / 2), {"ha": "left", "va": "center"}
    else:
        right = x1 > x0
        level = y0 + HEIGHT / 2
        ends = (
            (x0 + WIDTH + gap if right else x0 - gap, level),
            (x1 - gap if right else x1 + WIDTH + gap, level),
        )
        at, aligned = ((ends[0][0] + ends[1][0]) / 2, level + 0.1), {"ha": "center", "va": "bottom"}
    arrow = FancyArrowPatch(
        *ends,
        arrowstyle="-|>",
        mutation_scale=16,
        linewidth=1.6,
        color="0.15",
        shrinkA=0,
        shrinkB=0,
    )
    axes.add_patch(arrow)
    axes.text(*at, flow, fontsize=8.5, style="italic", color="0.25", **aligned)


def main() -> int:
    """Write both files; the same drawing gives the same bytes under one version of matplotlib."""
    figure = draw()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "loop"}):
        figure.savefig(HERE / "loop.svg", metadata={"Date": None})
    figure.savefig(HERE / "loop.png", dpi=130)
    return 0


if __name__ == "__main__":
    sys.exit(main())
