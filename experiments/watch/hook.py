"""The user's command that puts a plan into force."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from analysis.records import write_json
from jaxsim.plan import FULL_PRECISION_BITS, Plan, whole_plan

CANNOT_RUN = 126  # what a shell says of a command that cannot be run
SCALARS = ("sync_period", "fragments", "overlap", "wire_bits")


def plan_file(plan: Plan, domains: tuple[str, ...]) -> dict[str, Any]:
    """A plan as the content of a plan file (docs/file-formats.md), for one job: in words, and under
    `fields` in the numbers that --running reads."""
    settings = {name: int(np.asarray(getattr(plan, name))) for name in SCALARS}
    if (over := int(np.asarray(plan.shard_groups))) > 1:
        settings["shard_groups"] = over
    if (bits := int(np.asarray(plan.activation_bits))) != FULL_PRECISION_BITS:
        settings["activation_bits"] = bits
    fields = {name: np.asarray(value).tolist() for name, value in vars(plan).items()}
    return {"pipelines": whole_plan(plan, domains), **settings, "fields": fields}


class Hook:
    """Runs the command, one plan at a time, without waiting for it."""

    def __init__(self, words: list[str], path: Path, timeout_s: float) -> None:
        """`path` is the plan file, the command's last argument."""
        self._words, self._path, self._timeout_s = [*words, str(path)], path, timeout_s
        self._process: subprocess.Popen | None = None
        self._since, self._cannot = 0.0, False

    @property
    def running(self) -> bool:
        """Is a plan being put into force?"""
        return self._cannot or self._process is not None

    def start(self, content: dict[str, Any]) -> None:
        """Write the plan file and start the command; what it prints goes to standard error. Where that
        is not possible, it is as if the command had failed."""
        self._since, self._cannot = time.monotonic(), False
        try:
            write_json(self._path, content)
            self._process = subprocess.Popen(
                self._words, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
            )
        except OSError as error:
            print(f"apply: {error}", file=sys.stderr, flush=True)
            self._cannot = True

    def poll(self) -> dict[str, Any] | None:
        """How the command ended, {"status", "seconds"}; None where it did not. One that takes too long
        is killed, with all that it started."""
        seconds = time.monotonic() - self._since
        if self._cannot:
            self._cannot = False
            return {"status": CANNOT_RUN, "seconds": round(seconds, 3)}
        if self._process is None:
            return None
        status = self._process.poll()
        if status is None:
            if seconds < self._timeout_s:
                return None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            status = self._process.wait()
        self._process = None
        return {"status": status, "seconds": round(seconds, 3)}
