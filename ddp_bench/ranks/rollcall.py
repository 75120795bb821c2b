"""Which ranks are still there after a message between them failed.

A broken connection does not show which of its two ends died. So every rank that is about to end
answers through the job's store, which lives in the launcher. The lowest rank that answered names
those that did not. The launcher ends the survivors with SIGTERM as soon as one rank is dead, often
while they wait inside a library; a thread answers that signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

EXPLAINED = "explained"  # this rank says itself why it ends
LOST = "lost"  # a message to or from it failed
ENDED = "ended"  # it was asked to end
_EXPLAINING_S = 2.0


class RollCall:
    """This rank's part in the roll call of its job.

    Args:
        store: shared by all ranks; of this attempt of the job alone.
        timeout_s: how long messages wait, for the line to the user.
        patience_s: how long answers are waited for.
    """

    def __init__(
        self, store: dist.Store, rank: int, ranks: int, timeout_s: float, patience_s: float = 8.0
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self._store, self._timeout_s, self._patience_s = store, timeout_s, patience_s
        self._lock = threading.Lock()
        self._reason = ""
        self._reported = False

    def answer(self, reason: str) -> None:
        """Let the others know that this process is alive and why it ends; the first reason counts."""
        if not self._reason:
            self._reason = reason
            with contextlib.suppress(dist.DistError):  # the launcher may be gone with the store
                self._store.set(_key(self.rank), reason)

    def report(self, reason: str, say: Callable[[str], None], detail: str = "") -> None:
        """Answer, wait for the others, and `say` who is to blame if that falls to this rank.

        Silent where another rank explains its own end. Later calls do nothing.
        """
        with self._lock:  # the end of the process waits until all is said
            if self._reported:
                return
            self._reported = True
            self.answer(reason)
            try:
                line = self._line(detail)
            except dist.DistError:
                return
            if line:
                say(line)

    def _line(self, detail: str) -> str:
        deadline = time.monotonic() + self._patience_s
        while (missing := self._missing()) and time.monotonic() < deadline:
            time.sleep(0.05)
        there = [rank for rank in range(self.ranks) if rank not in missing]
        if self.rank != there[0]:
            return ""
        if missing:
            names = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
            return f"{names}: dead, or silent for {self._timeout_s:g} s"
        if all(self._store.get(_key(rank)).decode() == LOST for rank in there):
            return f"a message between ranks failed, though all are there: {detail}"
        return ""

    def _missing(self) -> list[int]:
        return [rank for rank in range(self.ranks) if not self._store.check([_key(rank)])]

    def on_terminate(self, say: Callable[[str], None]) -> None:
        """From now on, SIGTERM ends this process after a report.

        The interpreter runs signal handlers in the main thread, once it is out of the library it
        waits in; the wake-up file is written at once.
        """
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._wait_for_term, args=(read, say), daemon=True).start()

    def _wait_for_term(self, read: int, say: Callable[[str], None]) -> None:
        while os.read(read, 1)[0] != signal.SIGTERM:
            pass
        self.report(ENDED, say)
        if self._reason == EXPLAINED:
            time.sleep(_EXPLAINING_S)
        os._exit(128 + signal.SIGTERM)


def _key(rank: int) -> str:
    return f"roll-call/{rank}"
