"""From one layout to another while training: through a checkpoint, or through memory."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ddp_bench.layouts import checkpoint
from ddp_bench.layouts.layout import Layout
from ddp_bench.layouts.trainer import Trainer, local


def moved(trainer: Trainer, layout: Layout, folder: Path | None = None) -> Trainer:
    """The same training under another layout on the same ranks. Collective.

    Args:
        folder: of checkpoints; None: the state goes from rank to rank.
    """
    new = Trainer(layout, trainer.task, trainer.device)
    if folder is None:
        transfer(trainer, new)
    else:
        checkpoint.load(new, checkpoint.save(trainer, folder))
    return new


def transfer(old: Trainer, new: Trainer) -> None:
    """Give the state of `old` to `new`. Tensor by tensor: one whole tensor is in memory at once.

    Collective.
    """
    given, wanted = old.state(), new.state()
    for name, source, size in _holders(given):
        whole = _whole(given.get(name), source, size, old.device)
        if name in wanted:
            _fill(wanted[name], whole)
    new.at(old.step_number)


def digest(trainer: Trainer) -> str:
    """A number of the whole state, equal under every layout exactly if every bit is. Collective."""
    given, found = trainer.state(), hashlib.sha256()
    for name, source, size in _holders(given):
        whole = _whole(given.get(name), source, size, trainer.device)
        found.update(name.encode())
        found.update(whole.cpu().numpy().tobytes())
    return found.hexdigest()


def _holders(state: dict[str, Tensor]) -> list[tuple[str, int, torch.Size]]:
    """(name, first rank that holds it, size) of every tensor of the training, in the same order on
    every rank."""
    mine = {name: tensor.shape for name, tensor in state.items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    out = {}
    for rank, names in enumerate(everyone):
        for name, size in names.items():
            out.setdefault(name, (name, rank, size))
    return [out[name] for name in sorted(out)]


def _whole(tensor: Tensor | None, source: int, size: torch.Size, device: torch.device) -> Tensor:
    """The whole of a tensor, on every rank."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()  # by those that hold a part
    is_mine = dist.get_rank() == source
    whole = tensor.contiguous() if is_mine else torch.empty(size, device=device)
    dist.broadcast(whole, source)
    return whole


def _fill(target: Tensor, whole: Tensor) -> None:
    """This rank's part of `whole`."""
    if isinstance(target, DTensor):
        size, offset = compute_local_shape_and_global_offset(
            whole.shape, target.device_mesh, target.placements
        )
        for axis, (length, begin) in enumerate(zip(size, offset, strict=True)):
            whole = whole.narrow(axis, begin, length)
    local(target).copy_(whole)
