"""What a report says about the closed form of a step's time against the event-exact one."""

from __future__ import annotations

from collections.abc import Iterator

from analysis import figures
from analysis.figures import FIDELITY_COLUMNS
from analysis.records import RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.markdown import fixed, number, table

_HEADER = ("sweep", "schedule", "steps", "median", "least", "largest", "within 2 % [% of steps]")


def fidelity_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """The ratio of both forms by sweep and schedule, and its course."""
    what = "Closed form against event-exact"
    ratios = optional_table(record, "ratios", FIDELITY_COLUMNS, what, notes)
    if ratios is None:
        return
    drawn = drawn_from(record, "ratios", figures.closed_against_event, ratios)
    caption = (
        "Closed-form step time over event-exact step time. Left: over the links' latency in units of "
        "a stage's time. Right: over how far the links' bandwidth moves inside a step. Lines are "
        "medians, bands hold 90 % of the random steps, and the grey strip is an error of 2 %."
    )
    config = record.run["config"]
    text = (
        f"{number(config.get('samples'))} random steps of "
        f"{number(config.get('micro_batches'))} micro-batches per point. A transfer takes "
        f"{number(config.get('send'))} of a stage's time at base bandwidth, and the stages' times "
        f"vary by {number(config.get('spread'))} of their mean. The ratio is closed form / "
        "event-exact:"
    )
    rows = []
    for (sweep, schedule), group in ratios.groupby(["sweep", "schedule"], sort=False):
        ratio = group["ratio"]
        near = 100.0 * ((ratio - 1.0).abs() <= 0.02).mean()
        ends = (fixed(value, 3) for value in (ratio.median(), ratio.min(), ratio.max()))
        rows.append([str(sweep), str(schedule), number(len(ratio)), *ends, fixed(near)])
    yield Section(
        what, text + "\n\n" + table(_HEADER, rows, 2), (Picture("closed-form", drawn, caption),)
    )
