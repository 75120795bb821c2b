"""Commands of real training: started as a subprocess, so that nothing of `ddp_bench` is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def _environment() -> dict[str, str]:
    """One compute thread per rank, and this checkout importable from anywhere."""
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    paths = [str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def run_module(*arguments: str) -> int:
    """`python -m arguments` of this installation; its exit status."""
    return subprocess.run([sys.executable, "-m", *arguments], env=_environment()).returncode


def module_output(*arguments: str) -> str:
    """What `python -m arguments` of this installation prints. Raises CalledProcessError."""
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=True)
    return done.stdout.rstrip()


def room_command(name: str, command: str = "") -> Callable[[list[str] | None], int]:
    """`main` of a room of `ddp_bench`: every argument is passed on to it.

    Args:
        command: what `hippo` calls it, if not as the room.
    """

    def main(argv: list[str] | None = None) -> int:
        """The room's exit status."""
        arguments = sys.argv[1:] if argv is None else argv
        if {"-h", "--help"} & set(arguments):
            text = module_output(f"ddp_bench.{name}", "--help")
            print(f"{text}\n\nexample:\n  hippo {command or name} --quick")
            raise SystemExit(0)
        try:
            return run_module(f"ddp_bench.{name}", *arguments)
        except KeyboardInterrupt:  # the room was interrupted as well, and has said so
            return 130

    return main
