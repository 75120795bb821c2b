"""Picotron (github.com/huggingface/picotron): its Llama under its data parallelism in buckets.

It is no package: a checkout is named. Where there is no GPU its model's imports of flash-attn, which
has no CPU build, find stand-ins; its own switch FLASH_ATTEN keeps them from being called.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ddp_bench.comparative.frameworks.adapter import Adapter, NotRun
from ddp_bench.comparative.frameworks.task import ADAMW, Task, own_rows
from ddp_bench.toolbox import Ranks, token_loss

FLASH = {  # module -> what the model imports from it
    "flash_attn": (),
    "flash_attn.flash_attn_interface": ("flash_attn_func",),
    "flash_attn.layers": (),
    "flash_attn.layers.rotary": ("apply_rotary_emb",),
    "flash_attn.ops": (),
    "flash_attn.ops.triton": (),
    "flash_attn.ops.triton.layer_norm": ("layer_norm_fn",),
}
NAMES = {  # ours -> its
    "layers.": "decoder_layers.",
    "attention.query.": "attention.q_proj.",
    "attention.key.": "attention.k_proj.",
    "attention.value.": "attention.v_proj.",
    "attention.out.": "attention.out_proj.",
    "feed_forward.gate.": "mlp.gate_proj.",
    "feed_forward.up.": "mlp.up_proj.",
    "feed_forward.down.": "mlp.down_proj.",
    "attention_norm.": "input_layernorm.",
    "feed_forward_norm.": "post_attention_layernorm.",
    "norm.": "final_norm.",
    "head.": "final_proj.",
}


def modules_of(checkout: str, device: torch.device) -> tuple[ModuleType, ...]:
    """Its modules: the groups of processes, data parallelism, the model."""
    os.environ |= {"FLASH_ATTEN": "0", "DTYPE": "float32", "CONTEXT_PARALLEL": "0"}
    os.environ["DEVICE"] = device.type
    sys.path.insert(0, checkout)
    if device.type == "cpu":
        for name, functions in FLASH.items():
            sys.modules[name] = ModuleType(name)
            for function in functions:
                setattr(sys.modules[name], function, None)
    names = ("process_group_manager", "data_parallel.data_parallel", "model")
    return tuple(importlib.import_module(f"picotron.{name}") for name in names)


def weights_of(task: Task) -> dict[str, Tensor]:
    """The task's first weights under its names."""
    found = {}
    for name, tensor in task.llama().state_dict().items():
        for ours, its in NAMES.items():
            if name.startswith(ours) or f".{ours}" in name:
                name = name.replace(ours, its, 1)
        found[name] = tensor
    return found


class Picotron(Adapter):
    """Every rank has the model and half of the rows; gradients are summed in buckets."""

    made_of = (modules_of, weights_of)

    def __init__(self, task: Task, ranks: Ranks, checkout: str, **settings: Any) -> None:
        if not checkout:
            raise NotRun("--picotron names no checkout of it, and no package brings it")
        self.ranks, shape = ranks, task.shape
        groups, parallel, model = modules_of(checkout, ranks.device)
        groups.setup_process_group_manager(tp_size=1, cp_size=1, pp_size=1, dp_size=ranks.ranks)
        config = SimpleNamespace(
            vocab_size=shape.vocab,
            hidden_size=shape.width,
            intermediate_size=shape.hidden,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            num_hidden_layers=shape.layers,
            max_position_embeddings=task.length,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
        )
        llama = model.Llama(config)
        llama.load_state_dict(weights_of(task))
        self.model = parallel.DataParallelBucket(llama.to(ranks.device))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **ADAMW)

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        tokens, targets = (
            own_rows(part, self.ranks.rank, self.ranks.ranks).to(self.ranks.device)
            for part in (tokens, targets)
        )
        self.optimizer.zero_grad()
        loss = token_loss(self.model(input_ids=tokens), targets)
        loss.backward()
        self.optimizer.step()
        self.model.reset()
        return loss.detach()
