"""What a profile is made of, measured: parts of the model, updates, messages, empty pipelines.

All ranks do the same thing at the same time, as in training: where they share cores or links, they
slow each other as much as they will then.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from ddp_bench.layouts.layout import Layout
from ddp_bench.layouts.model import Stage, mesh_of, share, without_layers
from ddp_bench.layouts.score import FLOAT, Need, Profile, terms_of
from ddp_bench.layouts.trainer import MOMENTS, SCHEDULE, Reducer, Task
from ddp_bench.microbench import COLLECTIVES
from ddp_bench.toolbox import Block, Ranks, stopwatch, times_to_last, token_loss

SHORTEST_S = 5e-3  # what is shorter is done several times under one stopwatch
Timing = Callable[[], tuple[float, ...]]  # does it once; seconds


def profile_on_rank(ranks: Ranks, task: Task, layouts: Sequence[Layout], repeats: int) -> Profile:
    """Everything that the scores of these layouts need, in interleaved rounds. The same on every
    rank."""
    profiler = Profiler(ranks, task, layouts)
    profiler.play(repeats)
    return profiler.profile()


class Profiler:
    """Measures what the scores of these layouts need. Collective: all ranks make and call it alike."""

    def __init__(self, ranks: Ranks, task: Task, layouts: Sequence[Layout]) -> None:
        self._needs = sorted(set().union(*(terms_of(each, task).needs() for each in layouts)))
        works: dict[Any, Timing] = {n: _timing(n, task, ranks.device) for n in self._needs}
        lone = _lone_work(task, ranks)
        powers = (2**k for k in range(ranks.ranks.bit_length()))
        self._active = sorted({*powers, ranks.ranks})
        works |= {n: partial(_some_ranks, lone, n, ranks) for n in self._active}
        self._rounds = Rounds(works, ranks)

    def play(self, repeats: int) -> None:
        """So many rounds more."""
        self._rounds.play(repeats)

    def profile(self) -> Profile:
        """Medians of all rounds so far."""
        found = self._rounds.medians()
        least = found[1][0]
        slowdown = {n: max(1.0, found[n][0] / least) for n in self._active}
        parts = {n: found[n] for n in self._needs if n.kind in PARTS}
        others = {n: found[n][0] for n in self._needs if n.kind not in PARTS}
        return Profile(parts, others, slowdown)


class Rounds:
    """Works that all ranks do in rounds, all ranks the same at the same time; the slowest rank's time
    counts."""

    def __init__(self, works: dict[Any, Timing], ranks: Ranks) -> None:
        self._works, self._ranks = works, ranks
        self._counts = dict.fromkeys(works, 1)
        self._taken: dict[Any, list[tuple[float, ...]]] = {name: [] for name in works}
        for name, seconds in self._round().items():  # to warm up, and to know how long a work takes
            self._counts[name] = min(times_to_last(sum(seconds), SHORTEST_S), 20)

    def play(self, repeats: int) -> None:
        """So many rounds more."""
        for _ in range(repeats):
            for name, seconds in self._round().items():
                self._taken[name].append(seconds)

    def medians(self) -> dict[Any, tuple[float, ...]]:
        """Of all rounds, for every work; of each of its times apart."""
        return {
            name: tuple(statistics.median(column) for column in zip(*taken, strict=True))
            for name, taken in self._taken.items()
        }

    def _round(self) -> dict[Any, tuple[float, ...]]:
        rows = []
        for name, work in self._works.items():
            dist.barrier()
            done = [work() for _ in range(self._counts[name])]
            rows.append([sum(column) / len(done) for column in zip(*done, strict=True)])
        flat = [seconds for row in rows for seconds in row]
        slowest = torch.tensor(flat, dtype=torch.float64, device=self._ranks.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        values = iter(slowest.tolist())
        return {
            name: tuple(next(values) for _ in row)
            for name, row in zip(self._works, rows, strict=True)
        }


def _timing(need: Need, task: Task, device: torch.device) -> Timing:
    if need.kind in PARTS:
        return partial(_forward_backward, *_part(need, task, device), device)
    make = {"update": _update, "message": _message, "plumbing": _plumbing}[need.kind]
    return partial(_once, make(need, task, device), device)


def _once(call: Callable[[], object], device: torch.device) -> tuple[float]:
    with stopwatch(device) as seconds:
        call()
    return (seconds(),)


def _forward_backward(
    module: nn.Module,
    forward: Callable[[], Tensor],
    backward: Callable[[Tensor], None],
    device: torch.device,
) -> tuple[float, float]:
    module.zero_grad()
    with stopwatch(device) as first:
        out = forward()
    with stopwatch(device) as second:
        backward(out)
    return first(), second()


class _Layer(nn.Module):
    """A layer that brings its own rotary table."""

    def __init__(self, block: Block, stage: Stage) -> None:
        super().__init__()
        self.block, self.cos, self.sin = block, stage.cos, stage.sin

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x, self.cos, self.sin)


def _module(kind: str, need: Need, task: Task, device: torch.device) -> nn.Module:
    """A part of the model, split and sharded as the layout does it."""
    layout = Layout(max(need.dp, 1), need.tp, max(need.pp, 1), need.zero)
    if kind == "layer":
        stage = Stage(replace(task.shape, layers=1)).to(device)
        # The layer alone, so that no group of the whole is sharded with it.
        return _Layer(share(stage.layers["0"], layout, device), stage)
    empty = without_layers(task.shape)
    index, stages = {"ends": (0, 1), "first": (0, 2), "last": (1, 2)}[kind]
    if need.dp == 0:  # neither split nor sharded: no mesh
        return Stage(empty, index, stages).to(device)
    return share(Stage(empty, index, stages), layout, device)


def _part(need: Need, task: Task, device: torch.device) -> tuple:
    """(module, forward, backward) of a part on a micro-batch."""
    size = (need.rows, task.length)
    module = _module(need.kind, need, task, device)
    tokens = torch.zeros(size, dtype=torch.long, device=device)
    hidden = torch.randn(*size, task.shape.width, device=device)
    if need.kind in ("ends", "first"):
        forward = partial(module, tokens)
    else:
        forward = lambda: module(hidden.detach().requires_grad_())  # noqa: E731
    if need.kind in ("ends", "last"):
        logits = forward
        forward = lambda: token_loss(logits(), tokens)  # noqa: E731
        return module, forward, lambda loss: loss.backward()
    return module, forward, lambda out: out.backward(hidden)


def _update(need: Need, task: Task, device: torch.device) -> Callable[[], object]:
    module = _module(need.what, need, task, device)
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, foreach=False)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
        moments = {name: torch.zeros_like(parameter).detach() for name in MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}
    return optimizer.step


def _message(need: Need, task: Task, device: torch.device) -> Callable[[], object]:
    kind, axis = need.what.split()
    group = mesh_of(need.dp, need.tp, need.pp, device.type)[axis].get_group()
    ranks = dist.get_world_size(group)
    numbers = -(-need.size // FLOAT // ranks) * ranks  # every rank has as many
    if kind == "reduce":
        parameter = nn.Parameter(torch.zeros(numbers, device=device))
        parameter.grad = torch.zeros_like(parameter)
        return Reducer([parameter], group, ranks)
    buffer = torch.zeros(numbers, device=device)
    return COLLECTIVES[kind].make(buffer, dist.get_rank(group), ranks, group)


class _Pass(nn.Module):
    """A stage that computes next to nothing: activations of the real size, one weight."""

    def __init__(self, is_first: bool, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.is_first, self.width = is_first, width

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            x = torch.zeros(*x.shape, self.width, device=x.device)
        return x * self.scale


def _plumbing(need: Need, task: Task, device: torch.device) -> Callable[[], object]:
    """A pipeline whose stages compute next to nothing."""
    name, _, micro = need.what.partition("-")
    mesh = mesh_of(need.dp, need.tp, need.pp, device.type)
    index = mesh["pp"].get_local_rank()
    module = _Pass(index == 0, task.shape.width).to(device)
    stage = PipelineStage(module, index, need.pp, device, group=mesh["pp"].get_group())
    schedule = SCHEDULE[name](stage, int(micro), loss_fn=lambda out, target: out[..., 0].mean())
    rows = need.rows * int(micro)
    tokens = torch.zeros(rows, task.length, dtype=torch.long, device=device)
    given = (tokens,) if index == 0 else ()
    wanted = {"target": tokens} if index == need.pp - 1 else {}
    return lambda: schedule.step(*given, **wanted)


def _lone_work(task: Task, ranks: Ranks) -> Timing:
    """A layer's forward and backward pass that needs no other rank."""
    rows = max(task.rows // ranks.ranks, 1)
    need = Need("layer", "", 0, 1, 0, rows=rows)
    work = partial(_forward_backward, *_part(need, task, ranks.device), ranks.device)

    def several() -> tuple[float, ...]:
        begin, total = time.perf_counter(), 0.0
        while time.perf_counter() - begin < SHORTEST_S or not total:
            total = sum(work())
        return (total,)

    return several


def _some_ranks(work: Timing, active: int, ranks: Ranks) -> tuple[float, ...]:
    """The first `active` ranks work; the others wait."""
    dist.barrier()
    done = work() if ranks.rank < active else (0.0,)
    dist.barrier()
    return done


PARTS = ("layer", "ends", "first", "last")
