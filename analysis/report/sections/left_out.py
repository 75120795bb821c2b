"""What a report says of groups of runs that a fit did without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from analysis.figures import (
    DISTANCE_COLUMNS,
    GROUP_COLUMNS,
    LEFT_OUT_COLUMNS,
    error_by_distance,
    left_out_baselines,
    left_out_errors,
    mean_absolute,
)
from analysis.records import RecordError, RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from
from analysis.report.sections.markdown import cell, fixed, table, whole

_TEXT = """\
Each row: refit without one group of the runs of a data set and GPU type (a model, a number of GPUs,
a length, a split of the work), predict it, then the next; mean absolute error of the step times.
`stack` leaves out all runs of a software stack. **As calibrated**: error on the same runs under the
calibration of this run, in sample where it was fitted to them. **In the band**: how many measured
times the 90 % band of such a prediction holds. **Closed form**: model FLOPs / peak x one constant
utilisation per data set and GPU type, fitted on the same runs that were kept."""
_CAPTION = (
    "Upper bar of each pair: under the calibration of this run (in sample where that was fitted to "
    "these runs), with the 95 % bootstrap interval over runs. Lower bar: refitted without them, "
    "group by group. A fit that carries over has bars of similar length; a bias as large as the "
    "error means that all runs are off to the same side."
)


def left_out_sections(
    record: RunRecord, timed: pd.DataFrame | None, notes: list[str]
) -> Iterator[Section]:
    """Left-out errors beside those as calibrated, the closed form's, and against distance.

    timed: the runs of the record with a step time, None where it holds none.
    """
    groups = record.summary.get("left_out")
    if groups:
        yield _errors(record, groups, timed)
    else:
        notes.append(f"Runs left out of the fit: {record.dir} holds no refits.")
    if groups and (rows := [r for r in groups if set(GROUP_COLUMNS) <= set(r)]):
        figure = drawn_from(record, "summary.json", left_out_baselines, pd.DataFrame(rows))
        caption = "Mean absolute error of groups left out, the simulator's and the closed form's."
        yield Section("Beside a closed form", "", (Picture("left-out", figure, caption),))
    if "left_out" in record.tables():
        runs = record.table("left_out", DISTANCE_COLUMNS)
        if not runs.empty:
            figure = drawn_from(record, "left_out.csv", error_by_distance, runs)
            caption = "Every left-out run; black: the median absolute error by whole doublings."
            text = "How errors grow with the distance from what was calibrated."
            yield Section("Distance", text, (Picture("distance", figure, caption),))


def group_table(groups: Sequence[Mapping], timed: pd.DataFrame | None) -> pd.DataFrame:
    """LEFT_OUT_COLUMNS and what else of its groups a summary holds, data sets before whole stacks.

    Raises:
        ValueError: when an entry lacks a key.
    """
    lines = []
    for group in groups:
        missing = [key for key in ("kind", "dataset", "label", "n", "mape_pct") if key not in group]
        if missing:
            raise ValueError(f"left_out: an entry lacks the keys {missing}")
        same = as_calibrated(timed, group)
        lines.append(
            {
                **dict.fromkeys(LEFT_OUT_COLUMNS),
                **dict.fromkeys(("coverage_pct", "memory_mape_pct", "baseline_pct")),
                **group,
                "in_sample_pct": same["estimate"],
                **{f"in_sample_{end}": same[end] for end in ("lo", "hi")},
            }
        )
    frame = pd.DataFrame(lines)
    numbers = [c for c in frame if c not in ("kind", "dataset", "label")]
    frame[numbers] = frame[numbers].astype(float)
    return frame.sort_values("kind", key=lambda kind: kind == "stack", kind="stable").reset_index(
        drop=True
    )


def as_calibrated(timed: pd.DataFrame | None, group: Mapping) -> dict[str, float]:
    """Error on the runs of a group under the calibration that was not refitted, with its interval.

    NaN where the records do not identify these runs: none match, or not as many as were tried.
    """
    nothing = dict.fromkeys(("estimate", "lo", "hi"), np.nan)
    if timed is None or group["kind"] == "stack":
        return nothing
    rows = timed[(timed["dataset"] == group["dataset"]) & (timed["gpu"] == group["label"])]
    known = len(rows) > 0 and len(rows) == group["n"]
    return mean_absolute(rows["error_pct"]) if known else nothing


def _errors(record: RunRecord, groups: Sequence[Mapping], timed: pd.DataFrame | None) -> Section:
    try:
        frame = group_table(groups, timed)
    except ValueError as error:
        raise RecordError(f"{record.dir / 'summary.json'}: {error}") from None
    header = ["data set or stack", "GPU", "left out by", "runs", "as calibrated [%]"]
    header += ["left out [%]", "bias [%]", "in the band [%]", "memory [%]", "closed form [%]"]
    columns = ("in_sample_pct", "mape_pct", "bias_pct", "coverage_pct", "memory_mape_pct")
    rows = [
        [
            *(cell(group[key]) for key in ("dataset", "label", "kind")),
            whole(group["n"]),
            *(fixed(group[key]) for key in (*columns, "baseline_pct")),
        ]
        for group in frame.to_dict("records")
    ]
    drawn = left_out_errors(frame)
    text = f"{_TEXT}\n\n{table(header, rows, 3)}"
    return Section("Left out of the fit", text, (Picture("refits", drawn, _CAPTION),))
