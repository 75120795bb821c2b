"""From one layout to another while training: through a checkpoint, or through memory."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ddp_bench.layouts import checkpoint
from ddp_bench.layouts.layout import Layout
from ddp_bench.layouts.trainer import Trainer, local

BUNCH = 64 << 20  # [B] of tensors that travel in one message; a larger tensor travels alone
ALIGNED = 16  # [B]


class _Piece(NamedTuple):
    """What a rank holds of a tensor: `size` from `offset` on, of `whole`."""

    size: tuple[int, ...]
    offset: tuple[int, ...]
    whole: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Of the whole tensor, with room up to the next one [B]."""
        size = math.prod(self.whole) * self.dtype.itemsize
        return -(-size // ALIGNED) * ALIGNED

    def of(self, whole: Tensor) -> Tensor:
        """This piece of the whole tensor, a view."""
        for axis, (length, begin) in enumerate(zip(self.size, self.offset, strict=True)):
            whole = whole.narrow(axis, begin, length)
        return whole


def moved(trainer: Trainer, layout: Layout, folder: Path | None = None) -> Trainer:
    """The same training under another layout on the same ranks. Collective.

    Args:
        folder: of checkpoints; None: the state goes from rank to rank.

    Raises:
        ArithmeticError: where the state is not finite, on every rank.
    """
    new = Trainer(layout, trainer.task, trainer.device)
    if folder is None:
        transfer(trainer, new)
    else:
        checkpoint.load(new, checkpoint.save(trainer, folder))
    return new


def transfer(old: Trainer, new: Trainer) -> None:
    """Give the state of `old` to `new`. Beside both, BUNCH bytes are in memory at once. Collective.

    Raises:
        ArithmeticError: where the state is not finite, on every rank.
    """
    checkpoint.check_finite(old, "moved")
    wanted = new.state()
    for name, whole in _wholes(old.state(), old.device):
        if name in wanted:
            target = wanted[name]
            local(target).copy_(_piece(target).of(whole))
    new.at(old.step_number)


def digest(trainer: Trainer) -> str:
    """A number of the whole state, equal under every layout exactly if every bit is. Collective."""
    found = hashlib.sha256()
    for name, whole in _wholes(trainer.state(), trainer.device):
        found.update(name.encode())
        found.update(whole.cpu().numpy().tobytes())
    return found.hexdigest()


def _piece(tensor: Tensor) -> _Piece:
    whole = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return _Piece(whole, (0,) * len(whole), whole, tensor.dtype)
    size, offset = compute_local_shape_and_global_offset(
        whole, tensor.device_mesh, tensor.placements
    )
    return _Piece(tuple(size), tuple(offset), whole, tensor.dtype)


def _wholes(state: dict[str, Tensor], device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """(name, whole) of every tensor of the training, in the same order on every rank. Collective.

    Many tensors travel in one message. Of ranks that hold the same piece the first one writes it,
    between zeros of the others; bits are summed as integers, so that every bit arrives.

    Raises:
        RuntimeError: for a tensor of which no rank holds some part.
    """
    mine = {name: _piece(tensor) for name, tensor in state.items()}
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    writers: dict[str, dict[_Piece, int]] = {}
    for rank, pieces in enumerate(everyone):
        for name, piece in pieces.items():
            writers.setdefault(name, {}).setdefault(piece, rank)
    for name, pieces in writers.items():
        held, whole = sum(math.prod(p.size) for p in pieces), next(iter(pieces)).whole
        if held != math.prod(whole):
            raise RuntimeError(f"{name}: ranks hold {held} of {math.prod(whole)} numbers")
    of = {name: next(iter(writers[name])) for name in sorted(writers)}
    for names in _bunches({name: piece.bytes for name, piece in of.items()}):
        flat = torch.zeros(sum(of[name].bytes for name in names), dtype=torch.uint8, device=device)
        parts = flat.split([of[name].bytes for name in names])
        wholes = {n: _as_tensor(part, of[n]) for n, part in zip(names, parts, strict=True)}
        for name in names:
            if name in mine and writers[name][mine[name]] == dist.get_rank():
                mine[name].of(wholes[name]).copy_(local(state[name]))
        dist.all_reduce(flat.view(torch.int32))
        yield from wholes.items()


def _bunches(sizes: dict[str, int]) -> Iterator[list[str]]:
    """Names whose sizes [B] add up to at most BUNCH, or a single one that is larger."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > BUNCH:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    if names:
        yield names


def _as_tensor(part: Tensor, piece: _Piece) -> Tensor:
    """Bytes of a message as the whole tensor, a view."""
    return part.view(piece.dtype)[: math.prod(piece.whole)].view(piece.whole)
