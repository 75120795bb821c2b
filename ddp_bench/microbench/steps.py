"""Whole training steps: alone, and with gradients summed over ranks while backward runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.toolbox import (
    SHAPES,
    Llama,
    Ranks,
    Timed,
    batch_of,
    interleave,
    on_ranks,
    stopwatch,
    token_loss,
)

MODELS = ("tiny", "small")
ROWS, LENGTH = 4, 128


def step_of(model: nn.Module, name: str, device: torch.device) -> Callable[[], Any]:
    """A training step of `model` on one batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, targets = (part.to(device) for part in batch_of(SHAPES[name], ROWS, LENGTH))

    def step() -> None:
        token_loss(model(tokens), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_alone(repeats: int, device: torch.device) -> dict[str, Timed]:
    """Model -> a step of one process."""
    works = {}
    for name in MODELS:
        torch.manual_seed(0)
        works[name] = step_of(Llama(SHAPES[name]).to(device), name, device)
    return interleave(works, repeats, 2, device)


def measure_on_ranks(ranks: int, repeats: int, timeout_s: float) -> dict[str, Timed]:
    """Model -> a step of the slowest rank under DistributedDataParallel.

    Raises:
        RanksFailed: naming a rank that failed.
    """
    preload = ("ddp_bench.microbench.steps",)
    found = on_ranks(steps_on_rank, ranks, repeats, timeout_s=timeout_s, preload=preload)[0]
    return {name: Timed(tuple(seconds)) for name, seconds in found.items()}


def steps_on_rank(ranks: Ranks, repeats: int) -> dict[str, list[float]]:
    """Model -> seconds of the slowest rank in every round."""
    works = {}
    for name in MODELS:
        torch.manual_seed(0)
        model = DistributedDataParallel(Llama(SHAPES[name]).to(ranks.device))
        works[name] = step_of(model, name, ranks.device)
    rows = []
    for turn in range(-2, repeats):
        row = []
        for work in works.values():
            dist.barrier()
            with stopwatch(ranks.device) as seconds:
                work()
            row.append(seconds())
        slowest = torch.tensor(row, dtype=torch.float64, device=ranks.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        if turn >= 0:
            rows.append(slowest.tolist())
    return {name: [row[i] for row in rows] for i, name in enumerate(works)}
