"""Rows of a run folder's tables: episodes, and points on Pareto fronts."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.statistics import Played
from experiments.kpi.worlds import Stage

TRADE_OFF = ("step_s", "wan_gb_per_mtoken", "usd_per_mtoken")  # all to be small


def front_rows(setting: str, stage: Stage, name: str, points: np.ndarray) -> pd.DataFrame:
    """Points [N, 3] of the first scenario, those that run."""
    points = points[np.isfinite(points).all(axis=1)]
    head = {"setting": setting, "cluster": stage.spec.name, "scheduler": name}
    return pd.DataFrame(points, columns=list(TRADE_OFF)).assign(**head)


def episode_rows(head: dict, played: Played) -> pd.DataFrame:
    """episodes.csv: one row for each scenario and policy seed."""
    index = np.indices(played.total.shape).reshape(2, -1)
    values = {"progress": played.total, "utilisation": played.utilisation, "tokens": played.tokens}
    values |= {"egress_usd": played.egress_usd, "wan_gb": played.wan_gb}
    which = {"scenario": index[0], "policy_index": index[1]}
    return pd.DataFrame({**head, **which, **{key: value.ravel() for key, value in values.items()}})
