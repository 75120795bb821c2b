"""What a report says about a training run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from analysis import figures
from analysis.figures import CURVE_COLUMNS, EVALUATION_COLUMNS, TIMED_COLUMNS
from analysis.records import RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.markdown import fixed, number, table


def training_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """The learning curve and where each seed ended."""
    metrics = optional_table(record, "metrics", CURVE_COLUMNS, "Learning curve", notes)
    if metrics is None:
        return
    what = "Regret during training"
    evaluations = optional_table(record, "eval", EVALUATION_COLUMNS, what, notes)
    drawn = drawn_from(record, "metrics", figures.learning_curve, metrics, evaluations)
    caption = (
        "Left: progress per interval relative to the best static plan's (dotted) on the training "
        "scenarios. Right, where measured: regret to clairvoyant on held-out scenarios; lower is "
        "better. Thin dashed lines are single seeds; the legend says what the thick line and the "
        "band are."
    )
    text = "Last recorded values of each policy seed:\n\n" + _last_rows(metrics, evaluations)
    yield Section("Learning curve", text, (Picture("learning-curve", drawn, caption),))


def compared_training(records: Sequence[RunRecord], notes: list[str]) -> Iterator[Section]:
    """The learning curves of several training runs side by side; nothing of fewer than two."""
    runs = [record for record in records if record.run["kind"] == "train"]
    timed = {record.run["run_id"]: _timed(record) for record in runs}
    if len(runs) < 2:
        return
    if lacking := [run for run, table in timed.items() if table is None]:
        notes.append(
            f"Learning curves side by side: no evaluation with a time in {', '.join(lacking)}."
        )
        return
    names = _names(runs)
    tables = {names[run]: table for run, table in timed.items() if table is not None}
    drawn = drawn_from(runs[0], "eval", figures.learning_compared, tables)
    caption = (
        "Regret to clairvoyant on held-out scenarios; lower is better. Left: over environment steps. "
        "Right: over the time that training took, compilation included and evaluation left out. "
        "Horizontal lines are the policies before training."
    )
    picture = Picture("learning-compared", drawn, caption)
    yield Section("Learning curves side by side", "", (picture,), joint=True)


def _timed(record: RunRecord) -> pd.DataFrame | None:
    """TIMED_COLUMNS of a run; None where something of it was not recorded."""
    if not {"metrics", "eval"} <= set(record.tables()):
        return None
    metrics, evaluations = record.table("metrics"), record.table("eval", EVALUATION_COLUMNS)
    if "train_s" not in metrics or not (evaluations["env_steps"] > 0).any():
        return None
    taken = metrics.set_index(["seed", "update"])["train_s"].to_dict()
    at = zip(evaluations["seed"], evaluations["update"], strict=True)
    seconds = [taken.get(key, 0.0) for key in at]
    return evaluations.assign(train_s=seconds)[list(TIMED_COLUMNS)]


def _names(runs: Sequence[RunRecord]) -> dict[str, str]:
    """What each run is called: its algorithm, or its own name where several have the same."""
    own = {r.run["run_id"]: (r.run["config"].get("train") or {}).get("algorithm") for r in runs}
    often = Counter(own.values())
    return {run: name if name and often[name] == 1 else run for run, name in own.items()}


def _last_rows(metrics: pd.DataFrame, evaluations: pd.DataFrame | None) -> str:
    """A table of where each seed ended."""
    shown = {
        "env_steps": "environment steps",
        "wall_s": "wall time [s]",
        "steps_per_s": "steps/s",
        "progress_rel": "progress / best static's",
    }
    columns = [column for column in shown if column in metrics.columns]
    header = ["seed", *(shown[column] for column in columns)]
    last = metrics.sort_values("update").groupby("seed").last()
    rows = {seed: [str(seed), *map(number, row[columns].tolist())] for seed, row in last.iterrows()}
    if evaluations is not None:
        header.append("held-out regret [%]")
        regret = evaluations.sort_values("update").groupby("seed")["regret_pct"].last()
        rows = {seed: [*row, fixed(regret.get(seed), 2)] for seed, row in rows.items()}
    return table(header, rows.values())
