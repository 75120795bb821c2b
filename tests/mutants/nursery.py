"""A process with the large libraries loaded that forks a pytest for every job it reads.

Run as `python nursery.py`. A line of standard input is a job, {"tree", "tests", "marks", "limit_s",
"log"}; a line of standard output is its answer, {"outcome", "seconds", "test"}. Loading JAX, pandas,
PyTorch and pytest takes seconds, most errors show within one: so load once and fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

LIBRARIES = (
    "jax",
    "jax.numpy",
    "flax.linen",
    "flax.struct",
    "optax",
    "chex",
    "jraph",
    "pandas",
    "scipy.optimize",
    "scipy.stats",
    "moocore",
    "matplotlib.figure",
    "jsonargparse",
    "yaml",
    "torch",
    "torch.nn.parallel",
    "transformers",
    "pytest",
    "hypothesis",
    "hypothesis.strategies",
)
# 2: a test file could not be loaded; 5: no test has these marks
OUTCOMES = {0: "survived", 1: "killed", 2: "killed", 5: "untested"}


class _First:
    """Remembers the first test that failed."""

    name = ""

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.name:
            self.name = report.nodeid

    def pytest_collectreport(self, report):
        if report.failed and not self.name:
            self.name = report.nodeid


def main() -> None:
    """Answer jobs until standard input ends."""
    for name in LIBRARIES:
        try:
            __import__(name)
        except ImportError:  # its tests are skipped, or fail in the run without errors
            print(f"{name} is not installed", file=sys.stderr)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(job: dict) -> dict:
    """Fork a pytest, wait for it, kill it and what it started when its time is over."""
    started = time.monotonic()
    note = Path(job["log"]).with_suffix(".first")
    note.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _run_tests(job, note)
    status = None
    while status is None and time.monotonic() - started < job["limit_s"]:
        done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
        if status is None:
            time.sleep(0.05)
    if status is None:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        outcome = "timeout"
    else:
        # A crash of the interpreter notices too; pytest's codes 3 and 4 are mistakes of this tool.
        outcome = "killed" if status < 0 else OUTCOMES.get(status, "error")
    first = note.read_text() if note.exists() else ""
    return {"outcome": outcome, "seconds": time.monotonic() - started, "test": first}


def _run_tests(job: dict, note: Path) -> None:
    """In the child: become the leader of a process group, run pytest, end without cleaning up."""
    os.setsid()
    os.chdir(job["tree"])
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDONLY) if stream == 0 else log, stream)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    sys.path[0] = job["tree"]
    code = 3
    try:
        import hypothesis
        import pytest

        # An error is found or not: no need for the smallest example of it.
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        hypothesis.settings.register_profile("mutants", phases=phases, database=None)
        hypothesis.settings.load_profile("mutants")
        first = _First()
        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:randomly"]
        options += ["--hypothesis-seed=0", *job["tests"]]
        code = int(pytest.main([*options, "-m", job["marks"]], plugins=[first]))
        note.write_text(first.name)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
