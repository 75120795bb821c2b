"""What a report says about benchmarks and about kinds of run that have no pictures here."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.records import RunRecord
from analysis.report.sections.common import Section, optional_table
from analysis.report.sections.markdown import cell, table


def bench_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """The measurements as they are."""
    metrics = optional_table(record, "metrics", ["what", "per_s"], "Benchmark", notes)
    if metrics is not None:
        rows = ([cell(value) for value in row] for row in metrics.astype(object).to_numpy())
        yield Section("Benchmark", table(list(metrics.columns), rows))


def summary_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Plain values of the summary, for kinds of run that have no pictures here."""
    kind = record.run["kind"]
    plain = {k: v for k, v in record.summary.items() if not isinstance(v, dict | list)}
    notes.append(f"Figures of {record.dir}: there are none for runs of kind `{kind}`.")
    if plain:
        rows = ([key, cell(value)] for key, value in plain.items())
        yield Section(f"Summary of the {kind} run", table(["what", "value"], rows))
