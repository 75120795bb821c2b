"""A plan in seconds: `python -m experiments.plan --cluster FILE --model NAME --global-batch N`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo plan --cluster three-sites.yaml --model llama-13b --tokens 300e9 --figure"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import check_output, parse
    from experiments.plan.config import PlanConfig
    from experiments.plan.whatif import joined

    config = parse(PlanConfig, joined(argv), "plan", EXAMPLE)
    if config.json not in (None, "-"):
        check_output(config.json, "--json")

    from experiments.common import compile_for_evaluation
    from experiments.plan.planning import make_plan

    compile_for_evaluation()
    return partial(make_plan, config)


if __name__ == "__main__":
    sys.exit(main())
