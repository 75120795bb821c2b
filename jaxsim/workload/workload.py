"""A transformer as a table of operators: FLOPs, bytes, parameters, activation bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.files import InputError, is_file, meant, read_yaml, shown, values
from jaxsim.pytree import Pytree
from jaxsim.trees import take
from jaxsim.workload.hugging_face import shape_of
from jaxsim.workload.number_bytes import (
    ACTIVATION_BYTES,
    FP32_ACTIVATION_BYTES,
    MOVED_STATE_BYTES,
)

# Of a model file: beyond these no transformer is near, and FLOPs leave float32.
LARGEST_SHAPE = {"layers": 10_000, "hidden": 2**20, "heads": 2**16, "kv_heads": 2**16}
LARGEST_SHAPE |= {"ffn": 2**22, "ffn_matrices": 2**24, "vocab": 2**24}
OPERATORS = ("qkv", "attention", "projection", "ffn", "elementwise")
# What activations are stored in and matrix products computed in; float8 only multiplies.
PRECISIONS = ("bf16", "fp16", "fp32", "float8")
# Weights that ZeRO-3 gathered are dropped after their pass: always; never; or unless a pipeline
# would gather them again for every micro-batch (torchtitan's default).
RESHARD = ("always", "never", "unless-pipelined")
FP32, FLOAT8 = PRECISIONS.index("fp32"), PRECISIONS.index("float8")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder-only transformer.

    `tied_embeddings` counts in `params` alone. Memory, gradient sync and moves hold a table at either
    end of the pipeline, as two stages do (Megatron-LM reduces their gradients to one); where both ends
    are one GPU that is a table too many.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    ffn_matrices: int  # 2 for a plain MLP, 3 for a gated one
    vocab: int
    tied_embeddings: bool = False

    def check(self) -> None:
        """Raise ValueError, one line that names the field, for a shape that no transformer has."""
        if self.hidden % self.heads:
            raise ValueError(f"heads: {self.heads} do not divide hidden {self.hidden}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: {self.kv_heads} do not divide heads {self.heads}")
        if self.ffn_matrices not in (2, 3):
            raise ValueError(
                f"ffn_matrices: expected 2 (plain) or 3 (gated), got {self.ffn_matrices}"
            )

    @property
    def layer_params(self) -> float:
        """Parameters of one layer: attention, FFN, two norms."""
        h = self.hidden
        return (
            2 * h * h * (1 + self.kv_heads / self.heads) + self.ffn_matrices * h * self.ffn + 2 * h
        )

    @property
    def embedding_params(self) -> float:
        """Parameters of one embedding table, vocab x hidden."""
        return float(self.vocab * self.hidden)

    @property
    def params(self) -> float:
        tables = 1 if self.tied_embeddings else 2
        return self.layers * self.layer_params + tables * self.embedding_params


# Sources: Radford et al. 2019 (GPT-2), Touvron et al. 2023 (Llama, Llama 2), Grattafiori et al. 2024
# (Llama 3.1).
MODEL_PRESETS: dict[str, ModelConfig] = {
    "gpt2-small": ModelConfig(12, 768, 12, 12, 3072, 2, 50257, True),
    "gpt2-medium": ModelConfig(24, 1024, 16, 16, 4096, 2, 50257, True),
    "llama-7b": ModelConfig(32, 4096, 32, 32, 11008, 3, 32000),
    "llama-13b": ModelConfig(40, 5120, 40, 40, 13824, 3, 32000),
    "llama-70b": ModelConfig(80, 8192, 64, 8, 28672, 3, 32000),
    "llama-405b": ModelConfig(126, 16384, 128, 8, 53248, 3, 128256),
}


@dataclasses.dataclass(frozen=True)
class JobSpec:
    """One training job on the host.

    `causal_flops`: count half of the attention matrix (today's Megatron) or all of it (SC 2021).
    `flash_attention`: the score matrix never reaches memory, and its masked half costs nothing.
    """

    model: ModelConfig
    global_batch: int = 512  # [sequences]
    seq: int = 4096  # [tokens]
    causal_flops: bool = True
    flash_attention: bool = True
    precision: str = "bf16"  # one of PRECISIONS
    compiled: bool = True  # element-wise operators are fused
    sequence_parallel: bool = True  # Korthikanti et al. 2022
    async_tensor_parallel: bool = False  # collectives overlap the products around them
    reshard: str = "always"  # one of RESHARD: when sharded weights are dropped after a pass
    scatter_each: bool = False  # sharded gradients: after every micro-batch, not the last alone
    balanced_ring: bool = True  # context-parallel ranks hold an early and a late chunk each
    reduce_bytes: int = 2  # [B] of a gradient on the wire where weights are sharded
    virtual_stages: int = 1  # model chunks per pipeline stage (Narayanan et al. 2021)
    step_budget: float = float("inf")  # [training steps] after which the job is finished
    arrival_s: float = 0.0  # [s] from the start, when the job is submitted


class StoredActivations(Pytree):
    """What one layer keeps of one sequence for its backward pass, tp = 1; [J] [GB] each.

    Korthikanti et al. 2022 (MLSys 2023), eqs. 2-4: sequence parallelism divides all of it by tp,
    tensor parallelism alone only what is not replicated.
    """

    replicated_gb: Float[Array, "*batch"]  # inputs of norms and blocks, dropout masks: 10 s h
    # attention and FFN inside a tensor-parallel group: 24 s h in a plain layer
    sliced_gb: Float[Array, "*batch"]
    # softmax, its dropout and mask: 5 a s^2, none under flash attention
    scores_gb: Float[Array, "*batch"]
    input_gb: Float[Array, "*batch"]  # the layer's input, all that full recomputation keeps: 2 s h


class DataSets(Pytree):
    """What the jobs train on, and which domains hold it from the start."""

    gb: Float[Array, "*batch"]  # [GB]
    at: Bool[Array, "*batch K"]


class Workload(Pytree):
    """Jobs as arrays; leaves have a leading job axis [J] unless a job was picked with `job`."""

    mask: Bool[Array, "*batch"]
    layers: Int[Array, "*batch"]
    global_batch: Int[Array, "*batch"]  # [sequences]
    tokens_per_step: Float[Array, "*batch"]
    step_budget: Float[Array, "*batch"]  # [training steps]
    arrival_s: Float[Array, "*batch"]  # [s]
    seq: Float[Array, "*batch"]  # [tokens]
    hidden: Float[Array, "*batch"]
    kv_width: Float[Array, "*batch"]  # hidden x kv_heads / heads
    heads: Float[Array, "*batch"]
    ffn: Float[Array, "*batch"]
    ffn_inputs: Float[Array, "*batch"]  # products into the FFN's width: 1 plain, 2 gated
    vocab: Float[Array, "*batch"]
    precision: Int[Array, "*batch"]  # index into PRECISIONS
    flash: Bool[Array, "*batch"]
    causal: Bool[Array, "*batch"]  # the scores' masked half is skipped where the kernel can
    compiled: Bool[Array, "*batch"]
    sequence_parallel: Bool[Array, "*batch"]
    async_tensor_parallel: Bool[Array, "*batch"]
    reshard: Int[Array, "*batch"]  # index into RESHARD
    scatter_each: Bool[Array, "*batch"]
    balanced_ring: Bool[Array, "*batch"]
    reduce_bytes: Float[Array, "*batch"]  # [B]
    virtual_stages: Float[Array, "*batch"]
    # [TFLOP] of one training step: 3 x forward, no recomputation
    useful_tflop: Float[Array, "*batch"]
    layer_gparams: Float[Array, "*batch"]  # [1e9 parameters] one layer
    embedding_gparams: Float[Array, "*batch"]  # [1e9 parameters] one embedding table
    boundary_gb: Float[Array, "*batch"]  # [GB] activations between two layers, per sequence
    kv_gb: Float[Array, "*batch"]  # [GB] keys and values of one layer, per sequence
    stored: StoredActivations
    logits_gb: Float[Array, "*batch"]  # [GB] fp32 logits, per sequence
    data: DataSets | None = None  # None (static) = every domain holds it

    def job(self, j: int | Int[Array, ""]) -> Workload:
        """Return job j without the job axis."""
        return take(self, j)

    @property
    def gparams(self) -> Float[Array, "*batch"]:
        """[J] [1e9 parameters] of the whole model, two embedding tables."""
        return self.layers.astype(jnp.float32) * self.layer_gparams + 2.0 * self.embedding_gparams

    @property
    def state_gb_per_layer(self) -> Float[Array, "*batch"]:
        """[J] [GB] weights and optimizer state that move with a layer; embeddings spread evenly."""
        return MOVED_STATE_BYTES * self.gparams / self.layers.astype(jnp.float32)


def operator_tflop(job: JobSpec) -> Float[np.ndarray, " O"]:
    """Return forward TFLOP of one layer for one sequence, [O] in OPERATORS' order.

    Narayanan et al., SC 2021, eq. 3, split by operator, with grouped queries and gated FFN.
    """
    m, s, h = job.model, float(job.seq), float(job.model.hidden)
    kv = h * m.kv_heads / m.heads
    causal = 0.5 if job.causal_flops else 1.0
    flops = [2 * s * h * (h + 2 * kv), 4 * s * s * h * causal, 2 * s * h * h]
    flops += [2 * m.ffn_matrices * s * h * m.ffn, 20 * s * h]
    return np.array(flops) / 1e12


def stored_bytes(job: JobSpec) -> dict[str, float]:
    """Return StoredActivations' fields in bytes, per layer and sequence at tp = 1.

    Korthikanti et al. 2022, sec. 4, with grouped queries and gated FFN; values wider than 16 bits
    scale everything (masks are a small part).
    """
    m, s, h = job.model, float(job.seq), float(job.model.hidden)
    kv = h * m.kv_heads / m.heads
    wide = value_bytes(job) / ACTIVATION_BYTES
    return {
        "replicated": wide * 10 * s * h,
        "sliced": wide * s * (4 * h + 4 * kv + 2 * m.ffn_matrices * m.ffn),
        "scores": 0.0 if job.flash_attention else wide * m.heads * s * s,
        "input": wide * 2 * s * h,
    }


def value_bytes(job: JobSpec) -> float:
    """Return the bytes of one activation."""
    return FP32_ACTIVATION_BYTES if job.precision == "fp32" else ACTIVATION_BYTES


def build_workload(jobs: Sequence[JobSpec], pad_to: int | None = None) -> Workload:
    """Stack jobs into arrays with a job axis, padded by mask to `pad_to`."""
    size = len(jobs) if pad_to is None else pad_to
    rows = [_job_row(job) for job in jobs]
    # A padded job copies the first one, so that no ratio of its numbers is ill-defined.
    rows += [{**rows[0], "mask": False}] * (size - len(jobs))
    return Workload(**jax.tree.map(_column, *rows))


def _column(*values) -> Array:
    """Stack one field over jobs: flags stay bool, counts int32, all else float32."""
    kind = {bool: bool, int: jnp.int32}.get(type(values[0]), jnp.float32)
    return jnp.asarray(np.array(values), kind)


def _index(known: Sequence[str], name: str, key: str) -> int:
    if name not in known:
        raise InputError(f"{key}: unknown {name!r}; known: {', '.join(known)}")
    return known.index(name)


def _job_row(job: JobSpec) -> dict:
    m, s = job.model, job.seq
    boundary = s * m.hidden * value_bytes(job) / 1e9
    stored: dict[str, Any] = {f"{name}_gb": x / 1e9 for name, x in stored_bytes(job).items()}
    head_tflop = 2.0 * s * m.hidden * m.vocab / 1e12
    layers_tflop = operator_tflop(job).sum() * m.layers
    return {
        "mask": True,
        "layers": m.layers,
        "global_batch": job.global_batch,
        "tokens_per_step": float(job.global_batch * s),
        "step_budget": float(job.step_budget),
        "arrival_s": float(job.arrival_s),
        "seq": float(s),
        "hidden": float(m.hidden),
        "kv_width": m.hidden * m.kv_heads / m.heads,
        "heads": float(m.heads),
        "ffn": float(m.ffn),
        "ffn_inputs": m.ffn_matrices - 1.0,
        "vocab": float(m.vocab),
        "precision": _index(PRECISIONS, job.precision, "precision"),
        "flash": job.flash_attention,
        "causal": job.causal_flops,
        "compiled": job.compiled,
        "sequence_parallel": job.sequence_parallel,
        "async_tensor_parallel": job.async_tensor_parallel,
        "reshard": _index(RESHARD, job.reshard, "reshard"),
        "scatter_each": job.scatter_each,
        "balanced_ring": job.balanced_ring,
        "reduce_bytes": float(job.reduce_bytes),
        "virtual_stages": float(job.virtual_stages),
        "useful_tflop": float(3.0 * (layers_tflop + head_tflop) * job.global_batch),
        "layer_gparams": m.layer_params / 1e9,
        "embedding_gparams": m.embedding_params / 1e9,
        "boundary_gb": boundary,
        "kv_gb": 2 * boundary * m.kv_heads / m.heads,
        "stored": StoredActivations(**stored),
        "logits_gb": 4.0 * s * m.vocab / 1e9,
    }


def load_model(name_or_path: str) -> ModelConfig:
    """Return a preset by name, or a model read from a file: YAML with ModelConfig's fields, or a
    config.json of Hugging Face (its name ends in .json).

    Raises InputError that lists the presets or names the file and the key.
    """
    if name_or_path in MODEL_PRESETS:
        return MODEL_PRESETS[name_or_path]
    if not is_file(name_or_path):
        near = meant(name_or_path, MODEL_PRESETS)
        known = ", ".join(MODEL_PRESETS)
        raise InputError(
            f"model: unknown {shown(name_or_path)}{near}; a YAML file, a Hugging Face config.json or "
            f"one of: {known}"
        )
    path = name_or_path
    body = shape_of(path, LARGEST_SHAPE) if path.endswith(".json") else _described(path)
    model = ModelConfig(**body)
    try:
        model.check()
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    return model


def _described(path: str) -> dict[str, Any]:
    """The fields of a ModelConfig in a YAML file."""
    body = read_yaml(path, "a model file")
    fields = dataclasses.fields(ModelConfig)
    must = [f.name for f in fields if f.default is dataclasses.MISSING]
    body = values.mapping(body, f"{path}: the file", must, [f.name for f in fields])
    for key, value in body.items():
        if key == "tied_embeddings":
            values.flag(value, f"{path}: {key}")
        else:
            values.count(value, f"{path}: {key}", high=LARGEST_SHAPE[key])
    return dict(body)
