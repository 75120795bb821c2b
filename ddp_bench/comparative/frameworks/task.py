"""What every framework trains: the same model, weights, batches and optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_bench.toolbox import SHAPES, Llama, LlamaShape, batch_of

RANKS = 2
BATCHES = 4  # that differ; they come round again, so that the loss falls
# AdamW's usual epsilon hides a gradient that is off by a factor, because its steps do not depend on
# the scale of gradients. One of the size of gradients shows it.
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-3, "weight_decay": 0.01}


@dataclass(frozen=True)
class Task:
    """One training task.

    Attributes:
        model: name of a shape of SHAPES.
        rows: sequences of a global batch.
        length: of a sequence [tokens].
        seed: of weights and batches.
    """

    model: str = "tiny"
    rows: int = 8
    length: int = 64
    seed: int = 0

    @property
    def shape(self) -> LlamaShape:
        """Sizes of the model."""
        return SHAPES[self.model]

    def llama(self) -> Llama:
        """The model with its first weights, the same in every process."""
        torch.manual_seed(self.seed)
        return Llama(self.shape)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Global batch of a step: tokens and their successors, two of [rows, length]."""
        return batch_of(self.shape, self.rows, self.length, 1000 * self.seed + step % BATCHES)


def own_rows(tensor: Tensor, rank: int, ranks: int) -> Tensor:
    """The rows of a global batch that are a data-parallel rank's."""
    return tensor.chunk(ranks)[rank]
