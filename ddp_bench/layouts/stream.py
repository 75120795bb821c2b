"""Samples by number: a step's samples are the same under every layout."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

NOISE = 0.2  # share of tokens that follow from nothing


def sample_ids(step: int, rows: int) -> range:
    """Numbers of the samples of a step of `rows` sequences."""
    return range(step * rows, (step + 1) * rows)


def sample(number: int, length: int, vocab: int, seed: int) -> Tensor:
    """Sample `number` of a stream, [length + 1] tokens; most follow from the one before."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + number)
    drawn = torch.randint(vocab, (length + 1,), generator=generator).tolist()
    is_drawn = (torch.rand(length + 1, generator=generator) < NOISE).tolist()
    tokens = drawn[:1]
    for token, free in zip(drawn[1:], is_drawn[1:], strict=True):
        tokens.append(token if free else (3 * tokens[-1] + 1) % vocab)
    return torch.tensor(tokens)


def samples(numbers: Iterable[int], length: int, vocab: int, seed: int) -> tuple[Tensor, Tensor]:
    """Tokens and their successors, two of [rows, length]."""
    rows = torch.stack([sample(number, length, vocab, seed) for number in numbers])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
