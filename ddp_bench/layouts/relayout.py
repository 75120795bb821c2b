"""Whether a training that moves to another layout goes on as if it had not."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ddp_bench.layouts import checkpoint
from ddp_bench.layouts.layout import Layout
from ddp_bench.layouts.move import digest, moved
from ddp_bench.layouts.trainer import Task, Trainer
from ddp_bench.toolbox import Ranks, on_ranks

Trail = list[tuple[float, list[int]]]  # of every step: loss, numbers of its samples in order


def go_on(trainer: Trainer, steps: int) -> Trail:
    """Train. Collective; the same on every rank."""
    out = []
    for _ in range(steps):
        numbers, tokens, targets = trainer.batch()
        loss = trainer.global_loss(trainer.step(tokens, targets))
        out.append((loss, _in_order(trainer.replica, numbers)))
    return out


def _in_order(replica: int, numbers: list[int]) -> list[int]:
    """Samples of the step over all replicas, replica by replica."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (replica, numbers))
    by_replica: dict[int, list[int]] = {}
    for number, own in everyone:
        if by_replica.setdefault(number, own) != own:
            raise RuntimeError(f"ranks of replica {number} read different samples")
    return [n for number in sorted(by_replica) for n in by_replica[number]]


def compare(stayed: Trail, went: Trail) -> dict[str, Any]:
    """How a training that moved differs from one that stayed."""
    gaps = [abs(b / a - 1) for (a, _), (b, _) in zip(stayed, went, strict=True)]
    orders = [a == b for (_, a), (_, b) in zip(stayed, went, strict=True)]
    return {"loss_gap": max(gaps), "is_order_kept": all(orders)}


def pairs_on_rank(
    ranks: Ranks, task: Task, pairs: Sequence[tuple[Layout, Layout]], folder: str, steps: int
) -> list[dict[str, Any]]:
    """Moves between two layouts, through a checkpoint and through memory; the same on every rank.

    Args:
        pairs: (from, to).
        folder: of checkpoints.
        steps: trained before a move, and as many behind it.
    """
    ends: dict[Layout, list[Layout]] = {}
    for start, end in pairs:
        ends.setdefault(start, []).append(end)
    rows = []
    for start, its_ends in ends.items():
        trainer = Trainer(start, task, ranks.device)
        go_on(trainer, steps)
        own = Path(folder, f"from-{start.name}")
        path, save_s = _timed(lambda t=trainer, f=own: checkpoint.save(t, f))
        before = digest(trainer)
        stayed = go_on(trainer, steps)
        checkpoint.load(trainer, path)
        for end in its_ends:
            through_memory, memory_s = _timed(lambda t=trainer, e=end: moved(t, e))
            is_equal = digest(through_memory) == before
            new = Trainer(end, task, ranks.device)
            _, load_s = _timed(lambda n=new, p=path: checkpoint.load(n, p))
            row = {"ranks": ranks.ranks, "from": start.name, "ranks_after": ranks.ranks}
            row |= {"to": end.name, "is_equal": digest(new) == before, "is_equal_memory": is_equal}
            row |= compare(stayed, go_on(new, steps))
            rows.append({**row, "disk_s": save_s + load_s, "memory_s": memory_s})
            del through_memory, new
            gc.collect()  # models that ranks share refer to themselves
    return rows


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    dist.barrier()
    begin = time.perf_counter()
    out = call()
    dist.barrier()
    return out, time.perf_counter() - begin


def begin_on_rank(
    ranks: Ranks, task: Task, layouts: Sequence[Layout], folder: str, steps: int
) -> list[tuple[str, str, Trail]]:
    """(checkpoint behind `steps` steps, digest of the state there, `steps` more) of every layout."""
    out = []
    for layout in layouts:
        trainer = Trainer(layout, task, ranks.device)
        go_on(trainer, steps)
        path = checkpoint.save(trainer, Path(folder, f"from-{layout.name}"))
        out.append((str(path), digest(trainer), go_on(trainer, steps)))
        del trainer
        gc.collect()
    return out


def resume_on_rank(
    ranks: Ranks, task: Task, layouts: Sequence[Layout], paths: Sequence[str], steps: int
) -> list[list[tuple[str, Trail]]]:
    """(digest behind loading, `steps` steps) of every layout, from every checkpoint."""
    out = []
    for layout in layouts:
        trainer = Trainer(layout, task, ranks.device)
        row = []
        for path in paths:
            checkpoint.load(trainer, Path(path))
            row.append((digest(trainer), go_on(trainer, steps)))
        out.append(row)
        del trainer
        gc.collect()
    return out


def across_sizes(
    task: Task,
    starts: Sequence[Layout],
    ends: Iterable[Layout],
    folder: Path,
    steps: int,
    timeout_s: float,
) -> list[dict[str, Any]]:
    """Moves from every layout of `starts`, all of one number of ranks, to every one of `ends`, of
    other numbers of ranks: ranks end, and others begin."""
    options = {"timeout_s": timeout_s, "preload": PRELOAD}
    size = starts[0].ranks
    begun = on_ranks(begin_on_rank, size, task, starts, str(folder), steps, **options)[0]
    paths = [path for path, _, _ in begun]
    by_ranks: dict[int, list[Layout]] = {}
    for end in ends:
        by_ranks.setdefault(end.ranks, []).append(end)
    rows = []
    for ranks, layouts in by_ranks.items():
        found = on_ranks(resume_on_rank, ranks, task, layouts, paths, steps, **options)[0]
        for end, of_end in zip(layouts, found, strict=True):
            for start, (_, before, stayed), (after, went) in zip(
                starts, begun, of_end, strict=True
            ):
                row = {"ranks": size, "from": start.name, "ranks_after": ranks, "to": end.name}
                row |= {"is_equal": after == before, "is_equal_memory": None}
                row |= compare(stayed, went)
                rows.append({**row, "disk_s": None, "memory_s": None})
    return rows


PRELOAD = ("ddp_bench.layouts.adapt", "ddp_bench.layouts.relayout")
