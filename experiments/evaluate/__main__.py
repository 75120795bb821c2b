"""Compare schedulers on the same scenarios: `python -m experiments.evaluate --schedulers a,b,CKPT`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo evaluate --schedulers hysteresis,best_static,hi_ppo --jitter regime --seeds 16"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import check_output, given_keys, parse
    from experiments.evaluate.config import QUICK, EvaluateConfig, check_together, resumed_config

    config, given = (
        parse(EvaluateConfig, argv, "evaluate", EXAMPLE),
        given_keys(EvaluateConfig, argv),
    )
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    if config.resume is not None:
        config = resumed_config(config, given)
    else:
        check_together(config, given)
    if config.suite is not None and config.quick:
        given = [*given, *QUICK]  # a suite's own sizes give way to those of a quick run
    if config.dry_run:
        from experiments.evaluate.dry import dry_run

        return partial(dry_run, config, given)

    from experiments.common import compile_for_evaluation
    from experiments.evaluate.evaluation import evaluate

    compile_for_evaluation()
    return partial(evaluate, config, given)


if __name__ == "__main__":
    sys.exit(main())
