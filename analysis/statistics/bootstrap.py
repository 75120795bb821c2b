"""Estimates with intervals: paired over scenarios, honest about what was resampled.

Scenarios are the independent units of an evaluation. A learned scheduler adds a second, crossed
factor: every policy seed meets every scenario. The bootstrap here resamples both, rows and
columns of the [scenario, policy seed] matrix, and never treats its cells as independent
(A. B. Owen, "The pigeonhole bootstrap", Annals of Applied Statistics 1(2), 2007: mildly
conservative for a mean, except that n resampled rows or columns show only (n - 1) / n of their
variance, which matters where there are few policy seeds).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypedDict

import numpy as np
import pandas as pd
import scipy

LEVEL = 0.95
RESAMPLES = 10_000
# Fewer seeds than this: their range is shown, since percentiles of so few say nothing new.
SEEDS_FOR_BOOTSTRAP = 5
_CELLS_AT_ONCE = 2_000_000  # bounds the memory of one batch of resamples, 16 MB

Statistic = Callable[..., np.ndarray]


class Interval(TypedDict):
    """A point estimate and its interval, in the unit of the data; NaN where there is none."""

    estimate: float
    lo: float
    hi: float


class Band(NamedTuple):
    """A curve over T points with its band, and what both are in words for the legend."""

    centre: np.ndarray  # [T]
    lo: np.ndarray  # [T]
    hi: np.ndarray  # [T]
    label: str


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """Interquartile mean: the mean without the lowest and the highest quarter of the values.

    The number cut at each end is floor(n / 4); below four values it is the plain mean.
    """
    return scipy.stats.trim_mean(np.asarray(values, float), 0.25, axis=axis)


def bootstrap_interval(
    values: np.ndarray,
    statistic: Statistic = np.mean,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of a statistic.

    Args:
        values: [N] independent observations, or [N, M] crossed ones (scenarios x policy seeds),
            whose rows and columns are both resampled.
        statistic: takes an array and `axis`, such as `np.mean`, `np.median` or `iqm`.
        level: nominal coverage, between 0 and 1.
        resamples: number of bootstrap draws.
        seed: of the draws; the same data and seed give the same interval.

    Returns:
        The estimate on `values` and the interval; a single row has no interval (NaN).

    Raises:
        ValueError: for no values, values that are not finite, more than two axes, or a level
            outside (0, 1).
    """
    cells = np.asarray(values, float)
    if cells.ndim not in (1, 2) or cells.size == 0:
        raise ValueError(f"bootstrap needs [N] or [N, M] values, got the shape {cells.shape}")
    if not np.isfinite(cells).all():
        raise ValueError("bootstrap needs finite values; some are missing or infinite")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; allowed are values between 0 and 1")
    cells = cells.reshape(len(cells), -1)
    estimate = float(statistic(cells.reshape(1, -1), axis=-1)[0])
    if len(cells) == 1:
        return Interval(estimate=estimate, lo=np.nan, hi=np.nan)
    draws = _resampled(cells, statistic, resamples, np.random.default_rng(seed))
    lo, hi = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(estimate=estimate, lo=float(lo), hi=float(hi))


def _resampled(
    cells: np.ndarray, statistic: Statistic, resamples: int, rng: np.random.Generator
) -> np.ndarray:
    """The statistic of `resamples` redraws of the rows and columns of `cells`, [resamples]."""
    n_rows, n_columns = cells.shape
    draws = np.empty(resamples)
    batch = max(1, _CELLS_AT_ONCE // cells.size)
    for start in range(0, resamples, batch):
        size = min(batch, resamples - start)
        rows = rng.integers(n_rows, size=(size, n_rows, 1))
        columns = rng.integers(n_columns, size=(size, 1, n_columns))
        redrawn = cells[rows, columns].reshape(size, -1)
        draws[start : start + size] = statistic(redrawn, axis=-1)
    return draws


def scenario_matrix(frame: pd.DataFrame, scheduler: str, column: str) -> pd.DataFrame:
    """One scheduler's values as a [scenario, policy seed] table (one column unless learned).

    Args:
        frame: rows with `scheduler`, `policy_seed` (NaN unless learned), `scenario`, `column`.

    Raises:
        ValueError: when the scheduler is unknown, a pair occurs twice, or a pair is missing.
    """
    rows = frame[frame["scheduler"] == scheduler]
    if rows.empty:
        names = ", ".join(sorted(frame["scheduler"].unique()))
        raise ValueError(f"no rows of scheduler {scheduler!r}; present are {names}")
    keyed = rows.assign(policy_seed=rows["policy_seed"].fillna(-1))
    if keyed.duplicated(["scenario", "policy_seed"]).any():
        raise ValueError(f"scheduler {scheduler!r} has a scenario and policy seed twice")
    matrix = keyed.pivot(index="scenario", columns="policy_seed", values=column)
    if matrix.isna().any(axis=None):
        raise ValueError(
            f"scheduler {scheduler!r} lacks {column!r} on some of its scenarios or policy seeds"
        )
    return matrix


def paired_differences(
    frame: pd.DataFrame, scheduler: str, other: str, column: str
) -> pd.DataFrame:
    """`column` of one scheduler minus that of another, on the same scenarios and policy seeds.

    A scheduler without policy seeds is compared with every policy seed of the other; two learned
    ones are paired seed by seed. Returns a [scenario, policy seed] table for `bootstrap_interval`.

    Raises:
        ValueError: when the two were not run on the same scenarios or policy seeds.
    """
    a, b = (scenario_matrix(frame, name, column) for name in (scheduler, other))
    if not a.index.equals(b.index):
        odd = sorted(set(a.index) ^ set(b.index))[:5]
        raise ValueError(f"{scheduler!r} and {other!r} were not run on the same scenarios: {odd}")
    if a.shape[1] > 1 and b.shape[1] > 1:
        if not a.columns.equals(b.columns):
            raise ValueError(f"{scheduler!r} and {other!r} have different policy seeds")
        return a - b
    columns = a.columns if a.shape[1] >= b.shape[1] else b.columns
    return pd.DataFrame(a.to_numpy() - b.to_numpy(), index=a.index, columns=columns)


def seed_band(values: np.ndarray, *, level: float = LEVEL, seed: int = 0) -> Band:
    """Centre and band of learning curves over seeds, point by point.

    Args:
        values: [N seeds, T points], finite.

    Returns:
        Interquartile mean and percentile bootstrap band from SEEDS_FOR_BOOTSTRAP seeds on; for
        fewer the range of the seeds. The label says which, and how many seeds.
    """
    values = np.asarray(values, float)
    n = len(values)
    centre = iqm(values, axis=0)
    name = f"mean of {n} seeds" if n < 4 else f"interquartile mean of {n} seeds"
    if n == 1:
        return Band(centre, centre, centre, "1 seed, no band")
    if n < SEEDS_FOR_BOOTSTRAP:
        return Band(centre, values.min(axis=0), values.max(axis=0), f"{name}, band: min to max")
    draws = np.random.default_rng(seed).integers(n, size=(2000, n))
    resampled = np.stack([iqm(column[draws]) for column in values.T], axis=1)
    lo, hi = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Band(centre, lo, hi, f"{name}, band: {100 * level:g} % bootstrap")
