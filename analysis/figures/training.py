"""Learning curves over policy seeds, of one run or of several side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from analysis.figures.style import line_styles, shades, styled
from analysis.statistics import seed_band

CURVE_COLUMNS = ("seed", "update", "env_steps", "progress_rel")
EVALUATION_COLUMNS = ("seed", "update", "env_steps", "regret_pct")
TIMED_COLUMNS = (*EVALUATION_COLUMNS, "train_s")
_POINTS_SHOWN = 60  # the running mean is as wide as leaves about this many independent points


def common_updates(table: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray]:
    """Curves of all seeds at the updates that every seed reached.

    Returns:
        env_steps [T] (mean over seeds) and values [N seeds, T].

    Raises:
        ValueError: when a seed has an update twice, or the seeds share no update.
    """
    if table.duplicated(["seed", "update"]).any():
        raise ValueError("a seed has the same update twice")
    values = table.pivot(index="seed", columns="update", values=column).dropna(axis=1)
    if values.shape[1] == 0:
        raise ValueError(f"the seeds share no update with a value of {column!r}")
    return _mean_over_seeds(table, "env_steps", values), values.to_numpy(float)


def _mean_over_seeds(table: pd.DataFrame, column: str, values: pd.DataFrame) -> np.ndarray:
    """[T] of `column` at the updates that `values` has as columns."""
    return table.groupby("update")[column].mean()[values.columns].to_numpy(float)


def running_mean(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the last `window` points along the last axis, fewer at the start; [..., T]."""
    total = np.cumsum(values, axis=-1)
    total[..., window:] = total[..., window:] - total[..., :-window]
    return total / np.minimum(np.arange(1, values.shape[-1] + 1), window)


def _draw_curve(axes: Axes, steps: np.ndarray, values: np.ndarray, marker: str | None) -> None:
    """Thin lines of the seeds, the centre and its band."""
    dark, middle, _ = shades(3)
    for i, curve in enumerate(values):
        label = "single seeds" if i == 0 else None
        axes.plot(steps, curve, color="0.6", linewidth=0.7, linestyle=(0, (4, 1)), label=label)
    band = seed_band(values)
    axes.fill_between(steps, band.lo, band.hi, color=middle, alpha=0.25, linewidth=0)
    axes.plot(steps, band.centre, color=dark, linewidth=2.2, marker=marker, label=band.label)
    axes.set_xlabel("environment steps per seed")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)


@styled
def learning_curve(metrics: pd.DataFrame, evaluations: pd.DataFrame | None = None) -> Figure:
    """Progress during training and, where it was evaluated, regret on held-out scenarios.

    Args:
        metrics: CURVE_COLUMNS, one row per seed and update.
        evaluations: EVALUATION_COLUMNS, one row per seed and evaluation.

    Raises:
        ValueError: when the seeds have no update in common.
    """
    panels = 1 if evaluations is None or evaluations.empty else 2
    figure = Figure(figsize=(4.8 * panels, 3.5), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    steps, values = common_updates(metrics, "progress_rel")
    window = max(1, values.shape[1] // _POINTS_SHOWN)
    _draw_curve(axes[0], steps, running_mean(values, window), None)
    axes[0].axhline(
        1.0,
        color="0.3",
        linewidth=1.0,
        linestyle=(0, (1, 2)),
        label="best static plan, steady links",
    )
    smoothed = f", running mean of {window} updates" if window > 1 else ""
    axes[0].set_title(f"Training scenarios{smoothed}")
    axes[0].set_ylabel("progress / best static plan's on steady links")
    if panels == 2:
        _draw_curve(axes[1], *common_updates(evaluations, "regret_pct"), "o")
        axes[1].set_title("Held-out scenarios")
        axes[1].set_ylabel("regret to clairvoyant [%]")
        low, high = axes[1].get_ylim()
        low = min(0.0, low)
        axes[1].set_ylim(low, high + 0.05 * (high - low))  # room above markers far from 0
    for one in axes:
        one.legend(loc="best")
    return figure


@styled
def learning_compared(runs: Mapping[str, pd.DataFrame]) -> Figure:
    """Held-out regret of several training runs, over environment steps and over seconds.

    Args:
        runs: by name TIMED_COLUMNS, one row per seed and evaluation; `train_s` [s] is what its
            epochs had taken.

    Raises:
        ValueError: when the seeds of a run have no update in common, or none after the start.
    """
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for (name, table), style in zip(runs.items(), line_styles(len(runs)), strict=True):
        steps, values = common_updates(table, "regret_pct")
        if not (steps > 0).any():
            raise ValueError(f"{name}: no evaluation after the start")
        whole = table.pivot(index="seed", columns="update", values="regret_pct").dropna(axis=1)
        taken_s = _mean_over_seeds(table, "train_s", whole)
        band, after = seed_band(values), steps > 0
        for axes, x in ((left, steps), (right, taken_s)):
            axes.plot(x[after], band.centre[after], label=f"{name}, {band.label}", **style)
            low, high = band.lo[after], band.hi[after]
            axes.fill_between(x[after], low, high, color=style["color"], alpha=0.2, linewidth=0)
            if not after.all():
                start = {**style, "marker": None, "linewidth": 0.9}
                axes.axhline(band.centre[~after].mean(), label=f"{name}, untrained", **start)
            axes.set_xscale("log")
    left.set_xlabel("environment steps per seed")
    right.set_xlabel("training time of all seeds [s]")
    left.set_ylabel("regret to clairvoyant [%]")
    left.legend(loc="best")
    return figure
