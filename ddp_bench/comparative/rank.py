"""One rank of one framework: it builds its adapter, then does what it is told, in its turn.

Whoever compares has started a store, and writes commands into it; every rank writes its answers
there. A rank that waits for its turn waits in the kernel and takes no time from the others.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddp_bench.comparative.frameworks import Adapter, NotRun, Task, lines_of, named
from ddp_bench.ranks import comm
from ddp_bench.toolbox import CheckpointFailed, Ranks, checkpoint_errors, stopwatch

A_DAY = timedelta(days=1)
UNTIMED = 1  # steps of a turn before the timed ones: caches have been the others' meanwhile


def peak_rss() -> int:
    """Largest resident memory of this process so far [B], shared pages of libraries included."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    except OSError:  # not Linux
        pass
    scale = 1 if sys.platform == "darwin" else 1024
    return scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Turns:
    """What a rank does when it is its turn; `at` is the step of training that comes next."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        torch.set_num_threads(1)
        self.task, rank = Task(**job["task"]), int(os.environ["RANK"])
        device = torch.device("cpu")
        if torch.cuda.device_count() >= job["ranks"]:
            device = torch.device("cuda", rank)
            torch.cuda.set_device(device)
        kind = named(job["of"])  # imports the framework
        comm.join("nccl" if device.type == "cuda" else "gloo", job["timeout_s"])
        self.ranks = Ranks(rank, job["ranks"], device)
        self.imported = peak_rss()
        self.adapter: Adapter = kind(self.task, self.ranks, **job["settings"])
        self.at = 0

    def start(self) -> dict[str, Any]:
        """The first step, and when it was over on the wall clock."""
        loss = self._step()
        at_s = time.time()
        told = {"imported_bytes": self.imported, "lines": lines_of(type(self.adapter))}
        return {"loss": loss, "at_s": at_s, **told}

    def losses(self, steps: int) -> list[float | None]:
        """Losses of the next steps; None where another rank has them."""
        return [self._step() for _ in range(steps)]

    def time(self, steps: int) -> float:
        """Seconds that the next steps take, from when all ranks are ready."""
        batches = [self.task.batch(self.at + i) for i in range(UNTIMED + steps)]
        for batch in batches[:UNTIMED]:
            self.adapter.step(*batch)
        dist.barrier()
        with stopwatch(self.ranks.device) as seconds:
            for batch in batches[UNTIMED:]:
                self.adapter.step(*batch)
        self.at += len(batches)
        return seconds()

    def save(self, folder: str) -> dict[str, Any]:
        """Seconds of saving, and at which step; or why there is nothing to save."""
        return self._moved(lambda: self.adapter.save(Path(folder)))

    def load(self, folder: str, at: int) -> dict[str, Any]:
        """Seconds of loading what was saved at step `at`; or why nothing can be loaded."""
        found = self._moved(lambda: self.adapter.load(Path(folder)))
        self.at = at
        return found

    def memory(self) -> int:
        """Largest resident memory so far [B]."""
        return peak_rss()

    def _moved(self, move: Callable[[], None]) -> dict[str, Any]:
        dist.barrier()
        try:
            with checkpoint_errors(), stopwatch(self.ranks.device) as seconds:
                move()
                dist.barrier()
        except (NotRun, CheckpointFailed) as error:
            return {"why_not": str(error)}
        return {"seconds": seconds(), "at": self.at}

    def _step(self) -> float | None:
        loss = self.adapter.step(*self.task.batch(self.at))
        self.at += 1
        return None if loss is None else float(loss)


def first_line(error: BaseException) -> str:
    """An error in one line: its kind and what it says."""
    line = str(error).strip().partition("\n")[0]
    return line if isinstance(error, NotRun) else f"{type(error).__name__}: {line}".rstrip(": ")


def main(job_file: str) -> int:
    """Answer commands until `stop`; 1 after a failure, which has been told."""
    job = json.loads(Path(job_file).read_text())
    rank, port = os.environ["RANK"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False, timeout=A_DAY)
    number = 0
    try:
        turns = Turns(job)
        while True:
            command = json.loads(store.get(f"command-{number}"))
            if command["do"] == "stop":
                break
            answer = getattr(turns, command.pop("do"))(**command)
            store.set(f"answer-{number}-{rank}", json.dumps(answer))
            number += 1
    except Exception as error:
        told = {"error": first_line(error), "others": _is_broken_message(error)}
        told["not_run"] = isinstance(error, NotRun | ImportError)
        store.set(f"failed-{rank}", json.dumps(told))
        raise
    dist.destroy_process_group()
    return 0


def _is_broken_message(error: Exception) -> bool:
    """Whether `error` is the consequence of another rank's end, not its cause."""
    text = str(error).lower()
    signs = ("connection", "timed out", "gloo/transport")
    return isinstance(error, dist.DistError) or any(sign in text for sign in signs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
