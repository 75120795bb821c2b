"""Schedulers over a designed range of worlds: `python -m experiments.sweep --config FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo sweep design.yaml --batch 128 --dry-run"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import given_keys, parse
    from experiments.sweep.config import SweepConfig, resumed_config

    argv = with_design(argv)
    config = parse(SweepConfig, argv, "sweep", EXAMPLE)
    if config.resume is not None:
        config = resumed_config(config, given_keys(SweepConfig, argv))

    from experiments.common import use_compile_cache
    from experiments.sweep.sweeping import sweep

    use_compile_cache()  # few programs that run for long: compiled as well as can be
    return partial(sweep, config)


def with_design(argv: list[str]) -> list[str]:
    """The command line with the design file, which may stand alone in front, as --config."""
    if argv and not argv[0].startswith("-"):
        return ["--config", argv[0], *argv[1:]]
    return argv


if __name__ == "__main__":
    sys.exit(main())
