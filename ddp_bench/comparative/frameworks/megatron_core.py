"""megatron-core: its GPTModel as a Llama, its data parallelism, optimizer and tensor parallelism.

Patched where there is no GPU: which device is the current one, waiting for it, the loss scale of the
optimizer, which lies on a GPU, and the random state of GPUs, which nothing here draws from.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing, optimizer, parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer.optimizer import FP32Optimizer, MegatronOptimizer
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer import TransformerConfig
from torch import Tensor
from torch.nn.functional import silu

from ddp_bench.comparative.frameworks.adapter import Adapter
from ddp_bench.comparative.frameworks.task import ADAMW, Task, own_rows
from ddp_bench.toolbox import LlamaShape, Ranks


class HostOptimizer(FP32Optimizer):
    """Its optimizer with the loss scale, which float32 does not use, on the CPU."""

    def __init__(self, inner: torch.optim.Optimizer, config: OptimizerConfig, init: Any) -> None:
        MegatronOptimizer.__init__(self, inner, config, init)
        self._scale, self.is_stub_optimizer = torch.ones(1), False


def patch_for_cpu() -> None:
    """What it takes from CUDA without asking whether there is any."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda device=None: None
    optimizer.FP32Optimizer = HostOptimizer
    CudaRNGStatesTracker.fork = lambda self, name="": nullcontext()


def config_of(shape: LlamaShape, tensor: int) -> TransformerConfig:
    """Its description of the model."""
    return TransformerConfig(
        num_layers=shape.layers,
        hidden_size=shape.width,
        ffn_hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        tensor_model_parallel_size=tensor,
        normalization="RMSNorm",
        layernorm_epsilon=1e-5,
        gated_linear_unit=True,
        activation_func=silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        apply_rope_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
    )


def weights_of(task: Task, rank: int, ranks: int) -> dict[str, Tensor]:
    """A tensor-parallel rank's part of the task's first weights, under its names. Queries, keys and
    values of a group lie together, and so do the two halves of the feed-forward layer."""
    llama, shape = task.llama().state_dict(), task.shape
    queries = shape.heads // shape.kv_heads * shape.width // shape.heads

    def part(name: str, dim: int = 0) -> Tensor:
        return llama[f"{name}.weight"].chunk(ranks, dim)[rank]

    found = {
        "embedding.word_embeddings.weight": part("embedding"),
        "decoder.final_layernorm.weight": llama["norm.weight"],
        "output_layer.weight": part("head"),
    }
    for i in range(shape.layers):
        ours, its = f"layers.{i}", f"decoder.layers.{i}"
        query = part(f"{ours}.attention.query").unflatten(0, (-1, queries))
        key, value = (
            part(f"{ours}.attention.{name}").unflatten(0, (query.shape[0], -1))
            for name in ("key", "value")
        )
        found |= {
            f"{its}.self_attention.linear_qkv.weight": torch.cat((query, key, value), 1).flatten(
                0, 1
            ),
            f"{its}.self_attention.linear_proj.weight": part(f"{ours}.attention.out", 1),
            f"{its}.mlp.linear_fc1.weight": torch.cat(
                [part(f"{ours}.feed_forward.{name}") for name in ("gate", "up")]
            ),
            f"{its}.mlp.linear_fc2.weight": part(f"{ours}.feed_forward.down", 1),
            f"{its}.input_layernorm.weight": llama[f"{ours}.attention_norm.weight"],
            f"{its}.pre_mlp_layernorm.weight": llama[f"{ours}.feed_forward_norm.weight"],
        }
    return found


class Megatron(Adapter):
    """Tensor parallelism over `tensor` ranks, data parallelism over the others."""

    made_of = (HostOptimizer, patch_for_cpu, config_of, weights_of)

    def __init__(self, task: Task, ranks: Ranks, tensor: int, **settings: Any) -> None:
        if ranks.device.type == "cpu":
            patch_for_cpu()
        parallel_state.initialize_model_parallel(tensor)
        self.device, shape = ranks.device, task.shape
        config = config_of(shape, tensor)
        model = GPTModel(
            config,
            get_gpt_layer_local_spec(normalization="RMSNorm"),
            vocab_size=shape.vocab,
            max_sequence_length=shape.longest,
            share_embeddings_and_output_weights=False,
            position_embedding_type="rope",
        )
        rank = parallel_state.get_tensor_model_parallel_rank()
        model.load_state_dict(weights_of(task, rank, tensor), strict=False)
        model.to(ranks.device)
        self.model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
        adam = OptimizerConfig(
            lr=ADAMW["lr"],
            adam_beta1=ADAMW["betas"][0],
            adam_beta2=ADAMW["betas"][1],
            adam_eps=ADAMW["eps"],
            weight_decay=ADAMW["weight_decay"],
            clip_grad=0.0,
        )
        # A chain of one, which would compute a norm of gradients that nothing here asks for.
        chain = get_megatron_optimizer(adam, [self.model], config_overrides={})
        (self.optimizer,) = chain.chained_optimizers

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        place = (
            parallel_state.get_data_parallel_rank(),
            parallel_state.get_data_parallel_world_size(),
        )
        tokens, targets = (own_rows(t, *place).to(self.device) for t in (tokens, targets))
        length = tokens.shape[1]
        positions = torch.arange(length, device=self.device).expand_as(tokens)
        later = torch.ones(length, length, dtype=torch.bool, device=self.device).triu(1)
        self.model.zero_grad_buffer()
        self.optimizer.zero_grad()
        loss = self.model(tokens, positions, later[None, None], labels=targets).mean()
        loss.backward()
        finalize_model_grads([self.model])
        self.optimizer.step()
        return loss.detach()

    def save(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        dist_checkpointing.save(self._state(), str(folder))

    def load(self, folder: Path) -> None:
        found = dist_checkpointing.load(self._state(is_loading=True), str(folder))
        self.model.module.load_state_dict(found["model"], strict=False)
        self.optimizer.load_state_dict(found["optimizer"])

    def _state(self, is_loading: bool = False) -> dict[str, Any]:
        model = self.model.module.sharded_state_dict()
        state = self.optimizer.sharded_state_dict(model, is_loading=is_loading)
        return {"model": model, "optimizer": state}
