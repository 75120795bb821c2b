"""What a report says about an evaluation of many jobs: completion times, waiting, the cluster."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.records import RecordError, RunRecord
from analysis.report.sections.common import Section
from analysis.report.sections.markdown import fixed, interval, number, table

_HEADER = (
    *("scheduler", "completion [x alone]", "95 % interval", "behind the best [x alone]"),
    *("paired 95 % interval", "completion [h]", "queueing [h]"),
    *("makespan [h]", "unfinished jobs", "utilisation [%]", "fairness (Jain)", "re-plans per job"),
)


def jobs_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Every scheduler, shortest completion first."""
    del notes
    schedulers, scenario = (record.summary.get(key) for key in ("schedulers", "scenario"))
    if not schedulers or not scenario:
        path, status = record.dir / "summary.json", record.run["status"]
        raise RecordError(f"{path}: lacks schedulers or scenario (the run's status is {status!r})")
    text = (
        f"{number(scenario.get('n_counted'))} of {number(scenario.get('n_jobs'))} jobs arrive within "
        f"an episode and count; links are shared `{scenario.get('sharing')}`; "
        f"{number(scenario.get('seeds'))} scenarios. Completion is the time from arrival to the end "
        "in units of what the job would need alone on the cluster, where an unfinished job is charged "
        "the time that it has been there and the rest of its work alone. The makespan is that of the "
        "scenarios in which every job was finished. Behind the best is the difference of completion to "
        f"that of `{record.summary.get('best', '-')}` on the same scenarios. GPUs held beyond the "
        f"available ones, the most under any scheduler: {number(_overcommitted(schedulers))}."
    )
    names = sorted(schedulers, key=lambda name: schedulers[name]["jobs"]["jct_normalised_mean"])
    rows = ([name, *_cells(schedulers[name])] for name in names)
    yield Section("Many jobs", text + "\n\n" + table(_HEADER, rows))


def _cells(row: dict) -> list[str]:
    jobs = row["jobs"]
    return [
        fixed(jobs["jct_normalised_mean"], 2),
        interval(jobs["jct_normalised_ci95"], 2),
        fixed(jobs.get("behind_best"), 2),
        interval(jobs.get("behind_best_ci95"), 2),
        *(fixed(_hours(jobs[key]), 2) for key in ("jct_mean_s", "queueing_mean_s", "makespan_s")),
        fixed(jobs["unfinished"]),
        fixed(100 * row["utilisation"]),
        fixed(jobs["fairness"], 2),
        fixed(row["replans"]),
    ]


def _overcommitted(schedulers: dict) -> int | None:
    """None for runs from before it was recorded."""
    values = [row["jobs"].get("overcommitted") for row in schedulers.values()]
    return None if None in values else max(values)


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / 3600.0
