"""What foresight is worth: `python -m experiments.foresight [--jitters ou,heavy]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo foresight --jitters ou,heavy --futures [4,8] --horizons [12,24]"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import parse
    from experiments.foresight.config import ForesightConfig

    config = parse(ForesightConfig, argv, "foresight", EXAMPLE)
    if config.dry_run:
        from experiments.foresight.table import dry_run

        return partial(dry_run, config)

    from experiments.common import compile_for_evaluation

    compile_for_evaluation()
    from experiments.foresight.table import compare

    return partial(compare, config)


if __name__ == "__main__":
    sys.exit(main())
