"""Functions on several ranks of this machine, started and watched by torchrun's own agent."""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from ddp_bench.errors import RankLost
from ddp_bench.ranks import comm

ROOT = Path(__file__).parents[2]
AFTER_A_BROKEN_MESSAGE_S = 2.0
PRELOAD = ["torch", "torch.distributed.elastic.multiprocessing", __name__]


class RanksFailed(RankLost):
    """A rank failed. One line: which, and what it said."""


@dataclass(frozen=True)
class Ranks:
    """What a function on a rank is told: its number, how many there are, and its device."""

    rank: int
    ranks: int
    device: torch.device


def _on_rank(function: Callable[..., Any], timeout_s: float, notes: str, arguments: tuple) -> Any:
    """Join the process group, call the function, leave; a fault is noted for whoever started it."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.device_count() >= ranks:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    for note in Path(notes).glob(f"*-{rank}"):  # of an attempt before this one
        note.unlink()
    comm.join(backend, timeout_s)
    try:
        result = function(Ranks(rank, ranks, device), *arguments)
        dist.barrier()  # a rank that leaves early can break the others' last message
    except Exception as error:
        line = str(error).partition("\n")[0]
        cause = f"{type(error).__name__}: {line}" if line else type(error).__name__
        kind = "message" if _is_broken_message(error) else "own"
        Path(notes, f"{kind}-{rank}").write_text(cause)
        if kind == "message":
            # The agent ends all ranks at the first that it sees fail: let it see who was killed first.
            time.sleep(AFTER_A_BROKEN_MESSAGE_S)
        raise
    dist.destroy_process_group()
    return result


def _is_broken_message(error: Exception) -> bool:
    """Whether `error` is the consequence of another rank's end, not its cause."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in text or "timed out" in text


def on_ranks(
    function: Callable[..., Any],
    ranks: int,
    *arguments: Any,
    timeout_s: float = 120.0,
    max_restarts: int = 0,
    preload: tuple[str, ...] = (),
) -> list[Any]:
    """What `function(Ranks, *arguments)` returns on each of `ranks` ranks, by rank.

    Every rank has a GPU and NCCL where there are as many GPUs, else the CPU and gloo. Ranks are
    forked from a server that has imported torch and `preload`, so that a start takes no seconds of
    importing.

    Args:
        function: of the top level of a module, so that ranks find it.
        timeout_s: a message between ranks that takes longer fails.
        max_restarts: how often all ranks are started again after one failed.

    Raises:
        RanksFailed: naming the first rank that failed and why.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOAD, *preload])
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder, _environment(), _quiet():
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=ranks,
            max_restarts=max_restarts,
            start_method="forkserver",
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id=secrets.token_hex(8),
            monitor_interval=0.02,
            logs_specs=DefaultLogsSpecs(log_dir=folder, redirects=Std.ALL),
        )
        try:
            found = elastic_launch(config, _on_rank)(function, timeout_s, folder, arguments)
        except ChildFailedError as error:
            raise RanksFailed(_reason(Path(folder), error)) from None
    return [found[rank] for rank in range(ranks)]


def _reason(notes: Path, error: ChildFailedError) -> str:
    """Which rank failed and why: what a rank noted of itself counts before a signal that ended one,
    and that before messages that failed because another rank was gone."""
    for note in sorted(notes.glob("own-*")):
        return f"rank {note.name.partition('-')[2]}: {note.read_text()}"
    rank, failure = error.get_first_failure()
    if failure.exitcode < 0:
        return f"rank {rank}: ended by {failure.signal_name()}"
    for note in sorted(notes.glob("message-*")):
        return f"rank {note.name.partition('-')[2]} lost another rank: {note.read_text()}"
    return f"rank {rank}: exit status {failure.exitcode}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the agent's own account of a failure: ours is one line."""
    names = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
    loggers = [
        logging.getLogger(name)
        for name in [*logging.root.manager.loggerDict]
        if name.startswith(names)
    ]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


@contextmanager
def _environment() -> Iterator[None]:
    """Ranks find this checkout and compute on one thread each, whatever the caller's settings."""
    before = dict(os.environ)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
