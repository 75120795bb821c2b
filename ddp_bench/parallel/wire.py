"""Sums of vectors between ranks, with 32, 16 or 8 bits a value on the wire.

gloo sums fp32 and fp16 by itself. For int8 every rank quantises its vector in blocks and sends it to
all others, and each adds up what it has received: sums of int8 would overflow. What rounding cut off is
added to the rank's next vector (error feedback: Seide et al. 2014, Karimireddy et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

BLOCK = 1024  # values that share a scale
INT8_MAX = 127.0


class Pending:
    """A sum under way."""

    def __init__(self, work: Any, read: Callable[[], Tensor]) -> None:
        self._work, self._read = work, read

    def wait(self) -> Tensor:
        """Block until it is there; fp32."""
        if self._work is not None:
            self._work.wait()
        return self._read()

    def future(self) -> torch.futures.Future:
        """The same for a communication hook of DistributedDataParallel."""
        if self._work is None:
            done = torch.futures.Future()
            done.set_result(self._read())
            return done
        return self._work.get_future().then(lambda _: self._read())


class Wire:
    """Sums over one process group; keeps what int8 left over, by key."""

    def __init__(self, group: dist.ProcessGroup | None, bits: int) -> None:
        self.group, self.bits = group, bits
        self.left_over: dict[str, Tensor] = {}

    def start(self, vector: Tensor, key: str) -> Pending:
        """Begin to sum a flat fp32 vector over the group. The vector may be overwritten."""
        if self.group is None or dist.get_world_size(self.group) == 1:
            return Pending(None, lambda: vector)
        if self.bits == 32:
            work = dist.all_reduce(vector, group=self.group, async_op=True)
            return Pending(work, lambda: vector)
        if self.bits == 16:
            half = vector.to(torch.float16)
            work = dist.all_reduce(half, group=self.group, async_op=True)
            return Pending(work, half.float)
        return self._start_int8(vector, key)

    def _start_int8(self, vector: Tensor, key: str) -> Pending:
        if key in self.left_over:
            vector = vector + self.left_over[key]
        coded = quantise(vector)
        self.left_over[key] = vector - dequantise(coded, vector.numel())
        found = [torch.empty_like(coded) for _ in range(dist.get_world_size(self.group))]
        work = dist.all_gather(found, coded, group=self.group, async_op=True)

        def total() -> Tensor:
            return torch.stack([dequantise(one, vector.numel()) for one in found]).sum(0)

        return Pending(work, total)


def quantise(vector: Tensor) -> Tensor:
    """A flat fp32 vector as bytes: int8 values, then one fp32 scale for each BLOCK of them."""
    blocks = torch.nn.functional.pad(vector, (0, -vector.numel() % BLOCK)).view(-1, BLOCK)
    scale = (blocks.abs().amax(1) / INT8_MAX).clamp_min(1e-30)
    values = (blocks / scale[:, None]).round().to(torch.int8)
    return torch.cat([values.flatten().view(torch.uint8), scale.view(torch.uint8)])


def dequantise(coded: Tensor, count: int) -> Tensor:
    """The first `count` values of what `quantise` made."""
    blocks = coded.numel() // (BLOCK + 4)
    values = coded[: blocks * BLOCK].view(torch.int8).view(blocks, BLOCK)
    scale = coded[blocks * BLOCK :].clone().view(torch.float32)
    return (values.float() * scale[:, None]).flatten()[:count]
