"""Tables of a data-parallel run: slowest rank per step, paired intervals, predicted gains.

The step time of synchronous training is what its slowest rank needs, so everything rests on
max over ranks of compute time, step by step. Arms of one comparison are interleaved on one
machine: differences are paired by step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

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
COST_COLUMNS = (
    *("arm", "kernels", "steps"),
    *("a_ms", "b_ms_per_token", "c_ms_per_token_sq"),
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


class Cost(NamedTuple):
    """The compute time a + b T + c T2 [ms] that a run fitted to its own measurements.

    T is the number of tokens computed on, T2 the work of attention.
    """

    group: str  # of arms that share it: "padded" or "packed"; a second run's with its name
    a_ms: float
    b_ms_per_token: float
    c_ms_per_token_sq: float


def fitted_costs(table: pd.DataFrame, run: str = "") -> dict[str, Cost]:
    """The cost of every arm, fitted to the even steps.

    Args:
        table: COST_COLUMNS, as the run's cost_fit.csv has them.
        run: named in the groups if it is given.
    """
    even = table[table["steps"] == "even"]
    suffix = f", {run}" if run else ""
    return {
        row["arm"]: Cost(f"{row['kernels']}{suffix}", *(float(row[c]) for c in COST_COLUMNS[3:]))
        for _, row in even.iterrows()
    }


def predict(rows: pd.DataFrame, cost: Cost) -> np.ndarray:
    """[rows] predicted compute time [ms]."""
    features = rows[["padded_tokens", "attention_tokens_sq"]].to_numpy(float)
    return cost.a_ms + features @ np.array([cost.b_ms_per_token, cost.c_ms_per_token_sq])


def predictions(merged: pd.DataFrame, costs: dict[str, Cost]) -> tuple[pd.DataFrame, dict]:
    """Costs fitted on the even steps, tested on the odd ones.

    Odd steps draw other samples, so the fit has not seen them. With alternating
    steps, a drift of the machine's speed does not pass for an error of the model.

    Args:
        merged: the tables of all ranks.
        costs: the cost of every arm that has one.

    Returns:
        (rows of odd steps with `predicted_cost_ms` and `cost_group`, {group: {"coefficients_ms",
        "mape_pct", "mape_tokens_pct", "mape_tokens_sq_pct"}})
    """
    counted = merged[merged["step"] >= first_step(merged)]
    early = counted[counted["step"] % 2 == 0]
    late = counted[counted["step"] % 2 == 1].copy()
    late["predicted_cost_ms"], late["cost_group"] = np.nan, ""
    quality: dict[str, dict] = {}
    for cost in dict.fromkeys(costs.values()):
        arms = [arm for arm, own in costs.items() if own == cost]
        train, test = early[early["arm"].isin(arms)], late["arm"].isin(arms)
        if train.empty or not test.any():
            continue
        rows = late[test]
        late.loc[test, "predicted_cost_ms"] = predict(rows, cost)
        late.loc[test, "cost_group"] = cost.group
        quality[cost.group] = {
            "coefficients_ms": list(cost[1:]),
            "mape_pct": _mape(predict(rows, cost), rows["compute_ms"].to_numpy()),
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


def ceiling(late: pd.DataFrame, base: str, cost: Cost) -> dict[str, float]:
    """Gain over `base` that no padded scheduler can exceed under the fitted cost [%].

    Perfect balance without padding: every rank takes a + (1/G) sum (b L + c L^2); sum L^2 is
    bounded from below by (sum L)^2 / n.
    """
    rows = late[late["arm"] == base]
    total = rows.groupby("step")[["real_tokens", "local_batch"]].sum()
    ranks = rows["rank"].nunique()
    a, b, c = cost[1:]
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
    """One row per arm: slowest-rank time with change and interval, wall time, throughput, memory.

    Wall time and throughput come with mean, percentiles and spread over steps. Ranks finish a step
    together, and its wall time is their mean. Its throughput is the samples or real tokens of all
    ranks in that time.

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
                **_wall_time(here),
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


def _wall_time(rows: pd.DataFrame) -> dict[str, float]:
    """Wall step time and throughput of one arm: mean, percentiles and spread over its steps."""
    steps = rows.groupby("step")
    wall_ms = steps["step_time_ms"].mean()
    measured = {
        "step_time_ms": wall_ms,
        "samples_per_s": 1e3 * steps["local_batch"].sum() / wall_ms,
        "real_tokens_per_s": 1e3 * steps["real_tokens"].sum() / wall_ms,
    }
    return {
        f"{name}_{key}": value
        for name, values in measured.items()
        for key, value in spread(values.to_numpy(float)).items()
    }


def spread(values: np.ndarray) -> dict[str, float]:
    """Mean, 5th and 95th percentile, standard deviation and interquartile range of [N] values."""
    low, first, third, high = np.percentile(values, [5, 25, 75, 95])
    deviation = values.std(ddof=1) if len(values) > 1 else np.nan
    middle = {"mean": values.mean(), "p5": low, "p95": high}
    return middle | {"std": deviation, "iqr": third - first}


_ENDS = (("", "estimate"), ("_lo", "lo"), ("_hi", "hi"))
