"""How long after a measurement `hippo watch` answers.

The command runs as a user runs it, in a process of its own; measurements of links drawn at random come
in one after another. The scheduler's memory moves on at each of them, which is the dearest case.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.common import CheckError
from experiments.respond import drawn
from jaxsim.cluster import ClusterSpec

SCHEDULERS = ("hi_ppo", "hysteresis")
MEASUREMENTS = 300  # per repeat
EVERY_S = 0.1  # between two measurements
DOMAINS = 8


def watching(spec: ClusterSpec, repeats: int) -> dict[str, Any]:
    """The figures of `bench --what watch`. Raises CheckError."""
    with tempfile.TemporaryDirectory(prefix="hippo-bench-") as folder:
        cluster = Path(folder) / "cluster.yaml"
        cluster.write_text(spec.to_yaml(), encoding="utf-8")
        ended = {
            name: _followed(spec, cluster, name, MEASUREMENTS * repeats) for name in SCHEDULERS
        }
    first = ended[SCHEDULERS[0]]
    within = {f"{name}_within_ms": found["within_ms"] for name, found in ended.items()}
    peers = {name: 1e3 / found["within_ms"]["p50"] for name, found in ended.items()}
    return {
        "per_s": peers.pop(SCHEDULERS[0]),
        "compile_s": first["ready_s"],
        "p99_ms": first["within_ms"]["p99"],
        "measurements": first["lines"],
        "every_s": EVERY_S,
        **within,
        "peers": peers,
    }


def _followed(spec: ClusterSpec, cluster: Path, scheduler: str, count: int) -> dict[str, Any]:
    """What `hippo watch` says at its end, and how long it took to be ready. Raises CheckError."""
    options = {"cluster": cluster, "scheduler": scheduler, "interval_s": EVERY_S / 2}
    command = [sys.executable, "-m", "experiments.watch"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    said = cluster.with_name(f"{scheduler}.jsonl")  # a pipe that nobody reads would hold it up
    start = time.perf_counter()
    with (
        said.open("w", encoding="utf-8") as out,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, text=True) as process,
    ):
        _wait_for_a_line(process, said)
        ready_s = time.perf_counter() - start
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit status says so
            for line in drawn(spec, count, seed=0):
                process.stdin.write(json.dumps(line) + "\n")
                process.stdin.flush()
                time.sleep(EVERY_S)
            process.stdin.close()
    if process.returncode != 0:
        raise CheckError(f"bench: watch --scheduler {scheduler} ended with an error")
    return {"ready_s": ready_s, **json.loads(said.read_text(encoding="utf-8").splitlines()[-1])}


def _wait_for_a_line(process: subprocess.Popen, said: Path) -> None:
    """Raises CheckError where the process ends before."""
    while process.poll() is None:
        if "\n" in said.read_text(encoding="utf-8"):
            return
        time.sleep(0.05)
    raise CheckError("bench: watch ended before it was ready")
