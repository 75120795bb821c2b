"""PyTorch alone, and in three layouts: DistributedDataParallel, FSDP2, a pipeline of two stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as checkpoint
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from ddp_bench.comparative.frameworks.adapter import Adapter
from ddp_bench.comparative.frameworks.task import ADAMW, Task, own_rows
from ddp_bench.toolbox import Llama, Ranks, token_loss


class Alone(Adapter):
    """One process: the reference. The layouts differ from it in what wraps the model."""

    def __init__(self, task: Task, ranks: Ranks, **settings: Any) -> None:
        self.task, self.ranks = task, ranks
        self.model = self.wrapped(task.llama().to(ranks.device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def wrapped(self, model: Llama) -> nn.Module:
        """The model as this layout trains it."""
        return model

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        tokens, targets = (
            own_rows(part, self.ranks.rank, self.ranks.ranks).to(self.ranks.device)
            for part in (tokens, targets)
        )
        loss = token_loss(self.model(tokens), targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def save(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        checkpoint.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder)

    def load(self, folder: Path) -> None:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        state = {"model": model, "optimizer": optimizer}
        checkpoint.load(state, checkpoint_id=folder)
        set_state_dict(
            *(self.model, self.optimizer),
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


class DataParallel(Alone):
    """Every rank has the model and half of the rows."""

    def wrapped(self, model: Llama) -> nn.Module:
        return DistributedDataParallel(model)


class FullyShard(Alone):
    """Weights, gradients and optimizer state in shards; layers are gathered as they are needed."""

    def wrapped(self, model: Llama) -> nn.Module:
        for layer in model.layers:
            fully_shard(layer)
        return fully_shard(model)


class Stage(nn.Module):
    """The layers of one rank, under the names that they have in the whole model."""

    def __init__(self, model: Llama, stage: int, stages: int) -> None:
        super().__init__()
        count = len(model.layers)
        own = range(count * stage // stages, count * (stage + 1) // stages)
        self.embedding = model.embedding if stage == 0 else None
        self.layers = nn.ModuleDict({str(i): model.layers[i] for i in own})
        self.norm, self.head = (model.norm, model.head) if stage == stages - 1 else (None, None)
        self.register_buffer("cos", model.cos, persistent=False)
        self.register_buffer("sin", model.sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [B, T] or [B, T, width] -> [B, T, width] or logits [B, T, vocab]."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return x if self.head is None else self.head(self.norm(x))


class Pipeline(Alone):
    """Half of the layers on each rank, and GPipe's schedule."""

    made_of = (Stage,)

    def __init__(self, task: Task, ranks: Ranks, micro_batches: int = 2, **settings: Any) -> None:
        super().__init__(task, ranks)
        stage = PipelineStage(self.model, ranks.rank, ranks.ranks, ranks.device)
        self.schedule = ScheduleGPipe(stage, micro_batches, loss_fn=token_loss)

    def wrapped(self, model: Llama) -> nn.Module:
        return Stage(model, self.ranks.rank, self.ranks.ranks)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        if self.ranks.rank == 0:
            self.schedule.step(tokens.to(self.ranks.device))
        else:
            self.schedule.step(target=targets.to(self.ranks.device), losses=losses)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).mean().detach() if losses else None
