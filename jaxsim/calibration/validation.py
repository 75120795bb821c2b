"""How well predictions agree with measured runs: the figures of merit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import scipy

from jaxsim.calibration.measured import (
    GIB,
    MeasuredRun,
    predict_runs,
    published_split_gib,
    run_arrays,
)
from jaxsim.cluster import Calibration


class Prediction(NamedTuple):
    """One run beside what the simulator says; NaN where nothing was measured."""

    run: MeasuredRun
    step_s: float
    memory_gib: float
    split_gib: tuple[float, float]  # state, activations of the layers
    fits: bool = True  # in the GPUs' memory, says the simulator

    @property
    def step_error(self) -> float:
        """Relative error of the step time."""
        return self.step_s / self.run.step_s - 1.0 if self.run.step_s else np.nan

    @property
    def memory_errors(self) -> list[float]:
        """Relative errors of whatever memory was published of the run."""
        run = self.run
        pairs = [
            (self.memory_gib, run.peak_memory_gib),
            (self.split_gib[0], run.state_gib),
            (self.split_gib[1], run.activation_gib),
        ]
        return [predicted / measured - 1.0 for predicted, measured in pairs if measured]


def predict(
    runs: Sequence[MeasuredRun], calibration_of: Callable[[str, str], Calibration]
) -> list[Prediction]:
    """Predictions of all runs, each under the calibration of its GPU type and stack, in the runs'
    order."""
    found: dict[int, Prediction] = {}
    for gpu, stack in dict.fromkeys((r.gpu, r.stack) for r in runs):
        places = [i for i, r in enumerate(runs) if (r.gpu, r.stack) == (gpu, stack)]
        mine = [runs[i] for i in places]
        calibration = calibration_of(gpu, stack)
        cost = predict_runs(run_arrays(mine), calibration)
        steps = np.asarray(cost.total_s, np.float64)
        memory = np.asarray(cost.memory_gb, np.float64)[:, 0] * 1e9 / GIB
        fits = np.asarray(cost.fits)
        split = published_split_gib(mine, calibration)
        for row, place in enumerate(places):
            figures = (float(steps[row]), float(memory[row]), tuple(split[row]), bool(fits[row]))
            found[place] = Prediction(runs[place], *figures)
    return [found[i] for i in range(len(runs))]


def merit(predictions: Sequence[Prediction]) -> dict[str, float | int | None]:
    """The figures of merit of one data set; None where nothing of the kind was measured.

    n: runs with a step time; mape_pct, median_ape_pct, bias_pct: mean absolute, median absolute and
    mean signed relative error; kendall_tau: rank agreement within groups of runs of one model, mean
    weighted by pairs; choice_regret_pct: mean over groups of runs that differ only in the plan of
    how much slower the plan that the predictions choose is than the fastest; memory_mape_pct; unfit:
    how many of the n are said not to fit their GPUs' memory, although they ran.
    """
    timed = [p for p in predictions if p.run.step_s]
    errors = np.array([p.step_error for p in timed])
    memory = np.array([abs(e) for p in predictions for e in p.memory_errors])

    def mean(values, scale=100.0):
        return float(scale * np.mean(values)) if len(values) else None

    return {
        "n": len(timed),
        "mape_pct": mean(np.abs(errors)),
        "median_ape_pct": float(100 * np.median(np.abs(errors))) if len(errors) else None,
        "bias_pct": mean(errors),
        "kendall_tau": _kendall(timed),
        "choice_regret_pct": mean([_regret(g) for g in _groups(timed, lambda r: r.choice_key)]),
        "memory_mape_pct": mean(memory),
        "unfit": sum(not p.fits for p in timed),
    }


def _groups(predictions: Iterable[Prediction], key: Callable) -> list[list[Prediction]]:
    """Predictions by the key of their run, groups of at least two."""
    by_key: dict = {}
    for p in predictions:
        by_key.setdefault(key(p.run), []).append(p)
    return [g for g in by_key.values() if len(g) > 1]


def _regret(group: list[Prediction]) -> float:
    chosen = min(group, key=lambda p: p.step_s)
    return chosen.run.step_s / min(p.run.step_s for p in group) - 1.0  # pyright: ignore[reportArgumentType]


def _kendall(timed: Sequence[Prediction]) -> float | None:
    taus, weights = [], []
    for group in _groups(timed, lambda r: r.model_key):
        tau = scipy.stats.kendalltau(
            [p.step_s for p in group], [p.run.step_s for p in group]
        ).statistic  # pyright: ignore[reportAttributeAccessIssue]
        if np.isfinite(tau):
            taus.append(tau)
            weights.append(len(group) * (len(group) - 1) / 2)
    return float(np.average(taus, weights=weights)) if taus else None
