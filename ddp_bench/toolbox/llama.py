"""A small Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Touvron et al. 2023 (arXiv:2302.13971); grouped queries: Ainslie et al. 2023 (arXiv:2305.13245).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of a model; `hidden` is the width of the feed-forward layers."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    hidden: int = 352
    vocab: int = 512
    longest: int = 1024  # [tokens]

    def __post_init__(self) -> None:
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError("width must be a multiple of heads, and heads of kv_heads")
        if self.width // self.heads % 2:
            raise ValueError("rotary positions need an even number of channels per head")


SHAPES = {
    "tiny": LlamaShape(layers=4, width=64, heads=4, kv_heads=2, hidden=176, vocab=256),
    "small": LlamaShape(layers=6, width=128, heads=4, kv_heads=2, hidden=352, vocab=512),
    "wide": LlamaShape(layers=4, width=256, heads=8, kv_heads=4, hidden=704, vocab=1024),
    "deep": LlamaShape(layers=12, width=96, heads=4, kv_heads=4, hidden=256, vocab=512),
}


def rotary_table(length: int, channels: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the angles of all positions: two of [length, channels / 2]."""
    rate = 10000.0 ** (-torch.arange(0, channels, 2).float() / channels)
    angle = torch.outer(torch.arange(length).float(), rate)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) on `x` [B, T, heads, channels]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[: x.shape[1], None], sin[: x.shape[1], None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    """Causal self-attention, [B, T, width] -> the same."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.channels = shape.width // shape.heads
        self.query = nn.Linear(shape.width, shape.heads * self.channels, bias=False)
        self.key = nn.Linear(shape.width, shape.kv_heads * self.channels, bias=False)
        self.value = nn.Linear(shape.width, shape.kv_heads * self.channels, bias=False)
        self.out = nn.Linear(shape.heads * self.channels, shape.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # The number of heads is read from the data: a tensor-parallel rank holds some of them.
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.channels))
            for layer in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        query, key, value = (tensor.transpose(1, 2) for tensor in (query, key, value))
        repeats = query.shape[1] // key.shape[1]
        if repeats > 1:
            key, value = (t.repeat_interleave(repeats, dim=1) for t in (key, value))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020, arXiv:2002.05202), [B, T, width] -> the same."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer, [B, T, width] -> the same."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """Tokens [B, T] -> logits [B, T, vocab]."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        cos, sin = rotary_table(shape.longest, shape.width // shape.heads)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of [B, T, vocab] against [B, T]."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch_of(shape: LlamaShape, rows: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens and their successors, two of [rows, length]; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(shape.vocab, (rows, length + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
