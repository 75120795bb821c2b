"""What is installed here, and what is missing: `python -m experiments.doctor`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from experiments.common import run_command

EXAMPLE = "hippo doctor --json doctor.json"


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    return run_command(lambda: _prepare(sys.argv[1:] if argv is None else argv))


def _prepare(argv: list[str]) -> Callable[[], object]:
    """Read the command line, then load what the work needs."""
    from experiments.common import check_output, parse
    from experiments.doctor.config import DoctorConfig

    config = parse(DoctorConfig, argv, "doctor", EXAMPLE)
    if config.json not in (None, "-"):
        check_output(config.json, "--json")

    from experiments.doctor.telling import tell

    return partial(tell, config)


if __name__ == "__main__":
    sys.exit(main())
