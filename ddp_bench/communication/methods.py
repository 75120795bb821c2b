"""What is sent of a gradient. Every method replaces a bucket's gradients by (nearly) their mean.

exact      all-reduce in float32, whole or in pieces
fp16, bf16 all-reduce of a rounded copy
int8       255 levels for each block of numbers, gathered, with error feedback
topk       the largest numbers and where they stand, gathered, with error feedback
powersgd   factors of low rank (Vogels et al. 2019, arXiv:1905.13727), with error feedback
local      nothing; weights are averaged every few steps (Stich 2018, arXiv:1805.09767)

All but local, powersgd and pieces can reduce-scatter as well, where every rank needs the mean of its
own part alone: what is gathered otherwise goes from each rank to each then, part by part.

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

    def reduce_scatter(self, bucket: int, flat: Tensor, channel: Channel) -> Tensor:
        """About the mean over ranks of this rank's part of `flat`, [n / ranks].

        Args:
            flat: all gradients, [n], parts in the order of ranks; its content may change.
        """
        raise NotImplementedError

    @property
    def scatters(self) -> bool:
        """Can it reduce-scatter?"""
        return type(self).reduce_scatter is not Method.reduce_scatter

    def reset(self) -> None:
        """Forget what is owed."""


class Exact(Method):
    """All-reduce in pieces of at most `cap` bytes."""

    def __init__(self, cap: int | None = None) -> None:
        self._cap = cap

    def reduce(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> None:
        for piece in flat.split(self._cap // 4) if self._cap else (flat,):
            channel.mean(piece)

    def reduce_scatter(self, bucket: int, flat: Tensor, channel: Channel) -> Tensor:
        return channel.sum_of_own(flat) / channel.ranks

    @property
    def scatters(self) -> bool:
        return not self._cap


class Cast(Method):
    """All-reduce of a rounded copy. Divided before the sum, which could overflow in float16."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def reduce(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> None:
        rounded = (flat / channel.ranks).to(self._dtype)
        channel.sum(rounded)
        flat.copy_(rounded)

    def reduce_scatter(self, bucket: int, flat: Tensor, channel: Channel) -> Tensor:
        return channel.sum_of_own((flat / channel.ranks).to(self._dtype)).to(flat.dtype)


class _Owing(Method):
    """A method with error feedback."""

    def __init__(self) -> None:
        self._owed: dict[int, Tensor] = {}

    def reset(self) -> None:
        self._owed.clear()

    def reduce(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> None:
        self._add_owed(bucket, flat)
        wanted = flat.clone()
        sent = self.send(bucket, flat, parts, channel)
        # The mean is the same on every rank, and so is whether it is finite.
        if torch.isfinite(flat).all():
            self._owed[bucket] = wanted.sub_(sent)
        else:
            self.reset()

    def _add_owed(self, bucket: int, flat: Tensor) -> None:
        owed = self._owed.get(bucket)
        # Buckets are made anew after a first step.
        if owed is not None and owed.shape == flat.shape:
            flat += owed

    def send(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> Tensor:
        """Replace `flat` by the mean of what ranks send; what this rank's part in it was."""
        raise NotImplementedError


class _Coded(_Owing):
    """A method that sends a code of its numbers: every rank decodes what the others sent, and adds."""

    def encode(self, rows: Tensor) -> Tensor:
        """[r, n] -> [r, ...], one code for each row."""
        raise NotImplementedError

    def add(self, code: Tensor, total: Tensor) -> None:
        """Add what one code stands for to `total` [n]."""
        raise NotImplementedError

    def send(self, bucket: int, flat: Tensor, parts: Sequence[Tensor], channel: Channel) -> Tensor:
        (code,) = self.encode(flat[None])
        flat.zero_()
        for received in channel.gather(code):
            self.add(received, flat)
        flat /= channel.ranks
        sent = torch.zeros_like(flat)
        self.add(code, sent)
        return sent

    def reduce_scatter(self, bucket: int, flat: Tensor, channel: Channel) -> Tensor:
        self._add_owed(bucket, flat)
        rows = flat.view(channel.ranks, -1)
        codes = self.encode(rows)
        own = torch.zeros_like(rows[0])
        for received in channel.exchange(codes):
            self.add(received, own)
        sent = torch.zeros_like(rows)
        for code, row in zip(codes, sent, strict=True):
            self.add(code, row)
        owed = flat - sent.view(-1)
        # A rank sees its own part of the mean only: what is not finite here is forgotten here.
        if torch.isfinite(owed).all():
            self._owed[bucket] = owed
        else:
            self.reset()
        return own / channel.ranks


class Int8(_Coded):
    """Numbers from -127 to 127 with a scale for each block; the scale goes with them."""

    def encode(self, rows: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK))
        blocks = padded.view(len(rows), -1, BLOCK)
        scale = blocks.abs().amax(dim=2, keepdim=True) / 127  # NaN or inf stays what it is
        levels = (blocks / scale.clamp(min=1e-30)).nan_to_num().round().to(torch.int8)
        return torch.cat((levels.flatten(1), scale.flatten(1).view(torch.int8)), dim=1)

    def add(self, code: Tensor, total: Tensor) -> None:
        blocks = -(-total.numel() // BLOCK)
        levels = code[: blocks * BLOCK].view(blocks, BLOCK)
        scale = code[blocks * BLOCK :].clone().view(torch.float32)
        total += (levels * scale[:, None]).view(-1)[: total.numel()]


class TopK(_Coded):
    """The largest numbers of every rank: indices differ, so they are gathered and not summed."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share

    def encode(self, rows: Tensor) -> Tensor:
        count = max(1, int(self._share * rows.shape[1]))
        # NaN would be passed over: it counts as the largest.
        where = rows.abs().nan_to_num(nan=torch.inf, posinf=torch.inf).topk(count).indices
        return torch.stack(
            (where.to(torch.int32).view(torch.float32), rows.gather(1, where)), dim=1
        )

    def add(self, code: Tensor, total: Tensor) -> None:
        where, values = code
        places = where.contiguous().view(torch.int32).long()
        total.index_add_(0, places, values.to(total.dtype))


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
