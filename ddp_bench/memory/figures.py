"""Memory over a training step as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ddp_bench.memory.replay import Replayed
from ddp_bench.memory.step import PHASES
from ddp_bench.memory.trace import Trace

COLOURS = {
    "parameters": "#4477aa",
    "optimizer": "#66ccee",
    "gradients": "#228833",
    "activations": "#ccbb44",
    "temporaries": "#ee6677",
    "batch": "#bbbbbb",
}


def draw_timeline(trace: Trace, path: Path) -> None:
    """What is alive after every allocation and release, by kind; lines where a phase begins."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    kinds = trace.live_by_kind()
    order = [kind for kind in COLOURS if kind in kinds]
    values = np.array([kinds[kind] for kind in order]) / 1e6
    axes.stackplot(
        np.arange(values.shape[1]), values, labels=order, colors=[COLOURS[k] for k in order]
    )
    for at, name in trace.marks:
        if name in PHASES:
            axes.axvline(at, color="black", linewidth=0.6)
            axes.text(at, axes.get_ylim()[1], f" {name}", va="top", fontsize=8)
    axes.set_xlabel("allocations and releases")
    axes.set_ylabel("memory [MB]")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path, dpi=120)


def draw_replays(trace: Trace, replays: Mapping[str, Replayed], path: Path) -> None:
    """What every policy took from the device, above what was alive."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(np.arange(len(trace.events)), np.array(trace.live()) / 1e6, color="#dddddd")
    for name, replayed in replays.items():
        label = f"{name} ({100 * replayed.fragmentation:.0f} %)"
        axes.plot(np.array(replayed.timeline) / 1e6, label=label)
    axes.set_xlabel("allocations and releases")
    axes.set_ylabel("memory [MB]; grey: alive")
    axes.legend(title="fragmentation", frameon=False)
    figure.savefig(path, dpi=120)
