"""Several scenes together: each weighs alike, whatever its number of scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import numpy as np
import pandas as pd

from analysis.statistics.bootstrap import LEVEL, RESAMPLES, Interval, scenario_matrix


class SceneMean(TypedDict):
    """One scheduler in the mean over scenes; gains are over each other scheduler, by name."""

    regret_pct: float
    regret_ci95_pct: list[float]
    gain_over_pct: dict[str, list[float]]


def scene_means(scenes: Mapping[str, pd.DataFrame]) -> dict[str, SceneMean]:
    """Regret, and what each gains over every other, in the mean over scenes, with 95 % intervals.

    Scenarios are resampled by their number in all scenes at once: scenes of one cluster and seed
    draw the links of a number alike, so that they are not independent. Of several policy seeds the
    mean is taken: intervals are over scenarios alone.

    Args:
        scenes: name -> the scenarios table, with `scheduler`, `policy_seed`, `scenario` and
            `regret_pct`. Scenes may have different scenarios.

    Returns:
        A row for each scheduler that has a regret in all scenarios of every scene; gains in
        percentage points of clairvoyant's progress, as (estimate, low, high).
    """
    regret = {}
    for name in _in_all(scenes):
        regret[name] = pd.concat(
            {
                scene: scenario_matrix(frame, name, "regret_pct").mean(axis=1)
                for scene, frame in scenes.items()
            },
            axis=1,
        ).to_numpy()
    rows = {}
    for name, mine in regret.items():
        own = _interval(mine)
        gains = {other: _interval(r - mine) for other, r in regret.items() if other != name}
        rows[name] = SceneMean(
            regret_pct=own["estimate"],
            regret_ci95_pct=[own["lo"], own["hi"]],
            gain_over_pct={k: [g["estimate"], g["lo"], g["hi"]] for k, g in gains.items()},
        )
    return rows


def _in_all(scenes: Mapping[str, pd.DataFrame]) -> list[str]:
    """Schedulers whose regret is known in all scenarios of all scenes, in the first one's order."""
    known = [
        {name for name, rows in frame.groupby("scheduler") if rows["regret_pct"].notna().all()}
        for frame in scenes.values()
    ]
    first = next(iter(scenes.values()), pd.DataFrame({"scheduler": []}))
    return [name for name in first["scheduler"].unique() if all(name in names for names in known)]


def _interval(values: np.ndarray) -> Interval:
    """Of the mean over scenes (columns) of the mean over scenarios (rows; NaN where a scene lacks
    one). Draws without any scenario of some scene do not count; a single row has no interval."""
    there = np.isfinite(values)
    estimate = float(np.nanmean(np.nanmean(values, axis=0)))
    n = len(values)
    if n == 1:
        return Interval(estimate=estimate, lo=np.nan, hi=np.nan)
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    total, counted = drawn @ np.where(there, values, 0.0), drawn @ there
    whole = (counted > 0).all(axis=1)
    means = (total[whole] / counted[whole]).mean(axis=1)
    lo, hi = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(estimate=estimate, lo=float(lo), hi=float(hi))
