"""What the machine does while all ranks ask for it: matrix products, copies, messages by group; and
whether torch's context parallelism, which shares the tokens of a sequence, runs on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

from ddp_bench.layouts.model import mesh_of
from ddp_bench.layouts.pieces import Rounds
from ddp_bench.microbench import COLLECTIVES, measure_operators
from ddp_bench.toolbox import Ranks, Repeats, stopwatch

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "send_recv")
SIZES = (1 << 16, 1 << 20, 1 << 22)  # [B]


def hardware_on_rank(ranks: Ranks, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Rates of matrix products and copies on this rank, and of messages on the slowest.

    Groups of fewer ranks than there are work side by side, as they do in a layout.
    """
    dist.barrier()
    operators = [
        {
            "kind": operator.kind,
            "name": operator.name,
            "median_s": timed.median,
            "gflop_per_s": operator.flop / timed.median / 1e9 if operator.flop else None,
            "gb_per_s": operator.bytes / timed.median / 1e9,
        }
        for operator, timed in measure_operators(
            ["gemm", "copy"], Repeats(repeats, 2), ranks.device
        )
    ]
    works = {}
    for group_ranks in (n for n in range(2, ranks.ranks + 1) if ranks.ranks % n == 0):
        mesh = mesh_of(group_ranks, ranks.ranks // group_ranks, 1, ranks.device.type)
        group = mesh["dp"].get_group()
        for kind in KINDS:
            for size in SIZES:
                buffer = torch.zeros(size // 4, device=ranks.device)
                given = (buffer, dist.get_rank(group), group_ranks, group)
                works[kind, group_ranks, size] = _timed(COLLECTIVES[kind].make(*given), ranks)
    played = Rounds(works, ranks)
    played.play(repeats)
    messages = [
        {"kind": kind, "group": group, "size_bytes": size, "median_s": row[0]}
        for (kind, group, size), row in played.medians().items()
    ]
    return {"operators": operators, "messages": messages}


def _timed(send: Callable[[], object], ranks: Ranks) -> Callable[[], tuple[float, ...]]:
    def once() -> tuple[float, ...]:
        with stopwatch(ranks.device) as seconds:
            send()
        return (seconds(),)

    return once


def context_on_rank(ranks: Ranks) -> str:
    """Why it does not run, empty if it does: causal attention over shared tokens, with backward."""
    mesh = mesh_of(ranks.ranks, 1, 1, ranks.device.type)["dp"]
    size = (1, 2, 16 * ranks.ranks, 16)  # sequences, heads, tokens, channels
    buffers = [torch.randn(size, device=ranks.device) for _ in range(3)]
    try:
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
            query, key, value = (b.clone().requires_grad_() for b in buffers)
            out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            out.sum().backward()
    except (RuntimeError, NotImplementedError, ValueError, AssertionError) as error:
        return str(error).partition("\n")[0]
    return ""
