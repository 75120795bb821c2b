"""The processes of one framework, as whoever compares sees them: started, asked in turn, ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from ddp_bench.comparative.entries import Entry
from ddp_bench.comparative.frameworks import Task
from ddp_bench.toolbox import RanksFailed

ROOT = Path(__file__).parents[2]
LOOK_S = 0.02  # between two looks at whether an answer is there
OTHERS_S = 2.0  # for other ranks to tell what happened to them


def environment() -> dict[str, str]:
    """Of a rank: this checkout can be imported, programs of this Python's folder are found, and it
    computes on one thread."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return {
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **os.environ,
        "PATH": os.pathsep.join(path for path in programs if path),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


class Group:
    """The ranks of one entry; a context manager that ends them.

    Attributes:
        started_s: when the first process was started, on the wall clock [s].
    """

    def __init__(self, entry: Entry, task: Task, timeout_s: float, logs: Path) -> None:
        """Start the processes. What they print goes to `<logs>-rank<r>.txt`."""
        self._ranks, self._timeout_s, self._number = entry.ranks, timeout_s, 0
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        wait = timedelta(seconds=timeout_s)
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=wait
        )
        job = {"of": entry.of, "settings": entry.settings, "ranks": entry.ranks}
        job |= {"task": asdict(task), "timeout_s": timeout_s}
        file = Path(self._folder.name) / "job.json"
        file.write_text(json.dumps(job))
        self.started_s = time.time()
        self._processes = [self._start(rank, file, logs) for rank in range(entry.ranks)]

    def _start(self, rank: int, job: Path, logs: Path) -> subprocess.Popen:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self._ranks}
        places |= {"LOCAL_WORLD_SIZE": self._ranks, "MASTER_ADDR": "127.0.0.1"}
        places |= {"MASTER_PORT": self._store.port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
        command = [sys.executable, "-m", "ddp_bench.comparative.rank", str(job)]
        with open(f"{logs}-rank{rank}.txt", "w", encoding="utf-8") as log:
            return subprocess.Popen(
                command,
                env=environment() | {name: str(value) for name, value in places.items()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def ask(self, do: str, **arguments: Any) -> list[Any]:
        """What every rank answers to a command of `Turns`, by rank.

        Raises:
            RanksFailed: naming the rank that failed and why, or the one that was silent.
        """
        number, self._number = self._number, self._number + 1
        self._store.set(f"command-{number}", json.dumps({"do": do, **arguments}))
        keys = [f"answer-{number}-{rank}" for rank in range(self._ranks)]
        end = time.monotonic() + self._timeout_s
        while not self._store.check(keys):
            if any(process.poll() is not None for process in self._processes):
                raise RanksFailed(self._reason())
            if time.monotonic() > end:
                silent = next(r for r, key in enumerate(keys) if not self._store.check([key]))
                raise RanksFailed(f"rank {silent}: silent for {self._timeout_s:g} s")
            time.sleep(LOOK_S)
        return [json.loads(self._store.get(key)) for key in keys]

    def _reason(self) -> str:
        """Which rank failed and why: an error of its own counts before a signal that ended a rank,
        and that before messages that failed because another rank was gone."""
        end = time.monotonic() + OTHERS_S
        while time.monotonic() < end and any(p.poll() is None for p in self._processes):
            time.sleep(LOOK_S)
        told = {rank: self._told(rank) for rank in range(self._ranks)}
        for rank, said in told.items():
            if said and not said["others"]:
                return said["error"] if said["not_run"] else f"rank {rank}: {said['error']}"
        for rank, process in enumerate(self._processes):
            if (process.returncode or 0) < 0:
                name = signal.Signals(-process.returncode).name
                return f"rank {rank}: ended by {name}"
        for rank, said in told.items():
            if said:
                return f"rank {rank} lost another rank: {said['error']}"
        rank, process = next((r, p) for r, p in enumerate(self._processes) if p.poll() is not None)
        return f"rank {rank}: exit status {process.returncode}"

    def _told(self, rank: int) -> Mapping[str, Any] | None:
        key = f"failed-{rank}"
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def close(self) -> None:
        """End the processes, gently where they still listen."""
        with contextlib.suppress(RuntimeError):
            self._store.set(f"command-{self._number}", json.dumps({"do": "stop"}))
        end = time.monotonic() + OTHERS_S
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end - time.monotonic()))
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
