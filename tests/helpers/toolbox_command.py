"""The command of a room of `ddp_bench`, as a user starts it."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PATH = os.pathsep.join([str(ROOT), str(ROOT / "tests")])  # ranks find the tests' helpers, too


def run(room, *arguments, timeout_s=300, **options):
    """The finished process of `python -m ddp_bench.ROOM`, with what it printed as text."""
    env = {**os.environ, "PYTHONPATH": PATH, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", f"ddp_bench.{room}", *map(str, arguments)]
    options = {"env": env, "capture_output": True, "text": True, **options}
    return subprocess.run(command, timeout=timeout_s, **options)


def assert_refused(room, folder, arguments, said):
    """Bad input is one line, exit status 2, and leaves nothing in the empty `folder`."""
    done = run(room, *arguments, cwd=folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and said in done.stderr
    assert not list(folder.iterdir())
