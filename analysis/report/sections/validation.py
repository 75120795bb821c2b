"""What a report says about predictions of measured runs: errors, peers, refits, the worst runs."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis import figures
from analysis.figures import (
    MEMORY_COLUMNS,
    STEP_COLUMNS,
    mean_absolute,
    timed_runs,
)
from analysis.records import RecordError, RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.left_out import left_out_sections
from analysis.report.sections.markdown import (
    MISSING,
    cell,
    fixed,
    interval,
    number,
    table,
    whole,
)
from analysis.statistics import bootstrap as statistics

PLAN_COLUMNS = ("gpu", "model", "n_gpus", "tp", "cp", "pp", "dp", "micro_batch")
RUN_COLUMNS = tuple(dict.fromkeys([*STEP_COLUMNS, *MEMORY_COLUMNS, *PLAN_COLUMNS]))
VALIDATION_METHOD = f"""\
- **Error** of a run [%] = 100 (predicted step time / measured step time - 1); positive is too slow.
- **Mean abs. error**, **median abs. error** and **bias** of a data set are the mean and the median
  of absolute errors, and the mean of signed ones, over its runs; every run weighs the same.
- **Intervals** of a mean absolute error are percentile bootstrap intervals over runs,
  {100 * statistics.LEVEL:g} % nominal coverage, {statistics.RESAMPLES:,} resamples. Runs of one
  data set share a machine and a code base, hence part of their error: the interval says nothing
  about another site.
- **Kendall's tau** is the rank agreement of predicted and measured step times among runs of one
  model, mean over models weighted by pairs; 1 = the same order.
- **Choice regret** [%]: among runs that differ only in the plan, how much slower than the fastest
  the plan is that the predictions choose; mean over such groups.
- **Published errors** of other simulators are quoted from their publications, on the runs and with
  the tuning that the publication chose.
- **Left out** by X means: refitted without all runs of one X (a model, a number of GPUs, a length, a
  split of the work, a software stack), tried on them, then the next."""
_SAME_POINTS = 0.01  # means further apart than this were not made from the same rows
_WORST = 10


def dataset_summaries(record: RunRecord) -> dict[str, dict]:
    """The figures of merit by data set.

    Raises:
        RecordError: when the summary holds none.
    """
    found = record.summary.get("datasets")
    if not isinstance(found, dict) or not found:
        path, status = record.dir / "summary.json", record.run["status"]
        raise RecordError(f"{path}: lacks the keys ['datasets'] (the run's status is {status!r})")
    return found


def validation_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Step times and errors beside peers, memory, refits without the runs, the worst runs."""
    datasets = dataset_summaries(record)
    what = "Predicted against measured, memory, the worst runs"
    runs = optional_table(record, "metrics", RUN_COLUMNS, what, notes)
    timed = None if runs is None else _timed(record, runs)
    yield _headline(record, datasets, timed)
    if runs is not None:
        yield from _memory(record, runs, notes)
    yield from left_out_sections(record, timed, notes)
    if timed is not None:
        yield _worst(timed)


def _timed(record: RunRecord, runs: pd.DataFrame) -> pd.DataFrame | None:
    """Runs with a step time, None without any; an error that names the table if one is odd."""
    try:
        rows = timed_runs(runs)
    except ValueError as error:
        raise RecordError(f"{record.dir / 'metrics.csv'}: {error}") from None
    return None if rows.empty else rows


def peers_text(peers: dict[str, float]) -> str:
    """Published errors, the smallest first."""
    ranked = sorted(peers.items(), key=lambda item: item[1])
    return "; ".join(f"{cell(name)} {fixed(error)}" for name, error in ranked) or MISSING


def dataset_table(
    datasets: dict[str, dict], timed: pd.DataFrame | None = None, peers: dict | None = None
) -> str:
    """Figures of merit by data set; intervals need the runs themselves, peers their errors."""
    header = ["data set", "runs", "mean abs. error [%]"]
    header += ["95 % interval"] if timed is not None else []
    header += ["published mean abs. errors [%]"] if peers else []
    header += ["median abs. error [%]", "bias [%]", "Kendall's tau", "choice regret [%]"]
    header.append("memory, mean abs. error [%]")
    rows = []
    for name, row in datasets.items():
        line = [cell(name), number(row.get("n")), fixed(row.get("mape_pct"))]
        if timed is not None:
            errors = timed.loc[timed["dataset"] == name, "error_pct"]
            found = mean_absolute(errors) if len(errors) else {"lo": None, "hi": None}
            line.append(interval([found["lo"], found["hi"]]))
        if peers:
            line.append(peers_text(peers.get(name) or {}))
        line += [fixed(row.get(key)) for key in ("median_ape_pct", "bias_pct")]
        line.append(fixed(row.get("kendall_tau"), 2))
        rows.append(
            [*line, *(fixed(row.get(key)) for key in ("choice_regret_pct", "memory_mape_pct"))]
        )
    return table(header, rows)


def peers_sentence(datasets: dict[str, dict], peers: dict[str, dict]) -> str:
    """On how many data sets the error is smaller than any that was published."""
    against = {
        name: min(peers[name].values())
        for name, row in datasets.items()
        if peers.get(name) and row.get("mape_pct") is not None
    }
    below = [name for name, best in against.items() if datasets[name]["mape_pct"] < best]
    above = [name for name in against if name not in below]
    text = (
        f"Other simulators published their mean absolute error on {len(against)} of these data "
        f"sets. Here it is below the smallest published one on {len(below)} of {len(against)}"
    )
    return text + (f"; it is not on {', '.join(above)}." if above else ".")


def coverage_sentence(timed: pd.DataFrame) -> str | None:
    """How often the measured time lies within the interval of the calibration."""
    bounded = timed[timed[["predicted_lo_s", "predicted_hi_s"]].notna().all(axis=1)]
    if bounded.empty:
        return None
    inside = bounded["measured_s"].between(bounded["predicted_lo_s"], bounded["predicted_hi_s"])
    return (
        f"The 90 % band of the predictions holds the measured time of {inside.sum()} of "
        f"{len(bounded)} runs ({fixed(100 * inside.mean())} %). It covers what is not known of the "
        "parameters and the model's error as left-out groups showed it."
    )


def _disagreements(datasets: dict[str, dict], timed: pd.DataFrame) -> Iterator[str]:
    """A warning for each data set whose error in metrics.csv is not the one in the summary."""
    for name, seen in timed["error_pct"].abs().groupby(timed["dataset"], sort=False).mean().items():
        said = datasets.get(name, {}).get("mape_pct")
        if said is None or abs(said - seen) > _SAME_POINTS:
            yield (
                f"**Warning.** `summary.json` gives {name} a mean absolute error of "
                f"{fixed(said, 2)} %, `metrics.csv` {fixed(seen, 2)} %; the table shows the "
                "former, the figures the latter."
            )


def _untimed_sentence(datasets: dict[str, dict], timed: pd.DataFrame) -> str | None:
    """Which data sets are in the table alone: their error is that of something else."""
    alone = [
        name
        for name, row in datasets.items()
        if row.get("mape_pct") is not None and name not in set(timed["dataset"])
    ]
    if not alone:
        return None
    return (
        f"Of {', '.join(alone)} no step time was measured: the table gives the error of what was "
        "(such as the time spent in synchronisation), and the figures leave it out."
    )


def _headline(record: RunRecord, datasets: dict[str, dict], timed: pd.DataFrame | None) -> Section:
    """The table of data sets beside peers, and the two pictures of step times."""
    peers, skipped = record.summary.get("peers") or {}, record.summary.get("skipped")
    text = [dataset_table(datasets, timed, peers)]
    if peers:
        text.insert(0, peers_sentence(datasets, peers))
    if skipped:
        text.append(f"{number(skipped)} rows of the data could not be used and were skipped.")
    pictures = ()
    if timed is not None:
        said = (_untimed_sentence(datasets, timed), coverage_sentence(timed))
        text += [*_disagreements(datasets, timed), *(line for line in said if line)]
        times = drawn_from(record, "metrics", figures.step_times, timed)
        errors = drawn_from(record, "metrics", figures.step_errors, timed, peers)
        pictures = (
            Picture(
                "step-times",
                times,
                "Every measured run, one panel per data set, both axes logarithmic and equal. On "
                "the line a prediction is exact; the grey band is ±10 %. Above the line the "
                "prediction is too slow. Vertical lines, where drawn: 90 % band from what is "
                "not known of the calibration's parameters.",
            ),
            Picture(
                "step-errors",
                errors,
                "Left: signed errors. Ticks: single runs. Box: quartiles, with the median as a "
                "thick line; whiskers from 5 % to 95 % of the runs; grey band ±10 %. Right: mean "
                "absolute error with its 95 % bootstrap interval over runs (filled diamond), and "
                "what other simulators published for the same data set (open markers; on the runs "
                "and with the tuning of the publication).",
            ),
        )
    return Section("Predicted against measured", "\n\n".join(text), pictures)


def _memory(record: RunRecord, runs: pd.DataFrame, notes: list[str]) -> Iterator[Section]:
    if runs[["measured_gib", "predicted_gib"]].notna().all(axis=1).any():
        drawn = drawn_from(record, "metrics", figures.peak_memory, runs)
        caption = (
            "Peak memory of the fullest GPU, where it was published. On the line a prediction is "
            "exact; the grey band is ±10 %. A plan is wrongly accepted below the line, wrongly "
            "refused above it."
        )
        yield Section("Memory", "", (Picture("memory", drawn, caption),))
    else:
        notes.append(f"Memory: no run in `metrics.csv` of {record.dir} has a measured peak memory.")


def _worst(timed: pd.DataFrame) -> Section:
    """The runs with the largest absolute error."""
    order = timed["error_pct"].abs().sort_values(ascending=False, kind="stable").index[:_WORST]
    header = ["run", "data set", "GPU", "model", "GPUs", "tp x cp x pp x dp", "micro-batch"]
    header += ["measured [s]", "predicted [s]", "90 % band [s]", "error [%]"]
    rows = []
    for _, run in timed.loc[order].iterrows():
        bounds = [run["predicted_lo_s"], run["predicted_hi_s"]]
        shown = MISSING if pd.isna(bounds).any() else f"[{', '.join(map(number, bounds))}]"
        rows.append(
            [
                *(cell(run[key]) for key in ("row_id", "dataset", "gpu", "model")),
                whole(run["n_gpus"]),
                " x ".join(whole(run[key]) for key in ("tp", "cp", "pp", "dp")),
                whole(run["micro_batch"]),
                number(run["measured_s"]),
                number(run["predicted_s"]),
                shown,
                fixed(run["error_pct"]),
            ]
        )
    count = len(rows)
    said = f"The {count} largest absolute errors of {len(timed)} runs:\n\n"
    return Section("The runs predicted worst", said + table(header, rows, 4))
