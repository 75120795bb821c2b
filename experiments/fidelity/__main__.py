"""Where the closed form holds: `python -m experiments.fidelity [--samples N]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo fidelity --samples 50 --micro-batches 16"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import parse
    from experiments.fidelity.config import FidelityConfig

    config = parse(FidelityConfig, argv, "fidelity", EXAMPLE)

    if config.orders:
        from experiments.common import use_compile_cache
        from experiments.fidelity.orders import compare_orders

        use_compile_cache()
        return partial(compare_orders, config)

    from experiments.fidelity.ratios import compare

    return partial(compare, config)


if __name__ == "__main__":
    sys.exit(main())
