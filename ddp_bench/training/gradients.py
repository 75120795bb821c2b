"""Exact global-mean gradients from unequal local batches.

The wanted gradient is that of the mean loss over the global batch, (1/B) sum_i grad l_i. DDP
averages over ranks, (1/G) sum_g grad L_g. The two are equal with the local loss
L_g = (G b_g / B) * mean_g = (G / B) * sum over the rank's samples of l_i. That holds for any counts,
also when a rank has no sample. It holds under accumulation, since the sum splits over pieces.
Unweighted local means would weigh a sample of a small local batch more than one of a large batch.
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


def global_gradient(module: torch.nn.Module, everything: Batch) -> torch.Tensor:
    """Gradient of the mean loss over one batch that holds all samples, without communication."""
    reference = copy.deepcopy(module)
    reference.zero_grad(set_to_none=True)
    loss, _ = reference(everything)
    (loss / len(everything["labels"])).backward()
    return flat_gradient(reference)


def distributed_gradient(
    ddp: DistributedDataParallel,
    local: Sequence[Batch],
    total: int,
    ranks: int,
    overlap: bool = False,
) -> torch.Tensor:
    """Gradient as training computes it, from this rank's micro-batches of a batch of `total`."""
    ddp.zero_grad(set_to_none=True)
    accumulate(ddp, local, ranks / total, contextlib.nullcontext(), overlap=overlap)
    if not overlap or not local:
        reduce(ddp)
    found = flat_gradient(ddp.module)
    ddp.zero_grad(set_to_none=True)
    return found


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """|found - wanted| / |wanted|."""
    return float((found - wanted).norm() / wanted.norm())
