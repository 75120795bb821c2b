"""One rank's part of the model under a layout: a stage, its tensor-parallel and sharded parts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from ddp_bench.layouts.layout import Layout
from ddp_bench.toolbox import Block, Llama, LlamaShape

AXES = ("pp", "dp", "tp")


@cache
def mesh_of(dp: int, tp: int, pp: int, device: str) -> DeviceMesh:
    """Ranks as [pp, dp, tp]; made once, as groups of ranks are costly and never given back.

    Ranks of a layer stay neighbours, and so do those of a replica within a stage.
    """
    return init_device_mesh(device, (pp, dp, tp), mesh_dim_names=AXES)


class Stage(nn.Module):
    """Neighbouring layers of the model, under the names and with the weights that they have in the
    whole: tokens or activations in, activations or logits out."""

    def __init__(self, shape: LlamaShape, index: int = 0, stages: int = 1, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # the whole model is drawn, so that every layout begins alike
            whole = Llama(shape)
        own = shape.layers // stages
        self.layers = nn.ModuleDict(
            {str(i): whole.layers[i] for i in range(own * index, own * (index + 1))}
        )
        self.embedding = whole.embedding if index == 0 else None
        self.norm = whole.norm if index == stages - 1 else None
        self.head = whole.head if index == stages - 1 else None
        self.register_buffer("cos", whole.cos, persistent=False)
        self.register_buffer("sin", whole.sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return x if self.head is None else self.head(self.norm(x))


def split_layer(block: Block, mesh: DeviceMesh) -> None:
    """Tensor parallelism (Shoeybi et al. 2019, arXiv:1909.08053): columns, then rows, of attention and
    of the feed-forward layer. One message forward and one backward for each of the two."""
    given = PrepareModuleInput(
        input_layouts=(Replicate(), None, None), desired_input_layouts=(Replicate(), None, None)
    )
    fed = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    columns = {
        **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")},
    }
    rows = {"attention.out": RowwiseParallel(), "feed_forward.down": RowwiseParallel()}
    parallelize_module(block, mesh, {"attention": given, "feed_forward": fed, **columns, **rows})


def share(module: nn.Module, layout: Layout, device: torch.device) -> nn.Module:
    """The module's layers split over tp, then everything sharded over dp (zero 2 and 3)."""
    mesh = mesh_of(layout.dp, layout.tp, layout.pp, device.type)
    module.to(device)
    layers = [m for m in module.modules() if isinstance(m, Block)]
    if layout.tp > 1:
        for layer in layers:
            split_layer(layer, mesh["tp"])
        if getattr(module, "head", None) is not None:
            columns = ColwiseParallel(output_layouts=Replicate())
            parallelize_module(module, mesh["tp"], {"head": columns})
    if layout.zero >= 2:
        for target in dict.fromkeys((*layers, module)):
            fully_shard(target, mesh=mesh["dp"], reshard_after_forward=layout.zero == 3)
    return module


def without_layers(shape: LlamaShape) -> LlamaShape:
    """A model of embedding, norm and head alone."""
    return replace(shape, layers=0)


def place(layout: Layout) -> tuple[int, int]:
    """(stage, replica) of this rank."""
    stage, rest = divmod(dist.get_rank(), layout.dp * layout.tp)
    return stage, rest // layout.tp
