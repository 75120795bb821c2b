"""Works that all ranks begin together, of which the slowest rank's time counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist

from ddp_bench.toolbox import Ranks, Repeats, Timed, mean_seconds

K = TypeVar("K")


def together(
    works: Mapping[K, Callable[[], object]], repeats: Repeats, ranks: Ranks
) -> dict[K, Timed]:
    """Time every work in interleaved rounds; the same on every rank."""
    timed = {name: partial(_together_s, work, ranks.device) for name, work in works.items()}
    return repeats.take(timed, partial(_slowest, ranks.device))


def _together_s(work: Callable[[], object], device: torch.device, count: int) -> float:
    dist.barrier()
    return mean_seconds(work, device, count)


def _slowest(device: torch.device, row: list[float]) -> list[float]:
    values = torch.tensor(row, dtype=torch.float64, device=device)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.tolist()
