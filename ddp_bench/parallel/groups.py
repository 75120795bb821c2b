"""Process groups of a plan: every rank makes all of them, in the same order."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from ddp_bench.errors import ConfigError
from ddp_bench.parallel.plan import TrainPlan, holders, seats


class Groups:
    """Groups by their ranks. Of one rank there is none: it has nobody to talk to.

    A message that takes longer than `timeout_s` fails; a group's own default would be half an hour.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout = timedelta(seconds=timeout_s)
        self._made: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def prepare(self, plan: TrainPlan, ranks: Sequence[str], layers: int) -> None:
        """Make the groups that a plan needs; all ranks of the job call this together."""
        for members in needed(plan, ranks, layers):
            if members not in self._made:
                self._made[members] = _ordered(members, self._timeout)

    def of(self, members: Sequence[int]) -> dist.ProcessGroup | None:
        """The group of these ranks in this order, None for one alone."""
        return self._made[tuple(members)] if len(members) > 1 else None


def needed(plan: TrainPlan, ranks: Sequence[str], layers: int) -> list[tuple[int, ...]]:
    """The groups of a plan as tuples of ranks: pipelines, replicas, first replicas, and all that hold
    the same unit; each once, in an order that all ranks agree on."""
    found = set(pipelines(plan, ranks).values())
    for of_unit in holders(plan, ranks, layers):
        found |= {tuple(replicas) for replicas in of_unit}
        found.add(tuple(replicas[0] for replicas in of_unit))
        found.add(tuple(rank for replicas in of_unit for rank in replicas))
    return sorted(members for members in found if len(members) > 1)


def pipelines(plan: TrainPlan, ranks: Sequence[str]) -> dict[tuple[int, int], tuple[int, ...]]:
    """(pipeline, replica) -> its ranks by stage."""
    found: dict[tuple[int, int], dict[int, int]] = {}
    for rank, seat in seats(plan, ranks).items():
        found.setdefault((seat.pipeline, seat.replica), {})[seat.stage] = rank
    return {key: tuple(by[s] for s in sorted(by)) for key, by in found.items()}


def _ordered(members: tuple[int, ...], timeout: timedelta) -> dist.ProcessGroup:
    """A gloo group whose ranks are numbered as listed, where torch can do that."""
    can = "sort_ranks" in inspect.signature(dist.new_group).parameters
    order = {"sort_ranks": False} if can else {}
    return dist.new_group(list(members), timeout=timeout, **order)


def require_order(group: dist.ProcessGroup, members: Sequence[int]) -> None:
    """Raise ConfigError where a group's numbers are not the stages: interleaving relies on them."""
    if [dist.get_group_rank(group, rank) for rank in members] != list(range(len(members))):
        raise ConfigError(
            "schedule interleaved: this version of torch orders groups by rank; allowed are domains "
            "in the order of the cluster's"
        )
