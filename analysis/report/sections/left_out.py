"""What a report says of groups of runs that a fit did without."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis.figures import (
    DISTANCE_COLUMNS,
    GROUP_COLUMNS,
    error_by_distance,
    left_out_baselines,
)
from analysis.records import RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from


def baseline_sections(record: RunRecord) -> Iterator[Section]:
    """Left-out errors beside the closed form's, and against distance where the runs are recorded."""
    rows = [r for r in record.summary.get("left_out") or [] if set(GROUP_COLUMNS) <= set(r)]
    if rows:
        figure = drawn_from(record, "summary.json", left_out_baselines, pd.DataFrame(rows))
        text = (
            "A closed form with one constant utilisation per GPU type and data set, fitted on the same "
            "runs that were kept, is what a calibration has to beat."
        )
        caption = "Mean absolute error of groups left out, the simulator's and the closed form's."
        yield Section("Beside a closed form", text, (Picture("baseline", figure, caption),))
    if "left_out" in record.tables():
        table = record.table("left_out", DISTANCE_COLUMNS)
        if not table.empty:
            figure = drawn_from(record, "left_out.csv", error_by_distance, table)
            caption = "Every left-out run; black: the median absolute error by whole doublings."
            text = "How errors grow with the distance from what was calibrated."
            yield Section("Distance", text, (Picture("distance", figure, caption),))
