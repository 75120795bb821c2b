"""A model trained under a layout: one step, and its state under names that all layouts share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.layouts.layout import Layout
from ddp_bench.layouts.model import Stage, mesh_of, place, share
from ddp_bench.layouts.stream import sample_ids, samples
from ddp_bench.toolbox import LlamaShape, token_loss

MOMENTS = ("exp_avg", "exp_avg_sq")
SCHEDULE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
EPSILON = (
    1e-5  # of the optimizer; 1e-8 makes steps of rounding errors where gradients are all but 0
)


@dataclass(frozen=True)
class Task:
    """What is trained: model, batch [sequences x tokens] and seed."""

    shape: LlamaShape
    rows: int
    length: int
    seed: int = 0
    learning_rate: float = 1e-3


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Reducer:
    """Mean of gradients over replicas, in one message."""

    def __init__(
        self, parameters: list[nn.Parameter], group: dist.ProcessGroup, ranks: int
    ) -> None:
        self._parameters, self._group, self._ranks = parameters, group, ranks

    def __call__(self) -> None:
        parts = [local(p.grad) for p in self._parameters]
        flat = torch.cat([part.reshape(-1) for part in parts])
        dist.all_reduce(flat, group=self._group)
        flat /= self._ranks
        pieces = flat.split([part.numel() for part in parts])
        for part, piece in zip(parts, pieces, strict=True):
            part.copy_(piece.view_as(part))


def owners(sizes: list[int], replicas: int) -> list[int]:
    """Which replica updates which parameter (ZeRO-1): the largest first, each to whom has least."""
    held = [0] * replicas
    out = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        out[index] = held.index(min(held))
        held[out[index]] += sizes[index]
    return out


class Trainer:
    """One rank of a training under a layout. Collective: all ranks make it and call it alike."""

    def __init__(self, layout: Layout, task: Task, device: torch.device) -> None:
        self.layout, self.task, self.device = layout, task, device
        self.step_number = 0
        self._mesh = mesh_of(layout.dp, layout.tp, layout.pp, device.type)
        self.stage, self.replica = place(layout)
        self.module = Stage(task.shape, self.stage, layout.pp, task.seed)
        share(self.module, layout, device)
        self.parameters = dict(self.module.named_parameters())
        self._runs, self._reduce, self._schedule = self.module, None, None
        is_replicated = layout.dp > 1 and layout.zero < 2
        group = self._mesh["dp"].get_group() if layout.dp > 1 else None
        if is_replicated and layout.tp == layout.pp == 1:
            self._runs = DistributedDataParallel(self.module, process_group=group)
        elif is_replicated:
            self._reduce = Reducer(list(self.parameters.values()), group, layout.dp)
        if layout.pp > 1:
            self._pipeline()
        self._own(group)

    def _pipeline(self) -> None:
        group = self._mesh["pp"].get_group()
        stage = PipelineStage(self.module, self.stage, self.layout.pp, self.device, group=group)
        kind = SCHEDULE[self.layout.schedule]
        self._schedule = kind(stage, self.layout.micro, loss_fn=token_loss)

    def _own(self, group: dist.ProcessGroup | None) -> None:
        """The optimizer, of the parameters that this rank updates."""
        self._group = group
        self._owner = dict.fromkeys(self.parameters, self.replica)
        if self.layout.zero == 1:
            found = owners([p.numel() for p in self.parameters.values()], self.layout.dp)
            self._owner = dict(zip(self.parameters, found, strict=True))
        own = [p for name, p in self.parameters.items() if self._owner[name] == self.replica]
        rate = self.task.learning_rate
        # DTensors and plain tensors cannot share a batched update.
        self.optimizer = torch.optim.AdamW(own, lr=rate, eps=EPSILON, foreach=False)
        for parameter in own:
            moments = {name: torch.zeros_like(parameter).detach() for name in MOMENTS}
            self.optimizer.state[parameter] = {"step": torch.tensor(0.0), **moments}

    def batch(self) -> tuple[list[int], Tensor, Tensor]:
        """(numbers, tokens, successors) of this replica's samples of the present step."""
        own = self.task.rows // self.layout.dp
        numbers = sample_ids(self.step_number, self.task.rows)
        numbers = list(numbers)[own * self.replica : own * (self.replica + 1)]
        task = self.task
        tokens, targets = samples(numbers, task.length, task.shape.vocab, task.seed)
        return numbers, tokens.to(self.device), targets.to(self.device)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Train on this replica's samples; the mean loss of them, 0 where another stage knows it."""
        self.module.zero_grad()  # not the optimizer's: with zero1 it has some parameters only
        if self._schedule is None:
            loss = token_loss(self._runs(tokens), targets)
            loss.backward()
            loss = loss.detach()
        else:
            loss = self._pipelined(tokens, targets)
        if self._reduce is not None:
            self._reduce()
        self.optimizer.step()
        if self.layout.zero == 1:
            self._tell()
        self.step_number += 1
        return loss

    def _pipelined(self, tokens: Tensor, targets: Tensor) -> Tensor:
        last = self.layout.pp - 1
        losses: list[Tensor] = []
        given = (tokens,) if self.stage == 0 else ()
        wanted = {"target": targets, "losses": losses} if self.stage == last else {}
        self._schedule.step(*given, **wanted)
        if self.stage < last:
            return torch.zeros((), device=self.device)
        return torch.stack([loss.detach() for loss in losses]).mean()

    def _tell(self) -> None:
        """Every owner's new weights, to the other replicas."""
        for owner in range(self.layout.dp):
            own = [p.data for name, p in self.parameters.items() if self._owner[name] == owner]
            if not own:
                continue
            flat = torch.cat([p.reshape(-1) for p in own])
            dist.broadcast(flat, group=self._group, group_src=owner)
            if owner != self.replica:
                for p, piece in zip(own, flat.split([p.numel() for p in own]), strict=True):
                    p.copy_(piece.view_as(p))

    def global_loss(self, loss: Tensor) -> float:
        """Mean loss over the whole batch, on every rank: replicas of the last stage tell theirs.

        Raises:
            ArithmeticError: where it is not finite, on every rank.
        """
        total = loss.double().reshape(1).clone()
        if self.stage < self.layout.pp - 1:
            total.zero_()
        dist.all_reduce(total)
        mean = total.item() / (self.layout.dp * self.layout.tp)
        if not math.isfinite(mean):
            raise ArithmeticError(f"step {self.step_number - 1}: the loss is {mean}")
        return mean

    def state(self) -> dict[str, Tensor]:
        """Weights and state of the optimizer by names that every layout shares: what this rank holds,
        as it holds it. Writing into these tensors changes the training."""
        return dict(self._named())

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for name, parameter in self.parameters.items():
            yield f"model.{name}", parameter.detach()
            state = self.optimizer.state.get(parameter, {})
            for moment in MOMENTS:
                if moment in state:
                    yield f"optimizer.{name}.{moment}", state[moment]

    def at(self, step: int) -> None:
        """Go on from this step."""
        self.step_number = step
        for state in self.optimizer.state.values():
            state["step"].fill_(step)
