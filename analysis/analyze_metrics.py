"""Analyse data-parallel runs: figures, summary tables and a report in two languages.

    python -m analysis.analyze_metrics --run_dir RUN [--compare_dir OTHER] [--baseline ARM]

RUN may hold one arm or several (`--mode compare`). With --compare_dir the arms of a second run
are added and its first arm is the baseline; else the baseline is `static` or the first arm.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.figures import draw_all, save
from analysis.records import RecordError, RunRecord, RunWriter, load
from analysis.report import RIVAL
from analysis.report import ddp as ddp_report
from analysis.statistics import COLUMNS, accuracy_table, ceiling, gains, predictions, summary_table

# Runs that agree in these did the same work on the same samples step by step: what was set, and
# what was really used, since a hub out of reach changes model and data.
STREAM_KEYS = (
    *("dataset", "train_samples", "eval_samples", "synthetic_rows", "synthetic_tail", "bad_rows"),
    *("model", "max_length", "global_batch", "seed"),
)
USED_KEYS = ("model", "data_source", "train_rows")


@dataclass(frozen=True)
class Inputs:
    """What is analysed: rows of all arms, held-out rows if both runs have them, the baseline."""

    merged: pd.DataFrame
    correct: pd.DataFrame | None
    base: str
    paired: bool


def _read(folder: Path) -> RunRecord:
    record = load(folder)
    if record.run["kind"] != "ddp":
        raise RecordError(f"{folder}/run.json: kind is {record.run['kind']!r}; allowed is 'ddp'")
    return record


def _correct(record: RunRecord) -> pd.DataFrame | None:
    return record.table("eval_rows") if "eval_rows" in record.tables() else None


def _stream(record: RunRecord) -> list:
    """What determines the samples of every step and the work they are."""
    config, used = record.run["config"], record.summary.get("setup", {})
    return [*(config.get(key) for key in STREAM_KEYS), *(used.get(key) for key in USED_KEYS)]


def read_inputs(run: RunRecord, other: RunRecord | None, baseline: str | None) -> Inputs:
    """Rows of one or two runs with distinct arm names.

    Raises:
        RecordError: when a table is missing or the baseline is no arm.
    """
    merged = run.table("merged_metrics", COLUMNS)
    correct, paired = _correct(run), True
    arms = list(merged["arm"].unique())
    base = baseline or ("static" if "static" in arms else arms[0])
    if other is not None:
        second, right = other.table("merged_metrics", COLUMNS), _correct(other)
        shared = set(arms) & set(second["arm"])
        name = other.run["run_id"]
        rename = {arm: f"{name}/{arm}" for arm in shared}
        second["arm"] = second["arm"].replace(rename)
        base = baseline or ("static" if "static" in set(second["arm"]) else second["arm"].iloc[0])
        merged = pd.concat([merged, second], ignore_index=True)
        paired = _stream(run) == _stream(other)
        paired &= merged.groupby("arm")["step"].nunique().nunique() == 1
        if correct is not None and right is not None and paired:
            right["arm"] = right["arm"].replace(rename)
            correct = pd.concat([correct, right], ignore_index=True)
    if base not in set(merged["arm"]):
        raise RecordError(f"baseline {base!r}: allowed {', '.join(merged['arm'].unique())}")
    if correct is not None and base not in set(correct["arm"]):
        correct = None
    return Inputs(merged, correct, base, bool(paired))


def analyse(run: RunRecord, other: RunRecord | None, baseline: str | None, out: Path) -> Path:
    """Write figures/, summary.csv, summary.md, report.md and report.zh.md into `out`.

    Raises:
        RecordError: when the runs are not what is needed; nothing is written then.
    """
    inputs = read_inputs(run, other, baseline)
    summary = summary_table(inputs.merged, inputs.base, inputs.paired)
    arms = set(inputs.merged["arm"])
    rival = summary_table(inputs.merged, RIVAL, inputs.paired) if RIVAL in arms else None
    late, quality = predictions(inputs.merged)
    found = ddp_report.Findings(
        run=run,
        base=inputs.base,
        paired=inputs.paired,
        summary=summary,
        against_rival=rival,
        gains=gains(late, inputs.base),
        quality=quality,
        ceiling=ceiling(late, inputs.base, quality["padded"]["coefficients_ms"])
        if "padded" in quality
        else None,
        accuracy=None if inputs.correct is None else accuracy_table(inputs.correct, inputs.base),
        modelled=run.table("modelled") if "modelled" in run.tables() else None,
    )
    out.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(out, {})
    for name, figure in draw_all(inputs.merged, late, quality).items():
        save(figure, writer.figures / f"{name}.png")
    writer.write_table("summary", summary)
    for language in ddp_report.LANGUAGES:
        (out / ddp_report.FILES[language]).write_text(
            ddp_report.render(found, language), encoding="utf-8"
        )
    (out / "summary.md").write_text(ddp_report.summary_page(found), encoding="utf-8")
    return out


def main(argv: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.analyze_metrics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run_dir", type=Path, required=True, help="run folder to analyse")
    parser.add_argument("--compare_dir", type=Path, help="run folder that holds the baseline")
    parser.add_argument("--baseline", help="arm to compare with")
    parser.add_argument("--out", type=Path, help="where to write (default: the run folder)")
    options = parser.parse_args(argv)
    try:
        run = _read(options.run_dir)
        other = None if options.compare_dir is None else _read(options.compare_dir)
        out = analyse(run, other, options.baseline, options.out or options.run_dir)
    except RecordError as error:
        print(f"analyze_metrics: {error}", file=sys.stderr)
        return 2
    print((out / "summary.md").read_text(encoding="utf-8"))
    print(f"report: {out / ddp_report.FILES['en']}, {out / ddp_report.FILES['zh']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
