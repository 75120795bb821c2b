"""torchtitan: its Llama 3, sharded by its own `parallelize_llama` (FSDP2).

Three things are patched where there is no GPU: its kernels for mixtures of experts import triton, which
has no CPU build; its meshes are of CUDA devices; and its sums of gradients are scaled on the way, which
gloo cannot do.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from ddp_bench.comparative.frameworks.adapter import Adapter
from ddp_bench.comparative.frameworks.task import ADAMW, Task, own_rows
from ddp_bench.toolbox import Ranks, token_loss

if not torch.cuda.is_available():
    KERNELS = "torchtitan.models.moe.kernels"
    sys.modules[KERNELS] = ModuleType(KERNELS)
    sys.modules[KERNELS].generate_permute_indices = None
from torchtitan.config import JobConfig
from torchtitan.distributed import ParallelDims, parallel_dims
from torchtitan.models.llama3 import Transformer, TransformerModelArgs
from torchtitan.models.llama3.infra.parallelize import parallelize_llama
from torchtitan.models.llama3.model.args import RoPEScalingArgs

NAMES = {  # ours -> its
    "embedding.": "tok_embeddings.",
    "attention.query.": "attention.wq.",
    "attention.key.": "attention.wk.",
    "attention.value.": "attention.wv.",
    "attention.out.": "attention.wo.",
    "feed_forward.gate.": "feed_forward.w1.",
    "feed_forward.down.": "feed_forward.w2.",
    "feed_forward.up.": "feed_forward.w3.",
    "feed_forward_norm.": "ffn_norm.",
    "head.": "output.",
}


def weights_of(task: Task) -> dict[str, Tensor]:
    """The task's first weights under its names; it rotates neighbouring channels, ours are half a
    head apart."""
    channels = task.shape.width // task.shape.heads
    found = {}
    for name, tensor in task.llama().state_dict().items():
        if "query" in name or "key" in name:
            heads = tensor.unflatten(0, (-1, 2, channels // 2))
            tensor = heads.transpose(1, 2).flatten(0, 2)
        for ours, its in NAMES.items():
            name = name.replace(ours, its)
        found[name] = tensor
    return found


class Titan(Adapter):
    """FSDP2 as torchtitan sets it up, in float32 and without recomputation."""

    made_of = (weights_of,)

    def __init__(self, task: Task, ranks: Ranks, **settings: Any) -> None:
        self.ranks, shape = ranks, task.shape
        parallel_dims.device_type = ranks.device.type
        # Its width of the feed-forward layers is int(8 / 3 * dim * multiplier) rounded up.
        plain = int(8 * shape.width / 3)
        arguments = TransformerModelArgs(
            dim=shape.width,
            n_layers=shape.layers,
            n_heads=shape.heads,
            n_kv_heads=shape.kv_heads,
            vocab_size=shape.vocab,
            multiple_of=shape.hidden,
            ffn_dim_multiplier=shape.hidden / plain if shape.hidden < plain else None,
            rope_scaling_args=RoPEScalingArgs(scaling_factor=1.0),
            max_seq_len=shape.longest,
        )
        config = JobConfig()
        config.training.mixed_precision_param = "float32"
        config.training.seq_len = task.length
        config.activation_checkpoint.mode = "none"
        model = Transformer(arguments)
        model.load_state_dict(weights_of(task))
        model.to(ranks.device)
        dims = ParallelDims(1, ranks.ranks, 1, 1, 1, 1, 1, world_size=ranks.ranks)
        self.model = parallelize_llama(model, dims, config)
        if ranks.device.type == "cpu":
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        tokens, targets = (
            own_rows(part, self.ranks.rank, self.ranks.ranks).to(self.ranks.device)
            for part in (tokens, targets)
        )
        loss = token_loss(self.model(tokens), targets)
        (loss / self.ranks.ranks).backward()  # it sums gradients, its trainer divides losses
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()
