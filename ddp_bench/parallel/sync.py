"""Gradients of pipelines and replicas, summed in buckets after the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_bench.parallel.groups import Groups
from ddp_bench.parallel.wire import Pending, Wire

FP32_BYTES = 4


class Summation:
    """Sums over the holders of one part of the model.

    `members` [pipeline][replica] are their ranks. Flat: one sum over all of them. Hierarchical: over
    the replicas of every pipeline, then over the first ones, which tell the others.
    """

    def __init__(
        self, groups: Groups, members: list[list[int]], bits: int, hierarchical: bool, rank: int
    ) -> None:
        self._own = next(replicas for replicas in members if rank in replicas)
        self._inside = groups.of(self._own) if hierarchical else None
        self._first = self._own[0]
        everybody = [r for replicas in members for r in replicas]
        leaders = [replicas[0] for replicas in members]
        across = leaders if hierarchical else everybody
        self._takes_part = rank in across
        self._wire = Wire(groups.of(across) if self._takes_part else None, bits)

    def start(self, vectors: Sequence[Tensor], key: str) -> list[Pending | None]:
        """Begin to sum flat fp32 vectors over all holders; those over the WAN travel at once."""
        for vector in vectors:
            self._reduce_inside(vector)
        return [
            self._wire.start(vector, f"{key}/{n}") if self._takes_part else None
            for n, vector in enumerate(vectors)
        ]

    def finish(self, vectors: Sequence[Tensor], pending: Sequence[Pending | None]) -> list[Tensor]:
        """The sums of what `start` began with."""
        done = [p.wait() if p else v for p, v in zip(pending, vectors, strict=True)]
        for vector in done:
            self._tell_inside(vector)
        return done

    def _reduce_inside(self, vector: Tensor) -> None:
        if self._inside is not None:
            dist.all_reduce(vector, group=self._inside)

    def _tell_inside(self, vector: Tensor) -> None:
        if self._inside is not None:
            dist.broadcast(vector, src=self._first, group=self._inside)


class BucketSync:
    """The gradient sum of one rank: parameters in buckets by who else holds them.

    `parameters` maps names to parameters in the order of units; `holders` [unit][pipeline][replica].
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        holders: list[list[list[int]]],
        groups: Groups,
        bits: int,
        hierarchical: bool,
        bucket_mb: float,
        rank: int,
    ) -> None:
        self._parts = []
        # Neighbouring units that the same ranks hold make a run, the same one on all of these ranks.
        runs = list(accumulate(b != a for a, b in pairwise([holders[0], *holders])))
        for _, items in groupby(parameters.items(), lambda item: runs[unit_of(item[0])]):
            run = list(items)
            members = holders[unit_of(run[0][0])]
            if sum(map(len, members)) > 1:
                summation = Summation(groups, members, bits, hierarchical, rank)
                self._parts.append((summation, buckets([p for _, p in run], bucket_mb)))

    def sum_gradients(self) -> None:
        """Replace every gradient by its sum over all ranks that hold the parameter."""
        begun = []
        for n, (summation, parts) in enumerate(self._parts):
            vectors = [flatten([p.grad for p in bucket]) for bucket in parts]
            begun.append((vectors, summation.start(vectors, str(n))))
        # All are under way before one is waited for: a rank may share layers with several others.
        for (summation, parts), (vectors, pending) in zip(self._parts, begun, strict=True):
            for bucket, vector in zip(parts, summation.finish(vectors, pending), strict=True):
                unflatten(vector, [p.grad for p in bucket])


def unit_of(name: str) -> int:
    """The unit that a parameter belongs to, by its name `units.<unit>.<...>`."""
    return int(name.split(".")[1])


def buckets(parameters: Sequence[Tensor], bucket_mb: float) -> list[list[Tensor]]:
    """Neighbouring parameters, [MB] of fp32 at most each unless one alone is larger."""
    out: list[list[Tensor]] = []
    room = 0.0
    for parameter in parameters:
        size = FP32_BYTES * parameter.numel() / 1e6
        if not out or size > room:
            out.append([])
            room = bucket_mb
        out[-1].append(parameter)
        room -= size
    return out


def flatten(tensors: Sequence[Tensor]) -> Tensor:
    """One flat copy."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def unflatten(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    """Write a flat vector back into tensors."""
    with torch.no_grad():
        for part, tensor in zip(vector.split([t.numel() for t in tensors]), tensors, strict=True):
            tensor.copy_(part.view_as(tensor))
