"""Analyse data-parallel runs: figures, summary tables and a report in two languages.

    python -m analysis.analyze_metrics --run_dir RUN [--compare_dir OTHER] [--baseline ARM]

RUN holds one arm or several (`--mode compare`), and the baseline: `static`, or its first arm. With
--compare_dir the arms of a second run are added, for example

    python -m analysis.analyze_metrics --run_dir outputs/static --compare_dir outputs/dynamic
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.figures import draw_all, save
from analysis.records import RecordError, RunRecord, RunWriter
from analysis.report import ddp as ddp_report


def analyse(run: RunRecord, other: RunRecord | None, baseline: str | None, out: Path) -> Path:
    """Write figures/, summary.csv, summary.md, report.md and report.zh.md into `out`.

    Raises:
        RecordError: when the runs are not what is needed; nothing is written then.
    """
    found = ddp_report.find(run, other, baseline)
    out.mkdir(parents=True, exist_ok=True)
    writer = RunWriter(out, {})
    for name, figure in draw_all(found.merged, found.late, found.quality).items():
        save(figure, writer.figures / f"{name}.png")
    writer.write_table("summary", found.summary)
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
    parser.add_argument("--run_dir", type=Path, required=True, help="run with the baseline")
    parser.add_argument("--compare_dir", type=Path, help="run that is compared with it")
    parser.add_argument("--baseline", help="arm to compare with, if another than static")
    parser.add_argument("--out", type=Path, help="where to write (default: the run folder)")
    options = parser.parse_args(argv)
    try:
        run = ddp_report.read_run(options.run_dir)
        other = options.compare_dir and ddp_report.read_run(options.compare_dir)
        out = analyse(run, other, options.baseline, options.out or options.run_dir)
    except RecordError as error:
        print(f"analyze_metrics: {error}", file=sys.stderr)
        return 2
    print((out / "summary.md").read_text(encoding="utf-8"))
    print(f"report: {out / ddp_report.FILES['en']}, {out / ddp_report.FILES['zh']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
