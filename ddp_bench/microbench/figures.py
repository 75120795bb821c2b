"""The roofline: what operators reach, under what the machine can do (Williams et al. 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ddp_bench.microbench.operators import Operator
from ddp_bench.toolbox import Timed

COLOURS = {"gemm": "#4477aa", "convolution": "#228833", "attention": "#ee6677"}


def draw_roofline(
    measured: Sequence[tuple[Operator, Timed]], peak: float, bandwidth: float, path: Path
) -> None:
    """Rate over intensity; the roof is min(peak [FLOP/s], bandwidth [B/s] * intensity)."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    done = [(o, o.flop / t.median) for o, t in measured if o.flop]
    for kind, colour in COLOURS.items():
        of_kind = [(o.flop / o.bytes, rate) for o, rate in done if o.kind == kind]
        if of_kind:
            x, y = np.array(of_kind).T
            axes.scatter(x, y / 1e9, label=kind, color=colour, s=18)
    intensity = np.geomspace(*_range([o.flop / o.bytes for o, _ in done], peak / bandwidth), 100)
    axes.plot(intensity, np.minimum(peak, bandwidth * intensity) / 1e9, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("intensity [FLOP/B]")
    axes.set_ylabel("rate [GFLOP/s]")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def _range(intensities: Sequence[float], ridge: float) -> tuple[float, float]:
    every = [*intensities, ridge]
    return min(every) / 2, max(every) * 2
