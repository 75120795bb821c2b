"""Pieces of work in threads: the compiler and compiled programs leave Python's lock alone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

Result = TypeVar("Result")
AT_ONCE = 2  # a program keeps one core busy, or all: more pieces take memory and no less time


def side_by_side(
    work: Sequence[Callable[[], Result]],
    before: Callable[[Callable[[], object]], object] | None = None,
) -> list[Result]:
    """What each piece of work returns, in their order, AT_ONCE pieces at a time.

    `before` is called in the caller's thread ahead of each piece, when one may begin, with a function
    that returns when nothing runs any more. Where one raises, or the user interrupts, pieces that have
    not begun are left out, and the error is raised once those that run are done.
    """
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures: list[Future[Result]] = []
        try:
            for one in work:
                if before is not None:
                    _await_turn(futures)
                    before(functools.partial(wait, list(futures)))
                futures.append(pool.submit(one))
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


def _await_turn(futures: Sequence[Future[Result]]) -> None:
    """Return when a thread is free; raises what a piece raised."""
    running = [future for future in futures if not future.done()]
    if len(running) >= AT_ONCE:
        wait(running, return_when=FIRST_COMPLETED)
    for future in futures:
        if future.done():
            future.result()


def made_once(function: Callable[..., Result]) -> Callable[..., Result]:
    """`functools.cache` for work that goes on side by side: who asks for what another thread is making
    waits for it, and does not make it again. What raises is made again when it is asked for next."""
    known: dict[tuple, Result] = {}
    making: dict[tuple, threading.RLock] = {}
    asking = threading.Lock()

    @functools.wraps(function)
    def made(*args) -> Result:
        with asking:
            own = making.setdefault(args, threading.RLock())
        with own:
            if args not in known:
                known[args] = function(*args)
            return known[args]

    return made
