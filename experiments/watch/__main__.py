"""Watch links and say when the plan should change: `python -m experiments.watch --cluster FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = (
    "hippo watch --cluster three-sites.yaml --model llama-13b --scheduler hysteresis < links.jsonl"
)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import parse
    from experiments.watch.config import WatchConfig

    config = parse(WatchConfig, argv, "watch", EXAMPLE)

    from experiments.common import compile_for_evaluation
    from experiments.watch.service import watch

    compile_for_evaluation()
    return partial(watch, config, sys.stdin, sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
