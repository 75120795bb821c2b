"""Fit calibrations to measurements: `python -m experiments.calibrate --data DIR --out FILE`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo calibrate --data measured --gpu A100-80GB --out my-calibration.yaml"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.calibrate.config import CalibrateConfig
    from experiments.common import parse

    config = parse(CalibrateConfig, argv, "calibrate", EXAMPLE)

    from experiments.calibrate.fit import calibrate
    from experiments.common import use_compile_cache

    use_compile_cache()
    return partial(calibrate, config)


if __name__ == "__main__":
    sys.exit(main())
