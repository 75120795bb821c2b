"""One way for all entry points to end."""

from __future__ import annotations

import sys
from collections.abc import Callable

from analysis.records import RecordError
from jaxsim.files import InputError


class CheckError(RuntimeError):
    """Results that cannot be: one line that says what the simulator must never do, and did."""


def run_command(main: Callable[[], int | None]) -> int:
    """Run a command and return its exit status: 0 when the work was done, 2 for bad input and for
    results that fail a check (one line on standard error), 130 when interrupted."""
    try:
        return main() or 0
    except (InputError, RecordError, CheckError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
