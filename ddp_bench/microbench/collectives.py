"""Collectives by kind, size and number of ranks.

Sizes, algorithm bandwidth and bus bandwidth are those of nccl-tests (doc/PERFORMANCE.md there):
algbw = size / time, busbw = algbw * factor, so that busbw is the rate of a link whatever the number
of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_bench.microbench.together import together
from ddp_bench.ranks import comm
from ddp_bench.toolbox import Ranks, Repeats, Timed, on_ranks

# Few messages under one stopwatch, and many turns: a message of ranks that share cores waits for
# another rank's turn on a core or does not, and a machine that is shared slows down for a while.
# A median leaves such turns out; the mean of a long turn holds some of either.
SHORTEST_S = 2e-3
Send = Callable[[], object]
Group = dist.ProcessGroup | None  # None: all ranks


@dataclass(frozen=True)
class Collective:
    """A kind of message.

    Attributes:
        make: (buffer of nccl-tests' size, rank, ranks, group) -> what sends it once; rank and ranks are
            those of the group, None is all ranks.
        factor: ranks -> busbw / algbw.
    """

    make: Callable[..., Send]
    factor: Callable[[int], float]


def _all_reduce(buffer: Tensor, rank: int, ranks: int, group: Group = None) -> Send:
    return lambda: dist.all_reduce(buffer, group=group)


def _all_gather(buffer: Tensor, rank: int, ranks: int, group: Group = None) -> Send:
    own = buffer.chunk(ranks)[rank].clone()
    return lambda: comm.gather_into(buffer, own, group=group)


def _reduce_scatter(buffer: Tensor, rank: int, ranks: int, group: Group = None) -> Send:
    own = buffer.chunk(ranks)[rank].clone()
    return lambda: comm.scatter_from(own, buffer, group=group)


def _broadcast(buffer: Tensor, rank: int, ranks: int, group: Group = None) -> Send:
    return lambda: dist.broadcast(buffer, group=group, group_src=0)


def _all_to_all(buffer: Tensor, rank: int, ranks: int, group: Group = None) -> Send:
    received = torch.empty_like(buffer)
    return lambda: dist.all_to_all_single(received, buffer, group=group)


def _send_recv(buffer: Tensor, rank: int, ranks: int, group: Group = None) -> Send:
    received = torch.empty_like(buffer)

    def send() -> None:
        following, previous = (rank + 1) % ranks, (rank - 1) % ranks
        pair = [
            dist.P2POp(dist.isend, buffer, group=group, group_peer=following),
            dist.P2POp(dist.irecv, received, group=group, group_peer=previous),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()

    return send


COLLECTIVES = {
    "all_reduce": Collective(_all_reduce, lambda n: 2 * (n - 1) / n),
    "all_gather": Collective(_all_gather, lambda n: (n - 1) / n),
    "reduce_scatter": Collective(_reduce_scatter, lambda n: (n - 1) / n),
    "broadcast": Collective(_broadcast, lambda n: 1.0),
    "all_to_all": Collective(_all_to_all, lambda n: (n - 1) / n),
    "send_recv": Collective(_send_recv, lambda n: 1.0),
}


@dataclass(frozen=True)
class Point:
    """One kind, size [B] and number of ranks, with the time of the slowest rank in every round."""

    collective: str
    ranks: int
    size: int
    timed: Timed

    @property
    def algbw(self) -> float:
        """[B/s]"""
        return self.size / self.timed.median

    @property
    def busbw(self) -> float:
        """[B/s]"""
        return self.algbw * COLLECTIVES[self.collective].factor(self.ranks)


def measure_collectives(
    ranks: int,
    sizes: list[int],
    repeats: Repeats,
    names: tuple[str, ...] = tuple(COLLECTIVES),
    timeout_s: float = 120.0,
) -> list[Point]:
    """Every kind at every size; the sizes of a kind take turns, short messages several times at once.

    Args:
        sizes: [B]; rounded to a whole number of float32 for every rank.

    Raises:
        RanksFailed: naming a rank that failed.
    """
    grain = 4 * ranks
    whole = [max(size // grain, 1) * grain for size in sizes]
    found = on_ranks(
        collectives_on_rank,
        ranks,
        *(list(names), whole, replace(repeats, shortest_s=SHORTEST_S)),
        timeout_s=timeout_s,
        preload=("ddp_bench.microbench.collectives",),
    )[0]
    return [Point(name, ranks, size, timed) for (name, size), timed in found.items()]


def collectives_on_rank(
    ranks: Ranks, names: list[str], sizes: list[int], repeats: Repeats
) -> dict[tuple[str, int], Timed]:
    """(kind, size) -> seconds of the slowest rank in every round.

    Sizes of one kind take turns, whose times are compared; with all kinds in a round, two rounds would
    be seconds apart, and a shared machine another one. Every kind has its part of the time limit.
    """
    found: dict[tuple[str, int], Timed] = {}
    own = replace(repeats, limit_s=repeats.limit_s / len(names))
    for name in names:
        sends = {}
        for size in sizes:
            buffer = torch.zeros(size // 4, device=ranks.device)
            sends[name, size] = COLLECTIVES[name].make(buffer, ranks.rank, ranks.ranks)
        found |= together(sends, own, ranks)
    return found
