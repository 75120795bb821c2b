"""Local SGD with an outer optimizer: DiLoCo, and its streaming form.

Every pipeline trains on its own for H steps. Then the mean of what the pipelines have moved since the
last sync is the gradient of an outer Nesterov step (Douillard et al. 2023, algorithm 1). With F
fragments, parts of the model take turns, H / F steps apart. With an overlap of tau steps a fragment's
sum travels while training goes on, and is mixed with what was learnt meanwhile (Douillard et al.
2025, "Streaming DiLoCo", algorithm 2). torchft has the same for replicas that hold the whole model,
behind a manager and a lighthouse server; here replicas may be pipelines of unequal shares, and their
sums go out in 8 bits with error feedback.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_bench.parallel.groups import Groups
from ddp_bench.parallel.sync import flatten, unflatten, unit_of
from ddp_bench.parallel.wire import Pending, Wire

MIXING = 0.5  # alpha: share of what was learnt during the overlap that stays


@dataclass
class Part:
    """Parameters of one fragment that the same ranks hold."""

    parameters: list[Tensor]
    anchor: Tensor  # flat; what all pipelines agreed on last
    momentum: Tensor
    wire: Wire | None  # None = another replica of this pipeline speaks for this rank
    inside: dist.ProcessGroup | None
    first: int  # the replica that speaks
    key: str
    pending: Pending | None = None


class OuterSync:
    """The outer optimizer of one rank.

    `weight` is the share of the global batch that this rank's pipeline trains on.
    """

    def __init__(
        self,
        parameters: dict[str, Tensor],
        holders: list[list[list[int]]],
        groups: Groups,
        *,
        period: int,
        fragments: int,
        overlap: int,
        bits: int,
        learning_rate: float,
        momentum: float,
        weight: float,
        rank: int,
    ) -> None:
        self._period, self._fragments, self._overlap = period, fragments, overlap
        self._rate, self._momentum, self._weight = learning_rate, momentum, weight
        by_key: dict[tuple[int, tuple[int, ...]], list[Tensor]] = {}
        self._members: dict[tuple[int, tuple[int, ...]], list[list[int]]] = {}
        for name, parameter in parameters.items():
            members = holders[unit_of(name)]
            key = unit_of(name) % fragments, tuple(replicas[0] for replicas in members)
            by_key.setdefault(key, []).append(parameter)
            self._members[key] = members
        self._parts: dict[int, list[Part]] = {f: [] for f in range(fragments)}
        for key in sorted(by_key):
            part = self._part(key, by_key[key], groups, bits, rank)
            self._parts[key[0]].append(part)

    def _part(self, key, parameters: list[Tensor], groups: Groups, bits: int, rank: int) -> Part:
        own = next(replicas for replicas in self._members[key] if rank in replicas)
        anchor = flatten(parameters)
        wire = Wire(groups.of(key[1]), bits) if rank == own[0] else None
        inside = groups.of(own)
        return Part(parameters, anchor, torch.zeros_like(anchor), wire, inside, own[0], str(key))

    def after_step(self, step: int) -> None:
        """Begin and finish what is due after training step `step`."""
        for fragment in range(self._fragments):
            since = step + 1 + fragment * self._period // self._fragments
            if since % self._period == 0:
                self._begin(fragment)
            if (since - self._overlap) % self._period == 0:
                self._finish(fragment, MIXING if self._overlap else 0.0)

    def complete(self) -> None:
        """Bring all pipelines to the same weights: what is under way, then their plain mean. An outer
        step here would move weights by its momentum even where nothing was learnt since the last."""
        for fragment in range(self._fragments):
            self._finish(fragment, MIXING)
        for fragment in range(self._fragments):
            self._begin(fragment)
        self._rate, self._momentum = 1.0, 0.0
        for fragment in range(self._fragments):
            self._finish(fragment, 0.0)

    def set_anchor(self) -> None:
        """What the parameters are now is what all pipelines agree on; momentum starts anew."""
        for part in (part for parts in self._parts.values() for part in parts):
            part.anchor.copy_(flatten(part.parameters))
            part.momentum.zero_()

    def _begin(self, fragment: int) -> None:
        for part in self._parts[fragment]:
            moved = self._weight * (part.anchor - flatten(part.parameters))
            part.pending = part.wire.start(moved, part.key) if part.wire else Pending(None, None)

    def _finish(self, fragment: int, mixing: float) -> None:
        """Take an outer step with what has arrived. Nothing was begun: nothing to do."""
        for part in self._parts[fragment]:
            if part.pending is None:
                continue
            if part.wire is not None:
                self._step(part, part.pending.wait())
            if part.inside is not None:
                dist.broadcast(part.anchor, src=part.first, group=part.inside)
            part.pending = None
            new = part.anchor
            if mixing:
                new = mixing * flatten(part.parameters) + (1.0 - mixing) * part.anchor
            unflatten(new, part.parameters)

    def _step(self, part: Part, gradient: Tensor) -> None:
        """SGD with Nesterov momentum (Sutskever et al. 2013), as torch.optim.SGD has it."""
        part.momentum.mul_(self._momentum).add_(gradient)
        part.anchor.sub_(self._rate * (gradient + self._momentum * part.momentum))
