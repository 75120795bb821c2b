"""The process group, and a second one on the CPU for the small control messages of every step.

Gradients travel on the main backend (NCCL or gloo). Control messages (cost rows, counts, votes,
measurements) always travel on gloo, so that the 4-GPU path and the CPU path share their code.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from ddp_bench.errors import ConfigError
from ddp_bench.ranks.rollcall import RollCall

# Newer torch calls them so; the old names are deprecated there.
gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_from = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Pending:
    """A message under way; `wait` gives its content."""

    def __init__(self, work: Any, read: Callable[[], np.ndarray]) -> None:
        self._work = work
        self._read = read

    def wait(self) -> np.ndarray:
        """Block until it has arrived."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._read()


class Control:
    """Control messages between ranks: float64 vectors on a gloo group."""

    def __init__(self, timeout_s: float, store: dist.Store) -> None:
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self.roll = RollCall(store, self.rank, self.ranks, timeout_s)
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    def post_rows(self, row: np.ndarray) -> Pending:
        """Gather one equally long row from every rank: [K] -> [G, K]."""
        mine = torch.from_numpy(np.ascontiguousarray(row, np.float64))
        rows = [torch.empty_like(mine) for _ in range(self.ranks)]
        work = dist.all_gather(rows, mine, group=self._group, async_op=True)
        return Pending(work, lambda: torch.stack(rows).numpy())

    def post_counts(self, counts: list[int] | None) -> Pending:
        """Broadcast [G] integers from rank 0 (the others pass None)."""
        values = torch.tensor(counts if self.rank == 0 else [0] * self.ranks)
        work = dist.broadcast(values, src=0, group=self._group, async_op=True)
        return Pending(work, values.numpy)

    def post_sum(self, values: np.ndarray) -> Pending:
        """Sum over ranks; int64 wraps around, float64 does not."""
        total = torch.from_numpy(np.array(values))
        work = dist.all_reduce(total, group=self._group, async_op=True)
        return Pending(work, total.numpy)

    def gather_objects(self, value: Any) -> list[Any] | None:
        """Every rank's `value` on rank 0, None elsewhere."""
        found = [None] * self.ranks if self.rank == 0 else None
        dist.gather_object(value, found, dst=0, group=self._group)
        return found

    def share(self, value: Any) -> Any:
        """Rank 0's `value` on every rank."""
        holder = [value]
        dist.broadcast_object_list(holder, src=0, group=self._group)
        return holder[0]

    def from_first(self, make: Callable[[], Any]) -> Any:
        """What `make` returns on rank 0, on every rank; what it raises there, every rank raises."""
        value = None
        if self.rank == 0:
            try:
                value = make()
            except Exception as error:
                value = error
        value = self.share(value)
        if isinstance(value, Exception):
            raise value
        return value

    def agree(self, error: Exception | None) -> None:
        """Raise on every rank the first rank's error, if any rank has one."""
        errors = self.gather_objects(error) or []
        error = self.share(next((found for found in errors if found), None))
        if error:
            raise error

    def barrier(self) -> None:
        """Wait for every rank."""
        dist.barrier(group=self._group)


def choose_backend(wanted: str, ranks: int) -> str:
    """`auto` is NCCL when every rank can have a GPU of its own, else gloo."""
    gpus = torch.cuda.device_count()
    if wanted == "nccl" and gpus < ranks:
        raise ConfigError(f"backend is 'nccl' with {gpus} GPU(s) for {ranks} ranks: allowed gloo")
    if wanted != "auto":
        return wanted
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks))
    return "nccl" if gpus >= local else "gloo"


def choose_device() -> torch.device:
    """This rank's GPU (shared when there are fewer GPUs than ranks), or the CPU."""
    gpus = torch.cuda.device_count()
    if not gpus:
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % gpus)
    torch.cuda.set_device(device)
    return device


def ranks_per_device() -> int:
    """How many ranks `choose_device` puts on this rank's GPU; 1 on a CPU."""
    gpus = torch.cuda.device_count()
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    mine = int(os.environ.get("LOCAL_RANK", 0))
    return len(range(mine % gpus, local, gpus)) if gpus else 1


def join(backend: str, timeout_s: float) -> dist.Store:
    """Join the process group that torchrun describes, alone a group of one; the ranks' store."""
    timeout = timedelta(seconds=timeout_s)
    if "RANK" not in os.environ:
        store = dist.HashStore()
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    else:
        store, rank, ranks = next(rendezvous("env://", timeout=timeout))
        # A restarted job meets in the same store: addresses of the dead attempt must not be read.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"attempt-{attempt}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    return store


def start(backend: str, timeout_s: float) -> Control:
    """`join`, and the messages of a second group."""
    return Control(timeout_s, join(backend, timeout_s))


def stop(control: Control) -> None:
    """Leave together: a rank that leaves early can break the others' last message."""
    control.barrier()
    dist.destroy_process_group()
