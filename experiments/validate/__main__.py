"""Predictions beside measured runs: `python -m experiments.validate --data FILE|DIR`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo validate --data measured-runs.csv --json -"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import parse
    from experiments.validate.config import ValidateConfig

    config = parse(ValidateConfig, argv, "validate", EXAMPLE)

    from experiments.calibrate import is_microbench
    from experiments.common import use_compile_cache

    use_compile_cache()
    if is_microbench(config.data):
        from experiments.validate.machine import validate_machine

        return partial(validate_machine, config)
    from experiments.validate.validation import validate

    return partial(validate, config)


if __name__ == "__main__":
    sys.exit(main())
