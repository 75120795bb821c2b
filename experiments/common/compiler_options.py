"""Options of XLA, which ends the process for one that it does not know: ask another process first."""

from __future__ import annotations

import os
import subprocess
import sys


def add_options(*options: str) -> tuple[str, ...]:
    """Put options into XLA_FLAGS, before JAX first computes; processes started later inherit them.

    Returns those added: not the ones that are there already, and none where this version of XLA
    refuses them.
    """
    present = os.environ.get("XLA_FLAGS", "").split()
    new = tuple(option for option in options if option not in present)
    flags = " ".join([*new, *present])
    if not new or not _accepted(flags):
        return ()
    os.environ["XLA_FLAGS"] = flags
    return new


def _accepted(flags: str) -> bool:
    """Does a process with these XLA_FLAGS start?"""
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0
