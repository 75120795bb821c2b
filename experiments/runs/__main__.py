"""Run folders, listed and compared: `python -m experiments.runs [--compare A,B]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo runs --compare outputs/before,outputs/after"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs."""
    from experiments.common import check_output, parse
    from experiments.runs.config import RunsConfig

    config = parse(RunsConfig, argv, "runs", EXAMPLE)
    if config.json not in (None, "-"):
        check_output(config.json, "--json")

    from experiments.runs.listing import tell

    return partial(tell, config)


if __name__ == "__main__":
    sys.exit(main())
