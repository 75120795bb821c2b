"""A report from run folders: `python -m analysis.report RUN [RUN ...]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DESCRIPTION = """\
A report from run folders: report.md, its figures and their data, in the first run's folder, with every
number taken from the records. An evaluation first and the training run that it came from beside it
give the whole story; any mixture of kinds will do."""
EXAMPLE = "example:\n  hippo report outputs/evaluate outputs/train\n"
EXAMPLE += "  hippo report outputs/evaluate --language zh --html"


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line."""

    def error(self, message: str) -> None:
        self.exit(2, f"error: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status: 0, or 2 for bad input."""
    parser = _Parser(
        prog="hippo report",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument(
        "--language", default="en", metavar="en|zh", help="English (default) or Chinese"
    )
    parser.add_argument(
        "--html",
        action="store_true",
        help="also one self-contained HTML file with tooltips on the figures (needs plotly)",
    )
    arguments = parser.parse_args(argv)

    from analysis.records import RecordError
    from analysis.report import write_report

    try:
        print(write_report(arguments.runs, arguments.language, arguments.html))
    except RecordError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
