"""Measure speed: `python -m experiments.bench --what env|plans|train|decision|watch`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo bench --what env --domains 8 --envs 1024"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.bench.config import BenchConfig
    from experiments.common import parse

    config = parse(BenchConfig, argv, "bench", EXAMPLE)

    from experiments.bench.measure import bench, set_up

    set_up(config)
    return partial(bench, config)


if __name__ == "__main__":
    sys.exit(main())
