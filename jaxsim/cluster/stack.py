"""Software stacks: what decides how fast one GPU type runs one model, beside the GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxsim.files import InputError, listed, meant, shown

POOLED = "pooled"  # of a run or cluster that does not say, or says what nobody measured


@dataclasses.dataclass(frozen=True)
class Stack:
    """A training stack as far as its makers publish it.

    Attributes:
        family: whose framework shards and schedules
        attention: kernel: unfused, flash-1 (also its Triton port), flash-2 or flash-3
        fusion: of element-wise operators: eager, fused (by hand) or compiled
        reshard: when weights that ZeRO-3 gathered are dropped: always, never, unless-pipelined
        scatter_each: gradients of sharded weights are scattered after every micro-batch
        reduce_bytes: [B] of a sharded gradient on the wire
        balanced_ring: context-parallel ranks share a causal sequence's work evenly
        logits: dtype and copies in the loss, in words
        precision: recipe, in words
        source: where this is published
    """

    family: str
    attention: str
    fusion: str
    reshard: str
    scatter_each: bool
    reduce_bytes: int
    balanced_ring: bool
    precision: str
    logits: str
    source: str

    @property
    def job_fields(self) -> dict[str, Any]:
        """The fields of a JobSpec that follow."""
        return {
            "flash_attention": self.attention != "unfused",
            "compiled": self.fusion != "eager",
            "reshard": self.reshard,
            "scatter_each": self.scatter_each,
            "reduce_bytes": self.reduce_bytes,
            "balanced_ring": self.balanced_ring,
        }


_MEGATRON = ("always", False, 2, True)
STACKS: dict[str, Stack] = {
    "megatron-fused": Stack(
        *("megatron", "unfused", "fused", *_MEGATRON, "fp16 or bf16, fp32 gradients"),
        "fp32 loss over sliced logits",
        "NVIDIA/Megatron-LM of 2021-2022; Narayanan et al. 2021; Korthikanti et al. 2022",
    ),
    "deepspeed-eager": Stack(
        *("megatron", "unfused", "eager", *_MEGATRON, "fp32, TF32 products"),
        "fp32",
        "eth-easl/sailor, Megatron-DeepSpeed (SOSP 2025)",
    ),
    "deepspeed-zero3": Stack(
        *("deepspeed", "unfused", "fused", *_MEGATRON, "fp16, fp32 master"),
        "fp32",
        "Rajbhandari et al. 2020; Narayanan et al. 2021, Table 2",
    ),
    "llm-foundry": Stack(
        *("fsdp", "flash-1", "eager", "always", True, 4, True, "bf16; gradients reduced in fp32"),
        "fp32 loss over whole logits",
        "mosaicml/llm-foundry, Composer mixed precision DEFAULT",
    ),
    "llm-foundry-pure": Stack(
        *("fsdp", "flash-1", "eager", "always", True, 2, True, "bf16; gradients reduced in bf16"),
        "fp32 loss over whole logits",
        "mosaicml/llm-foundry, Composer mixed precision PURE",
    ),
    "torchtitan": Stack(
        *("fsdp", "flash-2", "compiled", "unless-pipelined", False, 4, True),
        "bf16 or float8 with casts; gradients reduced in fp32",
        "fp32 loss, sliced under tensor parallelism",
        "pytorch/torchtitan (Liang et al. 2024)",
    ),
    "torchtitan-eager": Stack(
        *("fsdp", "flash-2", "eager", "unless-pipelined", False, 4, True),
        "bf16; gradients reduced in fp32",
        "fp32 loss, sliced under tensor parallelism",
        "pytorch/torchtitan without torch.compile",
    ),
    "megatron-flash": Stack(
        *("megatron", "flash-2", "fused", *_MEGATRON, "bf16, fp32 gradients"),
        "fp32 loss over sliced logits",
        "NVIDIA/Megatron-LM since 2023",
    ),
}
# Stacks that differ in settings, not in efficiencies, are fitted as one.
FITTED_AS = {
    "llm-foundry-pure": "llm-foundry",
    "torchtitan-eager": "torchtitan",
    "megatron-flash": "megatron-fused",
}


# What a table of runs says, in columns that it has anyway -> stack; the first rule whose words all
# occur (in lower case) decides. The only place where published runs are assigned to stacks.
RULES: tuple[tuple[Mapping[str, str], str], ...] = (
    ({"source": "llm-foundry", "note": "pure"}, "llm-foundry-pure"),
    ({"source": "llm-foundry"}, "llm-foundry"),
    ({"source": "torchtitan", "compile": "0"}, "torchtitan-eager"),
    ({"source": "torchtitan"}, "torchtitan"),
    ({"source": "sailor", "precision": "fp32"}, "deepspeed-eager"),
    ({"source": "vtrain", "attention": "unfused"}, "megatron-fused"),
    ({"source": "korthikanti", "attention": "unfused"}, "megatron-fused"),
    ({"source": "narayanan", "zero_stage": "3"}, "deepspeed-zero3"),
    ({"source": "narayanan", "attention": "unfused"}, "megatron-fused"),
)


def stack_of_row(row: Mapping[str, str]) -> str:
    """The stack of a measured run: its `stack` column, or what RULES tell; else POOLED.

    Raises ValueError for a `stack` that is not known.
    """
    if named := row.get("stack", ""):
        return known_stack(named, "stack")
    for words, stack in RULES:
        if all(word in row.get(key, "").lower() for key, word in words.items()):
            return stack
    return POOLED


def micro_batches_of_row(row: Mapping[str, str], stages: int) -> int | None:
    """How many micro-batches a published run had where its table prints the local batch alone.

    torchtitan's pipelines split the local batch into as many micro-batches as there are stages unless
    told otherwise (`pipeline_parallel_microbatches`); its tables do not print another number.
    """
    unsaid = not row.get("stack", "") and "torchtitan" in row.get("source", "").lower()
    return stages if unsaid and stages > 1 else None


def known_stack(name: object, where: str) -> str:
    """`name` where it is a stack's; InputError, one line that lists them, else."""
    if isinstance(name, str) and name in (*STACKS, POOLED):
        return name
    near = meant(name, STACKS) if isinstance(name, str) else ""
    raise InputError(f"{where}: unknown {shown(name)}{near}; known: {listed([*STACKS, POOLED])}")
