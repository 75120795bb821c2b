"""Pieces of work in threads, where most of each is the compiler's, which leaves Python's lock alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
AT_ONCE = 2  # XLA computes on all cores as it is


def side_by_side(work: Sequence[Callable[[], Result]]) -> list[Result]:
    """What each piece of work returns, in their order, AT_ONCE pieces at a time.

    Where one raises, or the user interrupts, pieces that have not begun are left out, and the error is
    raised once those that run are done.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(one) for one in work]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()
