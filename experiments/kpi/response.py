"""The response of a real process: from a measurement sent to the new two-level plan received."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from experiments.respond import drawn
from jaxsim.cluster import ClusterSpec
from jaxsim.files import InputError

ROOT = Path(__file__).parents[2]


def handed_command(path: Path) -> list[str]:
    """The command line of a process that answers measurements in the world of a file that `hand_over`
    wrote."""
    return [sys.executable, "-m", "experiments.respond.handed", str(path)]


class RespondingProcess:
    """A process that answers measurements, which takes tens of seconds to begin. Close it."""

    def __init__(self, command: list[str]):
        """Start `command` and wait for its first plan.

        Raises InputError where the process answers with anything else.
        """
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        try:
            _plan_in(self._process.stdout.readline())
        except BaseException:
            self.close()
            raise

    def response_s(self, spec: ClusterSpec, count: int, seed: int = 0) -> np.ndarray:
        """[count] seconds from writing a link's measurement to having read the new plan, both levels
        decided. Raises InputError where the process does not answer with a plan."""
        taken = []
        for measurement in drawn(spec, count, seed):
            line = json.dumps(measurement) + "\n"
            start = time.perf_counter()
            with contextlib.suppress(BrokenPipeError):  # it has ended: there is no answer
                self._process.stdin.write(line)
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
            taken.append(time.perf_counter() - start)
            _plan_in(answer)
        return np.array(taken)

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):  # what it has not read
            self._process.stdin.close()


def _plan_in(answer: str) -> None:
    if "plan" not in (json.loads(answer) if answer else {}):
        raise InputError(f"respond: the process answered no plan but {answer.strip() or 'nothing'}")
