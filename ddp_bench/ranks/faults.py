"""Fault drills: one rank fails at one step, to see that the job ends or recovers as promised."""

from __future__ import annotations

import os
import signal
import time

import torch

from ddp_bench.config import parse_fault


class Drill:
    """`--inject KIND:RANK:STEP`; fires once, and not in a job that torchrun has restarted."""

    def __init__(self, text: str, rank: int) -> None:
        fault = parse_fault(text)
        restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        self._kind, self._step = "", -1
        if fault and fault[1] == rank and not restarted:
            self._kind, _, self._step = fault

    def fire(self, step: int) -> None:
        """Called inside the forward pass of `step`.

        Raises:
            torch.OutOfMemoryError, RuntimeError: when that is the drill.
        """
        if not self._kind or step != self._step:
            return
        kind, self._kind = self._kind, ""
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "stall":
            time.sleep(24 * 3600)
        if kind == "oom":
            raise torch.OutOfMemoryError("drill: out of memory")
        raise RuntimeError("drill: exception in forward")
