"""Start the ranks of a job, each in the namespace of its domain; watch them; make tables."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pandas

from analysis.records import RunWriter
from ddp_bench.errors import ConfigError
from ddp_bench.parallel.job import Job
from ddp_bench.parallel.summary import summarise
from ddp_bench.wan import inside_domain

TABLES = ("steps", "links", "transitions", "evaluations", "events")
TERM_S = 3.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class RankEnded(RuntimeError):
    """A rank ended before the run did; one line that names it."""


def run(job: Job, out: str | None) -> Path:
    """Train; the run folder. Raises RankEnded where a rank dies, after the others have ended."""
    writer = RunWriter.create("wan", job.to_json(), job.seed, out)
    shared = writer.dir / "ranks"
    shared.mkdir()
    with writer:
        try:
            _train(job, shared)
        finally:
            frames = _tables(shared)
            for name, frame in frames.items():
                writer.write_table(name, frame)
            shutil.rmtree(shared, ignore_errors=True)
        writer.finish(summarise(job, frames))
    return writer.dir


def _train(job: Job, shared: Path) -> None:
    """Fork the ranks and wait for them. This process has imported torch, so they need not."""
    import ddp_bench.parallel.worker  # noqa: F401

    pids: dict[int, int] = {}
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        for rank in range(len(job.ranks)):
            pids[_fork(job, rank, shared)] = rank
        _watch(job, pids, shared)
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(pids)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _fork(job: Job, rank: int, shared: Path) -> int:
    """Start one rank; its process id."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _die_with_parent()
        if os.getppid() != parent:  # it died before this one could say so
            os._exit(status)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher tells
        with contextlib.ExitStack() as stack:
            if job.network is not None:
                domain = job.domains.index(job.ranks[rank])
                stack.enter_context(inside_domain(job.network, domain))
            from ddp_bench.parallel.worker import work

            work(job, rank, shared)
        status = 0
    except BaseException:
        (shared / f"error{rank}.txt").write_text(traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _die_with_parent(how: signal.Signals = signal.SIGKILL) -> None:
    """A launcher that is killed takes its ranks along."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)


def end_with(owner: int) -> None:
    """From now on this process ends when `owner`, which started it, does. Raises ConfigError where
    that is not its parent, or no longer."""
    _die_with_parent(signal.SIGTERM)
    if os.getppid() != owner:
        raise ConfigError(f"--owner {owner}: this process was not started by it, or it has ended")


def _watch(job: Job, pids: dict[int, int], shared: Path) -> None:
    """Wait for all ranks; RankEnded as soon as one fails."""
    while pids:
        pid, status = os.wait()
        if pid not in pids:
            continue
        rank = pids.pop(pid)
        if status:
            raise RankEnded(_why(job, rank, status, shared))


def _why(job: Job, rank: int, status: int, shared: Path) -> str:
    """Which rank ended, where, and of what."""
    steps = [row["step"] for row in _rows(shared / f"rank{rank}.jsonl") if row["table"] == "steps"]
    where = f"after step {steps[-1]}" if steps else "before its first step"
    name = f"rank {rank} ({job.ranks[rank]})"
    if os.WIFSIGNALED(status):
        return f"{name} was killed by signal {os.WTERMSIG(status)} {where}; the run has ended"
    error = shared / f"error{rank}.txt"
    lines = error.read_text().strip().splitlines() if error.exists() else []
    reason = lines[-1] if lines else f"exit status {os.waitstatus_to_exitcode(status)}"
    return f"{name} failed {where}: {reason[:300]}"


def _end(pids: dict[int, int]) -> None:
    """End the ranks that are left."""
    for which, patience_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, TERM_S)):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
        deadline = time.monotonic() + patience_s
        while pids and time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid:
                pids.pop(pid, None)
            else:
                time.sleep(0.02)


def _rows(path: Path) -> list[dict[str, Any]]:
    """Rows of one rank; a last line that was torn off is left out."""
    if not path.exists():
        return []
    out = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            out.append(json.loads(line))
    return out


def _tables(shared: Path) -> dict[str, pandas.DataFrame]:
    """Rows of all ranks by table, in the order of steps and ranks."""
    rows = [row for path in sorted(shared.glob("rank*.jsonl")) for row in _rows(path)]
    found = {}
    for name in TABLES:
        own = [
            {k: v for k, v in row.items() if k != "table"} for row in rows if row["table"] == name
        ]
        if own:
            frame = pandas.DataFrame(own)
            by = [c for c in ("step", "rank") if c in frame.columns]
            found[name] = frame.sort_values(by, kind="stable") if by else frame
    return found


def checked(job: Job) -> Job:
    """The job, once it is certain that its network is up."""
    from ddp_bench.wan import is_up

    if job.network is not None and not is_up(job.network):
        raise ConfigError(f"network {job.network!r} is not up")
    return job
