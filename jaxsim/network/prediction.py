"""Try predictors on paths they were not fitted to."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from tqdm import tqdm

from jaxsim.files import InputError
from jaxsim.network.predictors import (
    Persistence,
    Predictor,
    RunningMedian,
    Windows,
    fit_ar,
    fit_ewma,
    fit_learned,
)
from jaxsim.network.series import Series

WINDOW = 16  # intervals
LEAST_MEASURED = 4  # intervals of a window
HORIZONS = (1, 2, 3, 5, 8)  # intervals
FOLDS = 5
REFERENCE = "persistence"
RESAMPLES = 2000
MIN_ORIGINS = 20  # windows with a target, to fit to
MIN_TARGETS = 50  # of a horizon: fewer say nothing


def windows_of(series: Series, horizons: Sequence[int] = HORIZONS) -> tuple[Windows, np.ndarray]:
    """Every window of a path that ends in a measured interval, and [N] the burst it ends in.

    Intervals that were not measured stay gaps. The scale is the median of the path, 1.
    """
    row = series.row - series.row[0]
    line = np.ones(row[-1] + WINDOW + max(horizons) + 1, np.float32)
    measured = np.zeros(line.shape, bool)
    at = row + WINDOW - 1
    line[at], measured[at] = series.factor, True
    index = at[:, None] + np.arange(1 - WINDOW, 1)
    ahead = at[:, None] + np.asarray(horizons)
    keep = (measured[index].sum(axis=1) >= LEAST_MEASURED) & measured[ahead].any(axis=1)
    index, ahead = index[keep], ahead[keep]
    data = Windows(
        values=jnp.asarray(line[index]),
        valid=jnp.asarray(measured[index]),
        targets=jnp.asarray(line[ahead]),
        known=jnp.asarray(measured[ahead]),
        scale=jnp.ones(len(index), jnp.float32),
    )
    return data, series.bursts()[keep]


def joined(parts: Sequence[Windows]) -> Windows:
    """The windows of several paths as one."""
    return jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)


def fit_all(train: Windows, seed: int) -> dict[str, Predictor]:
    """Every predictor, fitted to the same windows."""
    n_horizons = train.targets.shape[1]
    return {
        REFERENCE: Persistence(n_horizons),
        "median": RunningMedian(n_horizons),
        "ewma": fit_ewma(train),
        "ar": fit_ar(train),
        "learned": fit_learned(jax.random.key(seed), train),
    }


def folds_of(n_paths: int, n_folds: int = FOLDS) -> list[list[int]]:
    """Paths dealt into groups in order of name."""
    return [list(range(i, n_paths, n_folds)) for i in range(min(n_folds, n_paths))]


def held_out_errors(series: Sequence[Series], seed: int) -> pd.DataFrame:
    """Errors on every path by predictors that were fitted to the paths of the other groups.

    Returns:
        rows of predictor, path, burst, horizon (intervals), signed error relative to the path's
        median rate; horizons with fewer than MIN_TARGETS targets are left out.

    Raises:
        InputError: when there are too few paths or windows to fit or to judge by.
    """
    if len(series) < 2:
        raise InputError(
            "--traces: one path can be used; 2 are needed to try one's fits on another"
        )
    made = [windows_of(one) for one in series]
    folds = folds_of(len(series))
    counts = np.array([len(data.scale) for data, _ in made])
    if min(counts.sum() - counts[fold].sum() for fold in folds) < MIN_ORIGINS:
        raise InputError(
            f"--traces: too few intervals in a row: {MIN_ORIGINS} windows with {LEAST_MEASURED} "
            f"of {WINDOW} intervals measured are needed on the paths of each training group"
        )
    frames = []
    for fold in tqdm(folds, desc="predict", unit="group"):
        rest = [data for i, (data, _) in enumerate(made) if i not in fold]
        predictors = fit_all(joined(rest), seed)
        for i in fold:
            data, burst = made[i]
            for name, predictor in predictors.items():
                error = np.asarray(_predict(predictor, data) - data.targets, float)
                frames.append(_rows(name, series[i].path, burst, error, np.asarray(data.known)))
    rows = pd.concat(frames, ignore_index=True)
    targets = rows[rows["predictor"] == REFERENCE].groupby("horizon").size()
    enough = targets.index[targets >= MIN_TARGETS]
    if enough.empty:
        raise InputError(f"--traces: no horizon has {MIN_TARGETS} measured targets to judge by")
    return rows[rows["horizon"].isin(enough)]


@jax.jit
def _predict(predictor: Predictor, data: Windows) -> jax.Array:
    return predictor(data.values, data.valid)


def _rows(name: str, path: str, burst: np.ndarray, error: np.ndarray, known: np.ndarray):
    origin, which = np.nonzero(known)
    return pd.DataFrame(
        {
            "predictor": name,
            "path": path,
            "burst": burst[origin],
            "origin": origin,
            "horizon": np.asarray(HORIZONS)[which],
            "error": error[origin, which],
        }
    )


def summarise_errors(rows: pd.DataFrame, interval_s: float, seed: int) -> pd.DataFrame:
    """Mean absolute error by predictor and horizon, and what it saves against persistence.

    Intervals are 95 % bootstrap intervals over bursts, paired across predictors.
    """
    rows = rows.assign(size=100.0 * rows["error"].abs(), square=(100.0 * rows["error"]) ** 2)
    generator = np.random.default_rng(seed)
    out = []
    for horizon, part in rows.groupby("horizon"):
        keys = ["path", "burst"]
        sums = part.pivot_table(index=keys, columns="predictor", values="size", aggfunc="sum")
        first = part[part["predictor"] == REFERENCE]
        count = first.groupby(keys).size().reindex(sums.index).to_numpy()
        picks = generator.integers(len(count), size=(RESAMPLES, len(count)))
        total = count[picks].sum(axis=1)
        drawn = {name: sums[name].to_numpy()[picks].sum(axis=1) / total for name in sums}
        for name in rows["predictor"].unique():
            mine = part[part["predictor"] == name]
            error, base = mine["size"].mean(), first["size"].mean()
            low, high = np.quantile(drawn[name], [0.025, 0.975])
            gain = 100.0 * (1.0 - drawn[name] / drawn[REFERENCE])
            gain_low, gain_high = np.quantile(gain, [0.025, 0.975])
            out.append(
                {
                    "predictor": name,
                    "horizon_s": horizon * interval_s,
                    "error_pct": error,
                    "lo": low,
                    "hi": high,
                    "rmse_pct": float(np.sqrt(mine["square"].mean())),
                    "gain_pct": 100.0 * (1.0 - error / base),
                    "gain_lo": gain_low,
                    "gain_hi": gain_high,
                    "targets": len(mine),
                }
            )
    return pd.DataFrame(out)


def best_predictor(summary: pd.DataFrame) -> str:
    """The name with the least error, averaged over the horizons."""
    return str(summary.groupby("predictor")["error_pct"].mean().idxmin())
