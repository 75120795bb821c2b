"""A scheduler that listens: `python -m experiments.respond --cluster FILE --scheduler NAME`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from experiments.common import run_command

EXAMPLE = "hippo respond --cluster three-sites.yaml --scheduler hysteresis < measurements.jsonl"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import parse
    from experiments.respond.config import RespondConfig

    config = parse(RespondConfig, argv, "respond", EXAMPLE)

    from experiments.common import compile_for_evaluation
    from experiments.respond.responder import make_responder, serve

    compile_for_evaluation()
    return lambda: serve(make_responder(config), sys.stdin, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
