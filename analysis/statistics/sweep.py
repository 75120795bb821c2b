"""What a sweep says: every scheduler at every point, its gain over the reference, and what factors do.

Gains are paired by scenario: the same world, two schedulers. An effect is how much the mean gain
rises from one level of a factor to another. In a grid every scenario number has the same seed at
all points, so scenario numbers are redrawn; of a design that was drawn, points are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics.bootstrap import bootstrap_interval

MOST_LEVELS = 6  # of a factor of numbers that is not cut in halves
RESAMPLES = 2000
MEANS = ("achieved", "step_s", "tokens_per_s", "utilisation", "wan_gb_per_step", "replans")


def with_gain(rows: pd.DataFrame, reference: str) -> pd.DataFrame:
    """The rows with `gain_pct`, what each gains over the reference in the same scenario [%]; missing
    where the reference achieves nothing."""
    key = ["point", "scenario"]
    own = rows.loc[rows["scheduler"] == reference, [*key, "achieved"]]
    paired = rows.merge(own.rename(columns={"achieved": "_reference"}), on=key, how="left")
    base = paired.pop("_reference").to_numpy(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = 100.0 * (paired["achieved"].to_numpy(np.float64) / base - 1.0)
    return paired.assign(gain_pct=np.where(base > 0, gain, np.nan))


def point_means(rows: pd.DataFrame, factors: Sequence[str]) -> pd.DataFrame:
    """One row for each point and scheduler: the factors, scenarios that count, and means over them."""
    keys = ["point", "scheduler"]
    grouped = rows.groupby(keys, sort=False, observed=True)
    means = grouped[[*MEANS, "gain_pct"]].mean()
    first = grouped[list(factors)].first()
    counted = grouped["gain_pct"].count().rename("scenarios")
    return pd.concat([first, counted, means], axis=1).reset_index()


def scheduler_gains(rows: pd.DataFrame, reference: str, paired: bool) -> list[dict[str, Any]]:
    """The gain of every scheduler over the reference in the mean over all scenarios of all points, with
    a 95 % interval over scenario numbers where these are `paired` as in `effects`, else over points."""
    found = []
    for name in rows["scheduler"].unique():
        own = rows[rows["scheduler"] == name]
        unit = "scenario" if paired else "point"
        by_unit = own.groupby(unit)["gain_pct"].mean().dropna().to_numpy()
        row = {"scheduler": name, "scenarios": int(own["gain_pct"].notna().sum())}
        row |= {"step_s": _mean(own["step_s"]), "tokens_per_s": _mean(own["tokens_per_s"])}
        row |= _interval("gain", by_unit) if name != reference else _interval("gain", None)
        found.append(row)
    return found


def effects(
    rows: pd.DataFrame, factors: Sequence[str], reference: str, paired: bool
) -> list[dict[str, Any]]:
    """One row for each scheduler but the reference, factor, and level beside the factor's first: by how
    much the mean gain over the reference is higher there [percentage points], with a 95 % interval.

    `paired`: a grid, whose scenario numbers are the same at all points.
    """
    found = []
    for name in rows["scheduler"].unique():
        if name == reference:
            continue
        own = rows[(rows["scheduler"] == name) & rows["gain_pct"].notna()]
        for factor in factors:
            level, order = levels(own[factor])
            for other in order[1:]:
                sides = [own[level == which] for which in (order[0], other)]
                row = {
                    "scheduler": name,
                    "factor": factor,
                    "from_level": order[0],
                    "to_level": other,
                }
                row |= _interval("effect", *_differences(sides, paired))
                found.append(row)
    return found


def levels(values: pd.Series) -> tuple[pd.Series, list[str]]:
    """The level of each value as text, and the levels in order; numbers of more than MOST_LEVELS values
    are cut in halves at their median."""
    distinct = list(dict.fromkeys(values))
    if len(distinct) <= MOST_LEVELS or not pd.api.types.is_numeric_dtype(values):
        order = sorted(distinct) if pd.api.types.is_numeric_dtype(values) else distinct
        return values.map(_text), [_text(x) for x in order]
    middle = float(values.median())
    names = [f"<= {middle:.3g}", f"> {middle:.3g}"]
    return (values > middle).map({False: names[0], True: names[1]}), names


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _differences(sides: list[pd.DataFrame], paired: bool) -> tuple[np.ndarray, ...]:
    """What is redrawn: differences by scenario number, or the means of points on either side."""
    unit = "scenario" if paired else "point"
    means = [side.groupby(unit)["gain_pct"].mean() for side in sides]
    if paired:
        return ((means[1] - means[0]).dropna().to_numpy(),)
    return tuple(mean.to_numpy() for mean in means)


def _interval(name: str, *values: np.ndarray | None) -> dict[str, float | None]:
    """Mean with its interval: of one sample, or of how much the second lies above the first."""
    keys = (f"{name}_pct", f"{name}_lo_pct", f"{name}_hi_pct")
    if any(x is None or len(x) == 0 for x in values):
        return dict.fromkeys(keys)
    if len(values) == 1:
        one = bootstrap_interval(values[0], resamples=RESAMPLES)
        return dict(zip(keys, (one["estimate"], one["lo"], one["hi"]), strict=True))
    before, after = values
    rng = np.random.default_rng(0)
    draws = [
        np.array([rng.choice(x, len(x)).mean() for _ in range(RESAMPLES)]) for x in (before, after)
    ]
    low, high = np.percentile(draws[1] - draws[0], (2.5, 97.5))
    estimate = after.mean() - before.mean()
    return dict(zip(keys, (float(estimate), float(low), float(high)), strict=True))


def _mean(values: pd.Series) -> float | None:
    mean = float(values.mean())
    return mean if np.isfinite(mean) else None
