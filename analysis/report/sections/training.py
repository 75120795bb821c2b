"""What a report says about a training run."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis import figures
from analysis.figures import CURVE_COLUMNS, EVALUATION_COLUMNS
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
