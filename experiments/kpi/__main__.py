"""The eight key figures: `python -m experiments.kpi [--policy CKPT] [--json FILE]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo kpi --policy outputs/my-policy --seeds 8 --json kpi.json"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import given_keys, parse
    from experiments.kpi.config import KpiConfig, resumed_config

    config = parse(KpiConfig, argv, "kpi", EXAMPLE)
    if config.resume is not None:
        config = resumed_config(config, given_keys(KpiConfig, argv))
    if config.dry_run:
        from experiments.kpi.board import dry_run

        return partial(dry_run, config)

    from experiments.common import compile_for_evaluation
    from experiments.kpi.board import kpi

    compile_for_evaluation()
    return partial(kpi, config)


if __name__ == "__main__":
    sys.exit(main())
