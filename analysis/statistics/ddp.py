"""Tables of a data-parallel run: slowest rank per step, paired intervals, predicted gains.

The step time of synchronous training is what its slowest rank needs, so everything rests on
max over ranks of compute time, step by step. Arms of one comparison are interleaved on one
machine: differences are paired by step.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from analysis.statistics.bootstrap import LEVEL, Interval

COLUMNS = (
    "step",
    "arm",
    "rank",
    "local_batch",
    "padded_tokens",
    "real_tokens",
    "attention_tokens_sq",
    "compute_ms",
    "wait_ms",
    "step_time_ms",
    "schedule_ms",
    "peak_mem_mb",
    "oom_redos",
)
SKIP_STEPS = 10  # first steps: allocator and caches warm up
RESAMPLES = 4000


def per_step(merged: pd.DataFrame, column: str, reduce: str = "max") -> pd.DataFrame:
    """[step, arm] table of a per-rank column reduced over ranks; warm-up steps left out."""
    rows = merged[merged["step"] >= first_step(merged)]
    return rows.pivot_table(index="step", columns="arm", values=column, aggfunc=reduce, sort=False)


def first_step(merged: pd.DataFrame) -> int:
    """The first step that counts: warm-up is left out unless the run is very short."""
    steps = merged["step"].nunique()
    return int(merged["step"].min()) + (SKIP_STEPS if steps >= 4 * SKIP_STEPS else 0)


def p95(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """95th percentile."""
    return np.percentile(values, 95, axis=axis)


def relative_change(
    values: np.ndarray,
    base: np.ndarray,
    statistic: Callable[..., np.ndarray],
    paired: bool = True,
    seed: int = 0,
) -> Interval:
    """Change of a statistic relative to a baseline in per cent, with a bootstrap interval.

    Args:
        values, base: [N] and [M] per-step values; `paired` resamples the same steps of both.
        statistic: takes an array and `axis`.

    Raises:
        ValueError: when paired values differ in number.
    """
    if paired and len(values) != len(base):
        raise ValueError(f"paired steps differ in number: {len(values)} and {len(base)}")
    rng = np.random.default_rng(seed)
    estimate = 100 * (statistic(values) / statistic(base) - 1)
    if min(len(values), len(base)) < 2:
        return Interval(estimate=float(estimate), lo=np.nan, hi=np.nan)
    rows = rng.integers(len(values), size=(RESAMPLES, len(values)))
    others = rows if paired else rng.integers(len(base), size=(RESAMPLES, len(base)))
    draws = 100 * (statistic(values[rows], axis=-1) / statistic(base[others], axis=-1) - 1)
    lo, hi = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(estimate=float(estimate), lo=float(lo), hi=float(hi))


def fit_cost(rows: pd.DataFrame) -> np.ndarray | None:
    """(a, b, c) [ms] of a + b kL + c kL^2, least squares on relative errors; None if degenerate."""
    rows = rows[(rows["padded_tokens"] > 0) & (rows["oom_redos"] == 0) & (rows["compute_ms"] > 0)]
    if len(rows) < 20:
        return None
    times = rows["compute_ms"].to_numpy()
    features = rows[["padded_tokens", "attention_tokens_sq"]].to_numpy(float)
    design = np.column_stack([np.ones(len(rows)), features]) / times[:, None]
    scale = np.where(design.max(axis=0) > 0, design.max(axis=0), 1.0)
    return nnls(design / scale, np.ones(len(design)))[0] / scale


def predict(rows: pd.DataFrame, coefficients: np.ndarray) -> np.ndarray:
    """[rows] predicted compute time [ms]."""
    features = rows[["padded_tokens", "attention_tokens_sq"]].to_numpy(float)
    return coefficients[0] + features @ coefficients[1:]


def is_packed(arm: str) -> bool:
    """Packed arms run other kernels, so they have a cost of their own."""
    return arm.split("/")[-1].startswith("packed")


def predictions(merged: pd.DataFrame) -> tuple[pd.DataFrame, dict]:
    """Costs fitted on the even steps, tested on the odd ones.

    Steps draw different samples, so odd ones are unseen; alternating keeps a machine whose speed
    drifts from passing for an error of the model. The padded cost is fitted on all padded arms
    together, the packed one on packed arms.

    Returns:
        (rows of odd steps with `predicted_cost_ms`, {"padded"/"packed": {"coefficients_ms",
        "mape_pct", "mape_tokens_pct", "mape_tokens_sq_pct"}})
    """
    counted = merged[merged["step"] >= first_step(merged)]
    early = counted[counted["step"] % 2 == 0]
    late = counted[counted["step"] % 2 == 1].copy()
    late["predicted_cost_ms"] = np.nan
    quality: dict[str, dict] = {}
    for name, wanted in (("padded", False), ("packed", True)):
        train = early[early["arm"].map(is_packed) == wanted]
        test = late["arm"].map(is_packed) == wanted
        coefficients = fit_cost(train)
        if coefficients is None or not test.any():
            continue
        rows = late[test]
        late.loc[test, "predicted_cost_ms"] = predict(rows, coefficients)
        quality[name] = {
            "coefficients_ms": coefficients.tolist(),
            "mape_pct": _mape(predict(rows, coefficients), rows["compute_ms"].to_numpy()),
        } | _proxy_errors(train, rows)
    return late, quality


def _mape(predicted: np.ndarray, measured: np.ndarray) -> float:
    return float(100 * np.abs(predicted / measured - 1).mean())


def _proxy_errors(train: pd.DataFrame, test: pd.DataFrame) -> dict[str, float]:
    """Errors of the one-parameter proxies: time proportional to kL, and to (kL)^2."""
    errors = {}
    for name, power in (("tokens", 1), ("tokens_sq", 2)):
        ratio = train["compute_ms"] / train["padded_tokens"].astype(float) ** power
        scale = 1 / (1 / ratio).mean()
        predicted = scale * test["padded_tokens"].to_numpy(float) ** power
        errors[f"mape_{name}_pct"] = _mape(predicted, test["compute_ms"].to_numpy())
    return errors


def gains(late: pd.DataFrame, base: str) -> pd.DataFrame:
    """Measured and predicted gain of the mean slowest-rank time over `base`, per arm [%].

    `noise_pct` is the part of the slowest rank's time that is scatter of equal work: the
    maximum of several noisy ranks exceeds the maximum of their expectations.
    """
    worst = per_step_all(late, "compute_ms").mean()
    # A run too short for a fit has no predictions, and the pivot no columns for them.
    predicted = per_step_all(late, "predicted_cost_ms").reindex(columns=worst.index)
    expected = predicted.astype(float).mean()
    frame = pd.DataFrame(
        {
            "measured_gain_pct": 100 * (1 - worst / worst[base]),
            "predicted_gain_pct": 100 * (1 - expected / expected[base]),
            "noise_pct": 100 * (worst / expected - 1),
        }
    )
    frame["error_points"] = frame["predicted_gain_pct"] - frame["measured_gain_pct"]
    return frame.rename_axis("arm").reset_index()


def per_step_all(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """[step, arm] maxima over ranks of a column, all steps of `rows`."""
    return rows.pivot_table(index="step", columns="arm", values=column, aggfunc="max", sort=False)


def ceiling(late: pd.DataFrame, base: str, coefficients: np.ndarray) -> dict[str, float]:
    """Gain over `base` that no padded scheduler can exceed under the fitted cost [%].

    Perfect balance without padding: every rank takes a + (1/G) sum (b L + c L^2); sum L^2 is
    bounded from below by (sum L)^2 / n.
    """
    rows = late[late["arm"] == base]
    total = rows.groupby("step")[["real_tokens", "local_batch"]].sum()
    ranks = rows["rank"].nunique()
    a, b, c = coefficients
    attention = total["real_tokens"] ** 2 / total["local_batch"]
    bound = a + (b * total["real_tokens"] + c * attention) / ranks
    slowest = per_step_all(late, "predicted_cost_ms")[base]
    return {
        "gain_pct": float(100 * (1 - bound.mean() / slowest.mean())),
        "fixed_ms": float(a),
        "fixed_share_pct": float(100 * a / slowest.mean()),
    }


def accuracy_table(eval_rows: pd.DataFrame, base: str) -> pd.DataFrame:
    """Final accuracy per arm and its paired difference to `base` [points], by held-out row."""
    table = eval_rows.pivot(index="row", columns="arm", values="correct")
    rng = np.random.default_rng(0)
    draws = rng.integers(len(table), size=(RESAMPLES, len(table)))
    rows = []
    for arm in table.columns:
        values = table[arm].to_numpy(float)
        difference = values - table[base].to_numpy(float)
        lo, hi = np.quantile(values[draws].mean(axis=1), [0.025, 0.975])
        diff_lo, diff_hi = np.quantile(difference[draws].mean(axis=1), [0.025, 0.975])
        rows.append(
            {
                "arm": arm,
                "accuracy_pct": 100 * values.mean(),
                "accuracy_lo": 100 * lo,
                "accuracy_hi": 100 * hi,
                "difference_points": 100 * difference.mean(),
                "difference_lo": 100 * diff_lo,
                "difference_hi": 100 * diff_hi,
            }
        )
    return pd.DataFrame(rows)


def summary_table(merged: pd.DataFrame, base: str, paired: bool = True) -> pd.DataFrame:
    """One row per arm: slowest-rank time (mean, P95) with change and interval, and what goes in.

    Args:
        merged: the tables of all ranks, with `arm` labels.
        base: the arm compared with.
        paired: whether the arms saw the same steps of the same stream.
    """
    slowest = per_step(merged, "compute_ms")
    worst = {arm: column.dropna().to_numpy() for arm, column in slowest.items()}
    counted = merged[merged["step"] >= first_step(merged)]
    rows = []
    for arm, values in worst.items():
        here = counted[counted["arm"] == arm]
        mean = relative_change(values, worst[base], np.mean, paired)
        tail = relative_change(values, worst[base], p95, paired)
        balance = here.groupby("step")["compute_ms"]
        rows.append(
            {
                "arm": arm,
                "steps": len(values),
                "max_compute_ms_mean": values.mean(),
                "max_compute_ms_p95": p95(values),
                **{f"mean_change_pct{k}": mean[v] for k, v in _ENDS},
                **{f"p95_change_pct{k}": tail[v] for k, v in _ENDS},
                "imbalance": (balance.max() / balance.mean()).mean(),
                "padding_waste": 1 - here["real_tokens"].sum() / here["padded_tokens"].sum(),
                "step_time_ms_mean": here["step_time_ms"].mean(),
                "schedule_ms_median": here["schedule_ms"].median(),
                "schedule_ms_mean": here["schedule_ms"].mean(),
                "schedule_share_pct": 100
                * here["schedule_ms"].median()
                / here["step_time_ms"].median(),
                "peak_mem_mb": here["peak_mem_mb"].max(),
                "oom_redos": int(here.groupby("step")["oom_redos"].max().sum()),
            }
        )
    return pd.DataFrame(rows)


_ENDS = (("", "estimate"), ("_lo", "lo"), ("_hi", "hi"))
