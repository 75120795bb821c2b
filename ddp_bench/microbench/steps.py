"""Whole training steps: alone, beside others that compute, and with gradients summed over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.microbench.together import together
from ddp_bench.toolbox import (
    SHAPES,
    Llama,
    Ranks,
    Repeats,
    Timed,
    batch_of,
    interleave,
    on_ranks,
    token_loss,
)

MODELS = ("tiny", "small", "wide", "deep")
ROWS, LENGTH = 4, 128
# What ranks say to each other, in the order of a round. none: each computes a step of its own, all at
# once; message: they sum as many numbers as the model has; beside: that message travels while they
# compute backward; ddp: DistributedDataParallel sums gradients, as training does.
TALKS = ("none", "message", "beside", "ddp")
Call = Callable[[], Any]


def step_of(
    model: nn.Module, name: str, device: torch.device, send: Callable[[], dist.Work] | None = None
) -> Call:
    """A training step of `model` on one batch; what `send` sends travels beside backward."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, targets = (part.to(device) for part in batch_of(SHAPES[name], ROWS, LENGTH))

    def step() -> None:
        loss = token_loss(model(tokens), targets)
        message = None if send is None else send()
        loss.backward()
        if message is not None:
            message.wait()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def measure_alone(repeats: Repeats, device: torch.device) -> dict[str, Timed]:
    """Model -> a step of one process."""
    works = {}
    for name in MODELS:
        torch.manual_seed(0)
        works[name] = step_of(Llama(SHAPES[name]).to(device), name, device)
    return interleave(works, repeats, device)


def measure_on_ranks(
    ranks: int, repeats: Repeats, timeout_s: float
) -> dict[tuple[str, str], Timed]:
    """(model, one of TALKS) -> what the slowest rank takes.

    Raises:
        RanksFailed: naming a rank that failed.
    """
    preload = ("ddp_bench.microbench.steps",)
    return on_ranks(steps_on_rank, ranks, repeats, timeout_s=timeout_s, preload=preload)[0]


def steps_on_rank(ranks: Ranks, repeats: Repeats) -> dict[tuple[str, str], Timed]:
    """(model, one of TALKS) -> seconds of the slowest rank in every round."""
    calls = {(name, talk): call for name in MODELS for talk, call in _calls(name, ranks).items()}
    return together(calls, repeats, ranks)


def _calls(name: str, ranks: Ranks) -> dict[str, Call]:
    """One of TALKS -> what does it once, for one model."""
    torch.manual_seed(0)
    apart, together = (Llama(SHAPES[name]).to(ranks.device) for _ in range(2))
    numbers = sum(parameter.numel() for parameter in apart.parameters())
    buffer = torch.zeros(numbers, device=ranks.device)
    plain = step_of(apart, name, ranks.device)
    beside = step_of(apart, name, ranks.device, lambda: dist.all_reduce(buffer, async_op=True))
    summed = step_of(DistributedDataParallel(together), name, ranks.device)
    calls = (plain, lambda: dist.all_reduce(buffer), beside, summed)
    return dict(zip(TALKS, calls, strict=True))
