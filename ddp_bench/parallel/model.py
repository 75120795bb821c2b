"""A small Llama-shaped language model, cut into units that any stage can hold.

Unit 0 is the embedding, units 1 to L are the layers, unit L + 1 is the final norm and the head. Names
of parameters carry the unit, so that they are the same under every plan; so are initial weights.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddp_bench.parallel.job import ModelShape

ROTARY_BASE = 10000.0  # Su et al. 2021
FORWARD = 1.0 / 3.0  # of a layer's time; its backward pass has twice the products


def rotary(x: Tensor) -> Tensor:
    """Rotate the pairs of [B, heads, T, width] by their position."""
    length, width = x.shape[-2:]
    rate = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class Layer(nn.Module):
    """Attention and gated FFN with norms before them (Touvron et al. 2023)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.width = shape.hidden // shape.heads
        kv = self.kv_heads * self.width
        self.attention_norm = nn.RMSNorm(shape.hidden)
        self.query = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.key = nn.Linear(shape.hidden, kv, bias=False)
        self.value = nn.Linear(shape.hidden, kv, bias=False)
        self.projection = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.ffn_norm = nn.RMSNorm(shape.hidden)
        self.gate = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.up = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden] -> [B, T, hidden]."""
        normed = self.attention_norm(x)
        heads = (self.query, self.heads), (self.key, self.kv_heads), (self.value, self.kv_heads)
        q, k, v = (f(normed).unflatten(-1, (n, self.width)).transpose(1, 2) for f, n in heads)
        grouped = self.kv_heads != self.heads
        mixed = functional.scaled_dot_product_attention(
            rotary(q), rotary(k), v, is_causal=True, enable_gqa=grouped
        )
        x = x + self.projection(mixed.transpose(1, 2).flatten(-2))
        normed = self.ffn_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Head(nn.Module):
    """Final norm and logits."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden] -> [B, T, vocab]."""
        return self.output(self.norm(x))


class Paced(torch.autograd.Function):
    """Lets time pass in both directions and changes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        """`seconds` [s] are of both passes together."""
        ctx.seconds = seconds
        time.sleep(FORWARD * seconds)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """The gradient as it comes."""
        time.sleep((1.0 - FORWARD) * ctx.seconds)
        return gradients[0], None


class Chunk(nn.Module):
    """Some neighbouring units of the model.

    `pace_s` [s] is what a layer takes for a sequence beside its work; with `half` the next chunk is
    handed 16 bits a value, and so are gradients on their way back.
    """

    def __init__(
        self,
        shape: ModelShape,
        units: Sequence[int],
        seed: int,
        pace_s: float = 0.0,
        half: bool = False,
    ) -> None:
        super().__init__()
        self._half = half and units[-1] <= shape.layers
        self._pace_s = pace_s * sum(1 <= unit <= shape.layers for unit in units)
        self.units = nn.ModuleDict({f"{u:03}": _unit(shape, u, seed) for u in units})

    def forward(self, x: Tensor) -> Tensor:
        """[B, T] token ids, or [B, T, hidden], through the units in order."""
        if x.dtype == torch.float16:
            x = x.float()
        for unit in self.units.values():
            x = unit(x)
        if self._pace_s:
            x = Paced.apply(x, self._pace_s * len(x))
        return x.half() if self._half else x


def _unit(shape: ModelShape, unit: int, seed: int) -> nn.Module:
    """One unit with the weights that it has under every plan."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + unit)
    if unit == 0:
        module: nn.Module = nn.Embedding(shape.vocab, shape.hidden)
    else:
        module = Layer(shape) if unit <= shape.layers else Head(shape)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02, generator=generator)
    return module


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """[] mean cross-entropy of [B, T, vocab] against [B, T]."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())
