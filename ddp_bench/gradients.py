"""Exact global-mean gradients from unequal local batches.

The wanted gradient is that of the mean loss over the global batch, (1/B) sum_i grad l_i. DDP
averages over ranks, (1/G) sum_g grad L_g. With the local loss L_g = (G b_g / B) * mean_g =
(G / B) * sum over the rank's samples of l_i the two are equal, for any counts, also when a rank
has none and when the local batch is accumulated in pieces: the sum splits over pieces. Unweighted
local means would weigh a sample on a short batch more than one on a long batch.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

Batch = dict[str, torch.Tensor]


def split_ids(ids: np.ndarray, size: int | None) -> list[np.ndarray]:
    """Local batch -> micro-batches of at most `size` samples, as even as possible."""
    if not len(ids):
        return []
    return np.array_split(ids, -(-len(ids) // size) if size else 1)


def accumulate(
    ddp: DistributedDataParallel,
    batches: Sequence[Batch],
    scale: float,
    autocast: contextlib.AbstractContextManager,
    scaler: torch.amp.GradScaler | None = None,
    overlap: bool = False,
) -> float:
    """Backward of `scale` times the summed loss of every micro-batch; gradients stay local.

    Args:
        scale: G / B.
        overlap: let DDP reduce during the last backward; else call `reduce` afterwards.

    Returns:
        The summed loss over this rank's samples.
    """
    total = 0.0
    for index, batch in enumerate(batches):
        last = index == len(batches) - 1
        with contextlib.nullcontext() if overlap and last else ddp.no_sync():
            with autocast:
                loss, _ = ddp(batch)
            scaled = loss * scale
            (scaler.scale(scaled) if scaler else scaled).backward()
        total += float(loss.detach())
    return total


def reduce(ddp: DistributedDataParallel) -> None:
    """Average the accumulated gradients over ranks, by DDP's own reducer.

    A rank without samples takes part like any other: the pass adds zero.
    """
    loss, _ = ddp(None)
    loss.backward()


def flat_gradient(module: torch.nn.Module) -> torch.Tensor:
    """All gradients as one vector (missing ones are zero)."""
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()]
    )


def relative_error(
    ddp: DistributedDataParallel,
    module: torch.nn.Module,
    local: Sequence[Batch],
    everything: Batch,
    ranks: int,
    overlap: bool = False,
) -> float:
    """|distributed - global| / |global| of one step's gradient, in `module`'s precision.

    Args:
        ddp: the wrapped `module`.
        local: this rank's micro-batches.
        everything: the global batch as one padded batch, the same on every rank.
    """
    total = len(everything["labels"])
    reference = copy.deepcopy(module)
    reference.zero_grad(set_to_none=True)
    loss, _ = reference(everything)
    (loss / total).backward()
    wanted = flat_gradient(reference)
    ddp.zero_grad(set_to_none=True)
    accumulate(ddp, local, ranks / total, contextlib.nullcontext(), overlap=overlap)
    if not overlap or not local:
        reduce(ddp)
    found = flat_gradient(module)
    ddp.zero_grad(set_to_none=True)
    return float((found - wanted).norm() / wanted.norm())
