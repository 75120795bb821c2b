"""Draw a jobs file: `python -m experiments.jobs --count 16 --out FILE [--trace CSV]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo jobs --count 8 --span-hours 4 --seed 1 --out jobs.csv"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import parse
    from experiments.jobs.config import JobsConfig

    config = parse(JobsConfig, argv, "jobs", EXAMPLE)

    from experiments.jobs.draw import draw

    return partial(draw, config)


if __name__ == "__main__":
    sys.exit(main())
