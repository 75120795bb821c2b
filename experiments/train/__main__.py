"""Train Hi-PPO: `python -m experiments.train --config FILE [--key value ...] [--resume DIR]`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo train --scenario.jitter regime --epochs 20 --seeds [0,1] --out outputs/my-policy"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs: that takes seconds."""
    from experiments.common import given_keys, parse
    from experiments.train.config import TrainConfig, resumed_config

    config = parse(TrainConfig, argv, "train", EXAMPLE)
    if config.resume is not None:
        config = resumed_config(config, given_keys(TrainConfig, argv))
    if config.dry_run:
        from experiments.train.worlds import dry_run

        return partial(dry_run, config)

    from experiments.common import compile_for_training
    from experiments.train.training import train

    return partial(train, config, compile_for_training())


if __name__ == "__main__":
    sys.exit(main())
