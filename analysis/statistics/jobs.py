"""An evaluation of many jobs in numbers: what its summary.json holds, from the tables beside it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.statistics.bootstrap import (
    Interval,
    bootstrap_interval,
    paired_differences,
    scenario_matrix,
)
from analysis.statistics.summary import MEAN_COLUMNS, decision_times

_KEYS = ["scheduler", "policy_seed", "scenario"]
# Of every job, and of all jobs together: the columns of jobs.csv that say how one run went.
_STEP_COLUMNS = ("step_s", "step_s_std", "memory_utilisation", "comm_to_compute", "overlap")
_JOB_COLUMNS = ("jct_s", "jct_normalised", "queueing_s", "moves", *_STEP_COLUMNS)
_TRAFFIC_COLUMNS = ("tokens_per_s", "bandwidth_utilisation", "wan_gb_per_step", "usd_per_mtoken")
_RUN_COLUMNS = ("makespan_s", "utilisation", "fairness", "overcommitted", *_TRAFFIC_COLUMNS)
# What a single job is measured by and many are not: no optimum over all intervals is known for them,
# and gains are those of completion times.
_UNDEFINED = ("headroom_pct", "regret_pct", "regret_ci95_pct", "bound_pct")
_UNDEFINED += ("efficiency_band", "gain_over_pct")


def jobs_summary(jobs: pd.DataFrame, decisions: pd.DataFrame | None) -> dict:
    """The `best` and `schedulers` entries: whose jobs complete soonest, and everybody's figures.

    Args:
        jobs: the jobs table; jobs that arrive after the end, without a completion time, do not count.
        decisions: the decisions table; None leaves decision times unmeasured (None).
    """
    runs = _runs(jobs.dropna(subset="jct_s"))
    names = list(runs["scheduler"].unique())
    mean = runs.groupby("scheduler")["jct_normalised"].mean()
    best = min(names, key=lambda name: mean[name])
    figures = {name: _figures(runs, name, best) for name in names}
    for name in names:
        figures[name] |= decision_times(decisions, name)
    return {"best": best, "schedulers": figures}


def _runs(jobs: pd.DataFrame) -> pd.DataFrame:
    """One row per scheduler, policy seed and scenario: means over jobs, and the cluster's figures."""
    groups = jobs.groupby(_KEYS, dropna=False, sort=False)
    each, whole = groups[list(_JOB_COLUMNS)].mean(), groups[list(_RUN_COLUMNS)].first()
    unfinished = groups["finished"].agg(lambda x: float((x == 0).sum())).rename("unfinished")
    return pd.concat([each, whole, unfinished], axis=1).reset_index()


def _figures(runs: pd.DataFrame, name: str, best: str) -> dict:
    """One scheduler's figures: means over scenarios and policy seeds; None = not measured, or there
    was nothing to measure.

    The makespan is that of the scenarios in which every job was finished.
    """
    mine = runs[runs["scheduler"] == name]
    means = mine[[*_JOB_COLUMNS, *_RUN_COLUMNS, "unfinished"]].astype(float).mean()
    mean = {key: float(value) if np.isfinite(value) else None for key, value in means.items()}
    measured = [key for key in MEAN_COLUMNS if key in mean]
    relative = bootstrap_interval(scenario_matrix(runs, name, "jct_normalised").to_numpy())
    difference = paired_differences(runs, name, best, "jct_normalised")
    behind = bootstrap_interval(difference.to_numpy())
    return {
        **dict.fromkeys((*_UNDEFINED, *MEAN_COLUMNS)),
        **{key: mean[key] for key in measured},
        "replans": mean["moves"],
        "jobs": {
            "jct_mean_s": mean["jct_s"],
            "queueing_mean_s": mean["queueing_s"],
            "makespan_s": mean["makespan_s"],
            "unfinished": mean["unfinished"],
            "jct_normalised_mean": mean["jct_normalised"],
            "jct_normalised_ci95": _bounds(relative),
            "behind_best": behind["estimate"],
            "behind_best_ci95": _bounds(behind),
            "fairness": mean["fairness"],
            "overcommitted": int(mine["overcommitted"].max()),
        },
    }


def _bounds(interval: Interval) -> list[float]:
    return [interval["lo"], interval["hi"]]
