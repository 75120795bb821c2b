"""Seconds of a collective from its size.

R^2 says little here: sizes span decades and the largest decides it. So relative errors are
minimised, and judged on sizes that were left out. No single form fits every kind and machine: a
line (latency + size / rate) where links are the limit, a curve in logarithms where caches and the
number of threads are. Which form is used is decided without the size that it is judged on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

SMALLEST = 64 * 1024  # [B]; below, a message's time is that of the scheduler of threads


@dataclass(frozen=True)
class CollectiveModel:
    """Seconds of a message.

    Attributes:
        form: line or curve.
        coefficients: line: latency [s], seconds per byte [s/B]; curve: of the polynomial of the
            logarithm of seconds in the logarithm of bytes, highest power first.
    """

    form: str
    coefficients: tuple[float, ...]

    def seconds(self, size: float) -> float:
        """Of a message of `size` bytes."""
        if self.form == "line":
            latency, per_byte = self.coefficients
            return latency + per_byte * size
        return float(np.exp(np.polyval(self.coefficients, np.log(size))))


def _line(sizes: np.ndarray, seconds: np.ndarray) -> CollectiveModel:
    # Least relative error: every row divided by what was measured. Neither term is negative.
    rows = np.stack([np.ones_like(sizes), sizes], 1) / seconds[:, None]
    scale = rows.max(axis=0)
    found, _ = nnls(rows / scale, np.ones_like(sizes))
    return CollectiveModel("line", tuple(float(x) for x in found / scale))


def _curve(degree: int) -> Callable[[np.ndarray, np.ndarray], CollectiveModel]:
    def fit(sizes: np.ndarray, seconds: np.ndarray) -> CollectiveModel:
        found = np.polyfit(np.log(sizes), np.log(seconds), min(degree, len(sizes) - 1))
        return CollectiveModel("curve", tuple(float(x) for x in found))

    return fit


FORMS = {"line": _line, "power": _curve(1), "bend": _curve(2), "wave": _curve(3)}
Fit = Callable[[np.ndarray, np.ndarray], CollectiveModel]


def _errors_without(fit: Fit, sizes: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Relative error on every size, of a fit to the others."""
    out = []
    for i in range(len(sizes)):
        rest = np.arange(len(sizes)) != i
        predicted = fit(sizes[rest], seconds[rest]).seconds(sizes[i])
        out.append(abs(predicted / seconds[i] - 1))
    return np.array(out)


def fit_collective(sizes: Sequence[float], seconds: Sequence[float]) -> CollectiveModel:
    """The form with the least error on sizes that are left out, fitted to all of them.

    Raises:
        ValueError: for fewer than three sizes, or times that are not positive.
    """
    s, t = np.asarray(sizes, float), np.asarray(seconds, float)
    if len(s) < 3 or s.shape != t.shape or (t <= 0).any() or (s <= 0).any():
        raise ValueError("a collective model needs at least three positive sizes and times")
    best = min(FORMS.values(), key=lambda fit: _errors_without(fit, s, t).mean())
    return best(s, t)


def left_out_errors(sizes: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """Relative error on every size of a model whose form and coefficients know the others only.

    Raises:
        ValueError: for fewer than four sizes.
    """
    s, t = np.asarray(sizes, float), np.asarray(seconds, float)
    if len(s) < 4:
        raise ValueError("sizes can be left out of four or more")
    return [float(error) for error in _errors_without(fit_collective, s, t)]
