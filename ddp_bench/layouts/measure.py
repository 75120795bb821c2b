"""Layouts really trained, their steps timed in interleaved rounds."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_bench.layouts.layout import Layout
from ddp_bench.layouts.trainer import Task, Trainer
from ddp_bench.toolbox import Ranks, stopwatch

WARM_UP = 2  # steps; in the second one DistributedDataParallel arranges its buckets anew


def steps_on_rank(
    ranks: Ranks, task: Task, layouts: Sequence[Layout], rounds: int, steps: int
) -> dict[str, list[float]]:
    """Name -> seconds of every step, of the slowest rank; the same on every rank.

    Every round trains every layout for `steps` steps after `WARM_UP` others, and throws it away, so
    that any number of layouts fits into memory and what disturbs the machine for a while disturbs them
    all.
    """
    taken: dict[str, list[float]] = {layout.name: [] for layout in layouts}
    for turn in range(rounds):
        # Odd rounds go backwards: what is left of the layout before falls on others.
        for layout in layouts if turn % 2 == 0 else reversed(layouts):
            trainer = Trainer(layout, task, ranks.device)
            row = [timed_step(trainer)[0] for _ in range(WARM_UP + steps)][WARM_UP:]
            slowest = torch.tensor(row, dtype=torch.float64, device=ranks.device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            taken[layout.name] += slowest.tolist()
            del trainer
            gc.collect()
    return taken


def timed_step(trainer: Trainer) -> tuple[float, Tensor]:
    """(seconds of one step on this rank, its loss here); all ranks begin together."""
    _, tokens, targets = trainer.batch()
    dist.barrier()
    with stopwatch(trainer.device) as seconds:
        loss = trainer.step(tokens, targets)
    return seconds(), loss
