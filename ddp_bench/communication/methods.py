"""What is sent of a gradient. Every method replaces a bucket's gradients by (nearly) their mean.

exact      all-reduce in float32, whole or in pieces
fp16, bf16 all-reduce of a rounded copy
int8       255 levels for each block of numbers, gathered, with error feedback
topk       the largest numbers and where they stand, gathered, with error feedback
powersgd   factors of low rank (Vogels et al. 2019, arXiv:1905.13727), with error feedback
local      nothing; weights are averaged every few steps (Stich 2018, arXiv:1805.09767)

Error feedback (Karimireddy et al. 2019, arXiv:1901.09847): what a step does not send is added to
the next step's gradient. A step whose gradients are not finite is skipped by trainers, which then
call `reset`. Every rank sees that it is not finite, but by `local`: there a rank skips alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ddp_bench.communication.channel import Channel

BLOCK = 1024  # numbers that share a scale in int8


class Method:
    """One method on one rank; its state belongs to the buckets that it has seen."""

    every = 1  # steps between averages of weights; 1: gradients are averaged instead

    def reduce(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> None:
        """Replace `flat` by about its mean over ranks.

        Args:
            bucket: number of the bucket.
            flat: all gradients of the bucket, [n].
            parts: the same memory, one view for each parameter.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Forget what is owed."""


class Exact(Method):
    """All-reduce in pieces of at most `cap` bytes."""

    def __init__(self, cap: int | None = None) -> None:
        self._cap = cap

    def reduce(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> None:
        for piece in flat.split(self._cap // 4) if self._cap else (flat,):
            channel.mean(piece)


class Cast(Method):
    """All-reduce of a rounded copy. Divided before the sum, which could overflow in float16."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def reduce(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> None:
        rounded = (flat / channel.ranks).to(self._dtype)
        channel.sum(rounded)
        flat.copy_(rounded)


class _Owing(Method):
    """A method with error feedback."""

    def __init__(self) -> None:
        self._owed: dict[int, Tensor] = {}

    def reset(self) -> None:
        self._owed.clear()

    def reduce(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> None:
        owed = self._owed.get(bucket)
        if (
            owed is not None and owed.shape == flat.shape
        ):  # buckets are made anew after a first step
            flat += owed
        wanted = flat.clone()
        sent = self.send(bucket, flat, parts, channel)
        owed = wanted.sub_(sent)
        # The mean is the same on every rank, and so is whether it is finite.
        if torch.isfinite(flat).all():
            self._owed[bucket] = owed
        else:
            self.reset()

    def send(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> Tensor:
        """Replace `flat` by the mean of what ranks send; what this rank's part in it was."""
        raise NotImplementedError


class Int8(_Owing):
    """Numbers from -127 to 127 with a scale for each block; the scale goes with them."""

    def send(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> Tensor:
        blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
        scale = blocks.abs().amax(dim=1, keepdim=True) / 127  # NaN or inf stays what it is
        levels = (blocks / scale.clamp(min=1e-30)).nan_to_num().round().to(torch.int8)
        message = torch.cat((levels.view(-1), scale.view(-1).view(torch.int8)))
        decoded = [self._decode(m, len(blocks))[: flat.numel()] for m in channel.gather(message)]
        flat.copy_(torch.stack(decoded).mean(dim=0))
        return self._decode(message, len(blocks))[: flat.numel()]

    @staticmethod
    def _decode(message: Tensor, blocks: int) -> Tensor:
        levels = message[: blocks * BLOCK].view(blocks, BLOCK)
        scale = message[blocks * BLOCK :].clone().view(torch.float32)
        return (levels * scale[:, None]).view(-1)


class TopK(_Owing):
    """The largest numbers of every rank: indices differ, so they are gathered and not summed."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def send(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> Tensor:
        count = max(1, int(self._share * flat.numel()))
        # NaN would be passed over: it counts as the largest.
        where = flat.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).topk(count).indices
        message = torch.stack((where.to(torch.int32).view(torch.float32), flat[where]))
        sent = torch.zeros_like(flat)
        sent[where] = flat[where]
        flat.zero_()
        for found, values in channel.gather(message):
            flat.index_add_(0, found.contiguous().view(torch.int32).long(), values)
        flat /= channel.ranks
        return sent


class PowerSGD(_Owing):
    """Matrices as products of two thin ones; what is no matrix is sent as it is."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank
        self._right: dict[tuple[int, int], Tensor] = {}  # (bucket, part) -> [columns, rank]

    def reset(self) -> None:
        super().reset()
        self._right.clear()

    def send(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> Tensor:
        matrices = {i: p.flatten(1) for i, p in enumerate(parts) if self._is_worth_it(p)}
        others = [p for i, p in enumerate(parts) if i not in matrices]
        _mean_together(others, channel)
        lefts = {i: m @ self._right_of(bucket, i, m) for i, m in matrices.items()}
        _mean_together(list(lefts.values()), channel)
        lefts = {i: torch.linalg.qr(left.nan_to_num()).Q for i, left in lefts.items()}
        rights = {i: m.t() @ lefts[i] for i, m in matrices.items()}
        _mean_together(list(rights.values()), channel)
        for i, matrix in matrices.items():
            self._right[bucket, i] = rights[i]
            matrix.copy_(lefts[i] @ rights[i].t())
        # What is owed is measured against the mean, as in the paper: all ranks sent the same.
        return flat.clone()

    def _is_worth_it(self, part: Tensor) -> bool:
        if part.dim() < 2:
            return False
        rows, columns = part.flatten(1).shape
        return (rows + columns) * self._rank < rows * columns

    def _right_of(self, bucket: int, index: int, matrix: Tensor) -> Tensor:
        known = self._right.get((bucket, index))
        if known is not None and known.shape[0] == matrix.shape[1]:
            return known
        # The same on every rank: all of them begin with the same numbers.
        generator = torch.Generator().manual_seed(1000 * bucket + index)
        drawn = torch.randn(matrix.shape[1], self._rank, generator=generator)
        return drawn.to(matrix.device, matrix.dtype)


def _mean_together(tensors: Sequence[Tensor], channel: Channel) -> None:
    """Replace tensors by their means in one message."""
    if not tensors:
        return
    joined = torch.cat([t.reshape(-1) for t in tensors])
    channel.mean(joined)
    for tensor, part in zip(tensors, joined.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


class Local(Method):
    """Gradients stay; weights are averaged after every `every` steps."""

    def __init__(self, every: int) -> None:
        self.every = every

    def reduce(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> None:
        """Nothing is sent."""


METHODS: dict[str, Callable[[], Method]] = {
    "exact": Exact,
    "pieces": lambda: Exact(1 << 18),
    "fp16": lambda: Cast(torch.float16),
    "bf16": lambda: Cast(torch.bfloat16),
    "int8": Int8,
    "topk": lambda: TopK(0.02),
    "powersgd": lambda: PowerSGD(4),
    "local": lambda: Local(4),
}
