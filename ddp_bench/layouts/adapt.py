"""When to change the layout, and the loop that does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from ddp_bench.layouts.layout import Layout
from ddp_bench.layouts.measure import timed_step
from ddp_bench.layouts.move import moved
from ddp_bench.layouts.pieces import profile_on_rank
from ddp_bench.layouts.score import ranked
from ddp_bench.layouts.trainer import Task, Trainer
from ddp_bench.toolbox import Ranks


@dataclass(frozen=True)
class Rules:
    """When the loop moves.

    Attributes:
        interval: steps between two profiles.
        horizon: steps over which a gain counts.
        hysteresis: how many times the cost of a move its gain must be.
        repeats: rounds of a profile.
    """

    interval: int = 20
    horizon: int = 200
    hysteresis: float = 1.5
    repeats: int = 3


def decide(
    present: str, seconds: Mapping[str, float], cost_s: float, horizon: int, hysteresis: float
) -> str:
    """The layout to train under: the best one if what it gains over `horizon` steps is more than
    `hysteresis` times the cost of a move, else the present one.

    Args:
        present: name of the present layout.
        seconds: name -> predicted seconds of a step, of the present one too.
        cost_s: of a move [s].
    """
    best = min(seconds, key=seconds.__getitem__)
    gain = (seconds[present] - seconds[best]) * horizon
    return best if gain > hysteresis * cost_s else present


def adapt_on_rank(
    ranks: Ranks,
    task: Task,
    layouts: Sequence[Layout],
    start: Layout | None,
    steps: int,
    rules: Rules,
) -> dict[str, Any]:
    """Train for `steps` steps from a start; what was decided, and every step's seconds and loss. The
    same on every rank.

    What a move costs is measured: at first by a rehearsal into the present layout, then by the last
    move.

    Args:
        start: first layout; None: the slowest by a profile of its own.
    """
    if start is None:
        profile = profile_on_rank(ranks, task, layouts, rules.repeats)
        start = ranked(layouts, task, profile)[-1].layout
    by_name = {layout.name: layout for layout in layouts}
    trainer = Trainer(start, task, ranks.device)
    cost = _slowest(_rehearse(trainer), ranks)
    decisions, rows = [], []
    for step in range(steps):
        if step % rules.interval == 0:
            begin = time.perf_counter()
            profile = profile_on_rank(ranks, task, layouts, rules.repeats)
            scores = {s.layout.name: s.seconds for s in ranked(layouts, task, profile)}
            profiled = _slowest(time.perf_counter() - begin, ranks)
            present = trainer.layout.name
            chosen = decide(present, scores, cost, rules.horizon, rules.hysteresis)
            row = {"step": step, "present": present, "chosen": chosen, "cost_s": cost}
            row |= {"predicted_s": scores[present], "best_s": min(scores.values())}
            decisions.append({**row, "profile_s": profiled, "is_moved": chosen != present})
            if chosen != present:
                begin = time.perf_counter()
                trainer = moved(trainer, by_name[chosen])
                _settle(trainer)
                cost = _slowest(time.perf_counter() - begin, ranks)
        rows.append(_step(trainer, ranks))
    return {"start": start.name, "rules": asdict(rules), "decisions": decisions, "steps": rows}


def _rehearse(trainer: Trainer) -> float:
    """Seconds of a move to where the training is already; its result is thrown away."""
    dist.barrier()
    begin = time.perf_counter()
    moved(trainer, trainer.layout)
    return time.perf_counter() - begin


def _settle(trainer: Trainer) -> None:
    """Wait until every rank has moved."""
    if trainer.device.type == "cuda":
        torch.cuda.synchronize(trainer.device)
    dist.barrier()


def _step(trainer: Trainer, ranks: Ranks) -> dict[str, Any]:
    step = trainer.step_number
    seconds, loss = timed_step(trainer)
    return {
        "step": step,
        "layout": trainer.layout.name,
        "seconds": _slowest(seconds, ranks),
        "loss": trainer.global_loss(loss),
    }


def _slowest(seconds: float, ranks: Ranks) -> float:
    found = torch.tensor([seconds], dtype=torch.float64, device=ranks.device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.item()
