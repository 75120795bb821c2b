"""The fitted cost a + b T + c T2 [ms]: learnt online during a run, and fitted once more after it.

T is the number of tokens computed on (padded: kL; packed: sum of L) and T2 the work of attention
(padded: kL^2; packed: sum of L^2). Least squares on relative errors, so that short and long
micro-batches count alike, under a, c >= 0 and b > 0 (a cost must grow).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import nnls

from ddp_bench.scheduler.costs import CostModel

if TYPE_CHECKING:
    import pandas as pd

WARM_UP = 10  # first steps of a run, in which allocator and caches warm up
FEWEST_ROWS = 20  # that a fit after the run is made to
FIT_COLUMNS = (
    *("arm", "kernels", "steps", "rows"),
    *("a_ms", "b_ms_per_token", "c_ms_per_token_sq"),
)


def fit_coefficients(features: np.ndarray, times_ms: np.ndarray) -> np.ndarray | None:
    """Non-negative (a, b, c) that minimise the squared relative error, or None if b would be 0.

    Args:
        features: [n, 2], T and T2.
        times_ms: [n], positive.
    """
    design = np.column_stack([np.ones(len(features)), features]) / times_ms[:, None]
    scale = design.max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(design / scale, np.ones(len(design)))
    a, b, c = solution / scale
    return np.array([a, b, c]) if b > 0 else None


def cost_fits(merged: pd.DataFrame) -> list[dict]:
    """Rows of cost_fit.csv: the cost of every arm, fitted after the run to all that it measured.

    Padded arms share one fit and packed arms another, because they run other kernels. Each is
    fitted twice: to all steps, and to the even steps after the warm-up, so that the odd steps,
    which draw other samples, can test it. Too few rows give no fit.

    Args:
        merged: all ranks' metrics, as merged_metrics.csv has them.

    Returns:
        Rows with the keys FIT_COLUMNS.
    """
    usable = merged[
        (merged["padded_tokens"] > 0) & (merged["oom_redos"] == 0) & (merged["compute_ms"] > 0)
    ]
    warm = merged["step"].min() + (WARM_UP if merged["step"].nunique() >= 4 * WARM_UP else 0)
    even = usable[(usable["step"] >= warm) & (usable["step"] % 2 == 0)]
    found = []
    for steps, table in (("all", usable), ("even", even)):
        packed = table["arm"].str.startswith("packed")
        for kernels, rows in (("padded", table[~packed]), ("packed", table[packed])):
            fitted = None
            if len(rows) >= FEWEST_ROWS:
                features = rows[["padded_tokens", "attention_tokens_sq"]].to_numpy(float)
                fitted = fit_coefficients(features, rows["compute_ms"].to_numpy())
            if fitted is not None:
                found += [
                    dict(zip(FIT_COLUMNS, (arm, kernels, steps, len(rows), *fitted), strict=True))
                    for arm in rows["arm"].unique()
                ]
    return found


class OnlineFit:
    """Sliding-window fit, the same on every rank when fed the same rows in the same order.

    `errors` are relative errors of predictions made before the measurement was seen.
    """

    def __init__(self, window: int = 800, warmup: int = 40, every: int = 10) -> None:
        self.window = window  # [rows] that a fit is made to, the latest ones
        self.warmup = warmup  # [rows] before the first fit
        self.every = every  # [updates] between fits
        self.rows = np.empty((0, 3))  # T, T2, ms
        self.coefficients: np.ndarray | None = None
        self.error_sum = 0.0
        self.error_count = 0
        self._updates = 0

    def predict(self, features: np.ndarray) -> np.ndarray | None:
        """[n, 2] -> [n] ms, or None before the first fit."""
        if self.coefficients is None:
            return None
        a, b, c = self.coefficients
        return a + features[:, 0] * b + features[:, 1] * c

    def update(self, features: np.ndarray, times_ms: np.ndarray) -> None:
        """Take one step's measurements: [G, 2] and [G]; rows without work or time are left out."""
        keep = (times_ms > 0) & (features[:, 0] > 0)
        features, times_ms = features[keep], times_ms[keep]
        predicted = self.predict(features)
        if predicted is not None and len(times_ms):
            self.error_sum += float(np.abs(predicted / times_ms - 1).sum())
            self.error_count += len(times_ms)
        fresh = np.column_stack([features, times_ms])
        self.rows = np.vstack([self.rows, fresh])[-self.window :]
        self._updates += 1
        if len(self.rows) >= self.warmup and self._updates % self.every == 0:
            fitted = fit_coefficients(self.rows[:, :2], self.rows[:, 2])
            if fitted is not None:
                self.coefficients = fitted

    @property
    def mape_pct(self) -> float | None:
        """Mean absolute relative error of predictions made ahead of time, in per cent."""
        return 100 * self.error_sum / self.error_count if self.error_count else None

    def cost(self, pad_to_multiple_of: int = 1) -> CostModel:
        """The present cost model; plain tokens until there is a fit."""
        if self.coefficients is None:
            return CostModel("tokens", pad_to_multiple_of=pad_to_multiple_of)
        a, b, c = (float(value) for value in self.coefficients)
        return CostModel("fitted", a, b, c, pad_to_multiple_of)

    def state_dict(self) -> dict:
        """Everything needed to go on as if never stopped."""
        return {
            "rows": self.rows.copy(),
            "coefficients": None if self.coefficients is None else self.coefficients.copy(),
            "error": (self.error_sum, self.error_count),
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict) -> None:
        """Undo `state_dict`."""
        self.rows, self.coefficients = state["rows"], state["coefficients"]
        self.error_sum, self.error_count = state["error"]
        self._updates = state["updates"]
