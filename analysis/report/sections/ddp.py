"""What a report says about real data-parallel training."""

from __future__ import annotations

from collections.abc import Iterator

from analysis import figures
from analysis.records import RunRecord
from analysis.report.ddp import (
    accuracy_section,
    find,
    gradient_section,
    time_table,
    wall_table,
)
from analysis.report.sections.common import Picture, Section, drawn_from


def ddp_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Every arm's slowest rank, wall time, throughput and accuracy."""
    if "merged_metrics" not in record.tables():
        notes.append(f"Micro-batch schedules: {record.dir} has no `merged_metrics.csv`.")
        return
    found = find(record)
    used = record.summary.get("setup", {})
    notes += [f"{record.dir}: {note}" for note in [*used.get("notes", []), *found.missing]]
    drawn = drawn_from(record, "merged_metrics", figures.max_step_time, found.merged)
    caption = (
        "Compute time of the slowest rank, which sets the pace of synchronous training. Lines are "
        "medians over neighbouring steps, bands their quartiles."
    )
    text = (
        f"Compute time of the slowest rank, compared with `{found.base}` over the same steps "
        f"(95 % intervals):\n\n{time_table(found, 'en')}\n\nWall time of a step, and throughput "
        f"of all ranks together:\n\n{wall_table(found, 'en')}"
    )
    yield Section("Micro-batch schedules", text, (Picture("slowest-rank", drawn, caption),))
    text = (
        f"Accuracy on held-out rows:\n\n{accuracy_section(found, 'en')}\n\nRelative error of "
        "the distributed gradient against one global batch:\n\n"
        f"{gradient_section(found, 'en')}"
    )
    yield Section("Accuracy and exactness", text)
