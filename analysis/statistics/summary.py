"""An evaluation in numbers: what summary.json holds, computed from the tables beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.statistics.bootstrap import (
    Interval,
    bootstrap_interval,
    paired_differences,
    scenario_matrix,
)

# Averaged over scenarios and policy seeds; progress and regret come with intervals as well.
MEAN_COLUMNS = (
    "bound_pct",
    "step_s",
    "step_s_std",
    "tokens_per_s",
    "utilisation",
    "memory_utilisation",
    "bandwidth_utilisation",
    "comm_to_compute",
    "overlap",
    "wan_gb_per_step",
    "usd_per_mtoken",
    "efficiency",
    "effective_tokens_per_s",
    "usd_per_effective_mtoken",
    "replans",
)
REWARD_COLUMNS = ("reward", "reward_eff", "reward_util", "reward_cost", "reward_fair")
SCENARIO_COLUMNS = (
    "scheduler",
    "policy_seed",
    "scenario",
    "progress",
    "progress_rel",
    "regret_pct",
    "headroom_pct",
    *MEAN_COLUMNS,
    *REWARD_COLUMNS,
)


_MISSING = Interval(estimate=None, lo=None, hi=None)  # where nothing could run


def with_headroom(scenarios: pd.DataFrame, threshold_pct: float | None) -> pd.DataFrame:
    """Rows of the scenarios where clairvoyant gains at least `threshold_pct` over best static."""
    if threshold_pct is None:
        return scenarios
    return scenarios[scenarios["headroom_pct"] >= threshold_pct]


def headroom_summary(scenarios: pd.DataFrame, threshold_pct: float) -> dict:
    """How many of all scenarios leave at least `threshold_pct` to gain, and what share that is."""
    headroom = scenarios.groupby("scenario")["headroom_pct"].first()
    enough = int((headroom >= threshold_pct).sum())
    return {
        "threshold_pct": threshold_pct,
        "share_of_scenarios": enough / len(headroom),
        "n_scenarios": len(headroom),
        "n_kept": enough,
    }


def scheduler_summary(scenarios: pd.DataFrame, scheduler: str) -> dict:
    """Means of one scheduler's columns; regret with its 95 % interval. None: never measured, or
    not defined because nothing could run.

    `efficiency_band` holds 95 % of the scenarios, which draw what a token is worth from its band.
    `headroom_pct` comes first: what clairvoyant gains over this scheduler, 100 (1 / p - 1) with p
    the mean of its progress relative to clairvoyant's; None where it never makes any.
    """
    regret = _MISSING
    if scenarios["regret_pct"].notna().any():
        regret = bootstrap_interval(scenario_matrix(scenarios, scheduler, "regret_pct").to_numpy())
    own = scenarios[scenarios["scheduler"] == scheduler]
    means = own[list(MEAN_COLUMNS)].mean()
    worth = own["efficiency"].dropna()
    band = np.percentile(worth, (2.5, 97.5)).tolist() if len(worth) else [None, None]
    return {
        "headroom_pct": gain_of_best_pct(regret["estimate"]),
        "regret_pct": regret["estimate"],
        "regret_ci95_pct": _bounds(regret),
        **{name: float(value) if np.isfinite(value) else None for name, value in means.items()},
        "efficiency_band": band,
    }


def gain_of_best_pct(regret_pct: float | None) -> float | None:
    """What clairvoyant gains over one that has this regret [%]; None where it has no progress."""
    if regret_pct is None or regret_pct >= 100:
        return None
    return 100.0 * regret_pct / (100.0 - regret_pct)


def paired_gains(scenarios: pd.DataFrame, scheduler: str) -> dict[str, dict]:
    """What `scheduler` gains over each other one, paired over scenarios and policy seeds.

    The gain is the difference of progress in per cent of clairvoyant's progress on the same
    scenario, so that a scenario weighs the same whatever its length and a rival that hardly
    moves does not dominate the mean.
    """
    percent = scenarios.assign(percent=100.0 * scenarios["progress_rel"])
    gains = {}
    for other in percent["scheduler"].unique():
        if other != scheduler:
            gain = _MISSING
            if percent["percent"].notna().any():
                difference = paired_differences(percent, scheduler, other, "percent")
                gain = bootstrap_interval(difference.to_numpy())
            gains[other] = {"gain_pct": gain["estimate"], "ci95": _bounds(gain)}
    return gains


def evaluation_summary(
    scenarios: pd.DataFrame,
    decisions: pd.DataFrame | None,
    threshold_pct: float,
    learned: Sequence[str] = (),
) -> dict:
    """The `headroom`, `schedulers` and `paired` entries of an evaluation's summary.json.

    Args:
        scenarios: the scenarios table, all scenarios, with SCENARIO_COLUMNS.
        decisions: the decisions table; None leaves decision times unmeasured (None).
        threshold_pct: schedulers are compared on scenarios with at least this headroom.
        learned: schedulers whose paired gains over all others are wanted.

    Raises:
        ValueError: when no scenario has that headroom, or schedulers were not run on the same.
    """
    headroom = headroom_summary(scenarios, threshold_pct)
    counted = with_headroom(scenarios, threshold_pct)
    if scenarios["headroom_pct"].isna().all():
        counted = scenarios  # nothing could run anywhere: every measure is missing
    if counted.empty:
        raise ValueError(f"no scenario has a headroom of at least {threshold_pct} %")
    schedulers = {}
    paired = {name: paired_gains(counted, name) for name in counted["scheduler"].unique()}
    for name in counted["scheduler"].unique():
        times = decision_times(decisions, name)
        gains = {x: [g["gain_pct"], *g["ci95"]] for x, g in paired[name].items()}
        schedulers[name] = scheduler_summary(counted, name) | times | {"gain_over_pct": gains}
    return {
        "headroom": headroom,
        "schedulers": schedulers,
        "paired": {name: paired[name] for name in learned},
    }


def decision_times(decisions: pd.DataFrame | None, scheduler: str) -> dict:
    """Decision times [ms] of a scheduler, None where they were not measured."""
    columns = ("decision_ms_p50", "decision_ms_p99")
    if decisions is None or scheduler not in set(decisions["scheduler"]):
        return dict.fromkeys(columns)
    row = decisions[decisions["scheduler"] == scheduler].iloc[0]
    return {column: float(row[column]) for column in columns}


def _bounds(interval: dict) -> list[float | None]:
    return [interval["lo"], interval["hi"]]
