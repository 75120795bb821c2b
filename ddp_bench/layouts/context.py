"""Whether torch's context parallelism, which shares the tokens of a sequence, runs here."""

from __future__ import annotations

import torch
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional

from ddp_bench.layouts.model import mesh_of
from ddp_bench.toolbox import Ranks


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
