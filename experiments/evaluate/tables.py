"""The tables of an evaluation: rows from episodes, on disk as schedulers are done."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pandas as pd

from agents.episodes import Episode, EpisodeMetrics
from analysis.records import RunWriter, load
from experiments.evaluate.evaluator import Evaluator, lost_pct
from jaxsim.cluster import GBIT_PER_GBYTE, ClusterSpec
from jaxsim.plan import describe
from jaxsim.trees import take


def scenario_rows(
    name: str,
    policy_seed: int | None,
    metrics: EpisodeMetrics,
    evaluator: Evaluator,
    bound: np.ndarray,
) -> pd.DataFrame:
    """scenarios.csv of one scheduler (and policy seed); what is not defined, such as a regret where
    nothing can run or the step time of a job that never ran, is missing."""
    frame = pd.DataFrame(dataclasses.asdict(metrics))
    # Rewards are measured in what the best static plan does: undefined where that is nothing.
    frame = frame.replace([np.inf, -np.inf], np.nan)
    regret_pct = evaluator.behind_pct(metrics)
    head = {
        "scheduler": name,
        "policy_seed": np.nan if policy_seed is None else float(policy_seed),
        "scenario": np.arange(len(frame)),
        "headroom_pct": evaluator.headroom_pct,
        "progress": frame.pop("progress"),
        "progress_rel": 1.0 - regret_pct / 100.0,
        "regret_pct": regret_pct,
        "bound_pct": lost_pct(metrics.progress, bound),
    }
    whole = pd.concat([pd.DataFrame(head), frame], axis=1)
    # In float64: what is written is read back digit for digit when an evaluation is resumed.
    return whole.astype(dict.fromkeys(whole.select_dtypes("floating").columns, float))


def timeline_rows(
    name: str, episode: Episode, which: int, spec: ClusterSpec, interval_s: float
) -> list[dict]:
    """timeline.csv of one scheduler: scenario `which`, interval by interval."""
    record = take(episode.record, which)
    plan = take(episode.plan, which)
    rows = []
    for t in range(record.progress.shape[0]):
        ran = record.train_s[t, 0] > 0
        rows.append(
            {
                "scheduler": name,
                "t_s": t * interval_s,
                "step_s": float(record.cost.step_s[t, 0]) if ran else None,
                "progress_rate": float(record.progress[t, 0]) / interval_s,
                "in_transition": int(episode.moving[which, t, 0] or record.switched[t, 0]),
                "switched": int(record.switched[t, 0]),
                "plan": describe(take(plan, (t, 0)), spec.domains),
            }
        )
    return rows


def link_rows(
    evaluator: Evaluator, which: int, spec: ClusterSpec, interval_s: float
) -> pd.DataFrame:
    """links.csv: the bandwidth of every link in scenario `which`."""
    gbps = GBIT_PER_GBYTE * evaluator.clairvoyant[1].bandwidth_gb_per_s[which]
    pairs = [(i, j) for i in range(spec.n_domains) for j in range(spec.n_domains) if i != j]
    return pd.DataFrame(
        {
            "t_s": t * interval_s,
            "src": spec.domains[i],
            "dst": spec.domains[j],
            "bandwidth_gbps": float(gbps[t, i, j]),
        }
        for t in range(gbps.shape[0])
        for i, j in pairs
    )


def bound_rows(evaluator: Evaluator) -> pd.DataFrame:
    """bounds.csv: the training steps that nothing in the plan family can beat, by scenario."""
    steps = evaluator.bound()
    return pd.DataFrame({"scenario": np.arange(len(steps)), "bound_steps": steps})


def traffic_rows(name: str, episode: Episode, spec: ClusterSpec) -> list[dict]:
    """traffic.csv of one scheduler: mean GB per training step over each link, moves included."""
    record = episode.record
    total = (record.wan_gb + record.migration_gb).sum(axis=1)  # [S, K, K]
    steps = (record.progress / record.cost.efficiency).sum(axis=(1, 2))
    mean = (total / np.maximum(steps, 1e-9)[:, None, None]).mean(axis=0)
    return [
        {"scheduler": name, "src": a, "dst": b, "wan_gb_per_step": float(mean[i, j])}
        for i, a in enumerate(spec.domains)
        for j, b in enumerate(spec.domains)
        if i != j
    ]


# In the order in which they are written: a scheduler with a row in the last one is finished.
TABLES = ("timeline", "traffic", "scenarios", "decisions")


class Results:
    """The tables of an evaluation as they grow: whole on disk with every scheduler added, so that what
    is finished when the run ends early need not be played again."""

    def __init__(self, writer: RunWriter):
        """Take over what the run folder holds of finished schedulers."""
        self._writer, self._record = writer, load(writer.dir)
        present = [name for name in TABLES if name in self._record.tables()]
        frames = {name: self._record.table(name) for name in present}
        self.done = tuple(frames["decisions"]["scheduler"]) if "decisions" in frames else ()
        self._frames = {name: f[f["scheduler"].isin(self.done)] for name, f in frames.items()}

    def __getitem__(self, table: str) -> pd.DataFrame:
        return self._frames[table]

    def once(self, table: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """A table that does not depend on the schedulers: from the folder, or made and kept."""
        if table in self._record.tables():
            return self._record.table(table)
        frame = make()
        self._writer.write_table(table, frame)
        return frame

    def add(self, rows: dict[str, list[dict] | pd.DataFrame]) -> None:
        """Append one scheduler's rows to each of TABLES."""
        for name in TABLES:
            before, new = self._frames.get(name), pd.DataFrame(rows[name])
            whole = new if before is None or before.empty else pd.concat([before, new])
            self._frames[name] = whole.reset_index(drop=True)
            self._writer.write_table(name, self._frames[name])
