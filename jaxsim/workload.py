"""A transformer as a table of operators: FLOPs, bytes, parameters, activation bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from flax import struct
from jax import Array

from jaxsim.errors import InputError

# Recompute modes: nothing, the attention core only, the whole layer.
RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL = 0, 1, 2
OPERATORS = ("qkv", "attention", "projection", "ffn", "elementwise")
ATTENTION = OPERATORS.index("attention")
ACTIVATION_BYTES = 2  # 16-bit activations and gradients on the wire
STATE_BYTES_PER_PARAM = (
    14  # bf16 weight 2 + fp32 master, momentum, variance 12: what a move carries
)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder-only transformer."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    ffn_matrices: int  # 2 for a plain MLP, 3 for a gated one
    vocab: int
    tied_embeddings: bool = False

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
    `flash_attention`: the score matrix never reaches memory.
    """

    model: ModelConfig
    global_batch: int = 512  # [sequences]
    seq: int = 4096  # [tokens]
    causal_flops: bool = True
    flash_attention: bool = True
    step_budget: float = float("inf")  # [training steps] after which the job is finished


@struct.dataclass
class Workload:
    """Jobs as arrays; leaves have a leading job axis [J] unless a job was picked with `job`."""

    mask: Array  # [J] bool
    layers: Array  # [J] int32
    global_batch: Array  # [J] int32 [sequences]
    tokens_per_step: Array  # [J] float32
    step_budget: Array  # [J] [training steps]
    op_tflop: Array  # [J, O] [TFLOP] forward, per layer and sequence
    op_io_gb: Array  # [J, O] [GB] activations through HBM, forward, per layer and sequence
    op_weight_gb: Array  # [J, O] [GB] 16-bit weights of one layer
    head_tflop: Array  # [J] [TFLOP] logits, forward, per sequence
    layer_gparams: Array  # [J] [1e9 parameters] one layer
    embedding_gparams: Array  # [J] [1e9 parameters] one embedding table
    boundary_gb: Array  # [J] [GB] 16-bit activations between two layers, per sequence
    kv_gb: Array  # [J] [GB] 16-bit keys and values of one layer, per sequence
    activation_gb: Array  # [J, 3] [GB] stored per layer and sequence, by recompute mode, tp = 1
    logits_gb: Array  # [J] [GB] fp32 logits, per sequence

    def job(self, j: int) -> Workload:
        """Return job j without the job axis."""
        return jax.tree.map(lambda x: x[j], self)

    @property
    def gparams(self) -> Array:
        """[J] [1e9 parameters] of the whole model, two embedding tables."""
        return self.layers.astype(jnp.float32) * self.layer_gparams + 2.0 * self.embedding_gparams

    @property
    def useful_tflop(self) -> Array:
        """[J] [TFLOP] of one training step: 3 x forward, recomputation not counted."""
        layer = self.op_tflop.sum(-1) * self.layers.astype(jnp.float32)
        return 3.0 * (layer + self.head_tflop) * self.global_batch.astype(jnp.float32)

    @property
    def state_gb_per_layer(self) -> Array:
        """[J] [GB] weights and optimizer state that move with a layer; embeddings spread evenly."""
        return STATE_BYTES_PER_PARAM * self.gparams / self.layers.astype(jnp.float32)


def operator_table(job: JobSpec) -> dict[str, np.ndarray]:
    """Return forward FLOPs and bytes of one layer for one sequence, [O] each, in OPERATORS' order.

    FLOPs: Narayanan et al., SC 2021, eq. 3, split by operator, with grouped queries and gated FFN.
    """
    m, s, h = job.model, float(job.seq), float(job.model.hidden)
    kv = h * m.kv_heads / m.heads
    causal = 0.5 if job.causal_flops else 1.0
    flops = [2 * s * h * (h + 2 * kv), 4 * s * s * h * causal, 2 * s * h * h]
    flops += [2 * m.ffn_matrices * s * h * m.ffn, 20 * s * h]
    scores = 0.0 if job.flash_attention else 4.0 * m.heads * s * s
    io = [s * (2 * h + 2 * kv), s * (2 * h + 2 * kv) + scores, 2 * s * h]
    io += [s * (2 * h + m.ffn_matrices * m.ffn), 8 * s * h]
    weights = [h * (h + 2 * kv), 0.0, h * h, m.ffn_matrices * h * m.ffn, 2 * h]
    return {
        "tflop": np.array(flops) / 1e12,
        "io_gb": np.array(io) * ACTIVATION_BYTES / 1e9,
        "weight_gb": np.array(weights) * ACTIVATION_BYTES / 1e9,
    }


def activation_bytes(job: JobSpec) -> np.ndarray:
    """Return [3] bytes stored per layer and sequence at tp = 1, by recompute mode.

    Korthikanti et al. 2022 (MLSys 2023), sec. 4: 34 s h + 5 a s^2 without recompute, 34 s h with
    selective recompute or flash attention, 2 s h with full recompute; 34 counts a plain 4 h FFN.
    """
    m, s, h = job.model, float(job.seq), float(job.model.hidden)
    # 18 s h around the FFN, 16 s h in a plain 4 h one: 4 bytes per FFN element and matrix pair.
    base = s * (18 * h + 2 * m.ffn_matrices * m.ffn)
    scores = 0.0 if job.flash_attention else 5.0 * m.heads * s * s
    return np.array([base + scores, base, 2 * s * h])


def build_workload(jobs: Sequence[JobSpec], pad_to: int | None = None) -> Workload:
    """Stack jobs into arrays with a job axis, padded by mask to `pad_to`."""
    size = len(jobs) if pad_to is None else pad_to
    rows = [_job_row(job) for job in jobs]
    # A padded job copies the first one, so that no ratio of its numbers is ill-defined.
    rows += [{**rows[0], "mask": False}] * (size - len(jobs))
    ints = {"layers", "global_batch"}
    return Workload(
        **{
            key: jnp.asarray(
                np.stack([np.asarray(row[key]) for row in rows]),
                bool if key == "mask" else jnp.int32 if key in ints else jnp.float32,
            )
            for key in rows[0]
        }
    )


def _job_row(job: JobSpec) -> dict:
    m, s, table = job.model, job.seq, operator_table(job)
    boundary = s * m.hidden * ACTIVATION_BYTES / 1e9
    return {
        "mask": True,
        "layers": m.layers,
        "global_batch": job.global_batch,
        "tokens_per_step": job.global_batch * s,
        "step_budget": job.step_budget,
        "op_tflop": table["tflop"],
        "op_io_gb": table["io_gb"],
        "op_weight_gb": table["weight_gb"],
        "head_tflop": 2.0 * s * m.hidden * m.vocab / 1e12,
        "layer_gparams": m.layer_params / 1e9,
        "embedding_gparams": m.embedding_params / 1e9,
        "boundary_gb": boundary,
        "kv_gb": 2 * boundary * m.kv_heads / m.heads,
        "activation_gb": activation_bytes(job) / 1e9,
        "logits_gb": 4.0 * s * m.vocab / 1e9,
    }


def load_model(name_or_path: str) -> ModelConfig:
    """Return a preset by name, or a model read from a YAML file with ModelConfig's fields.

    Raises InputError that lists the presets or names the file and the key.
    """
    if name_or_path in MODEL_PRESETS:
        return MODEL_PRESETS[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(MODEL_PRESETS)
        raise InputError(f"model: unknown {name_or_path!r}; a YAML file or one of: {known}")
    try:
        body = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        line = str(error).replace("\n", " ")
        raise InputError(f"{path}: not valid YAML: {line}") from None
    fields = {f.name: f for f in dataclasses.fields(ModelConfig)}
    if not isinstance(body, Mapping):
        raise InputError(f"{path}: expected a mapping with {', '.join(fields)}")
    for key, value in body.items():
        if key not in fields:
            raise InputError(f"{path}: unknown key {key!r}; allowed: {', '.join(fields)}")
        if key == "tied_embeddings":
            if not isinstance(value, bool):
                raise InputError(f"{path}: {key}: expected true or false, got {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{path}: {key}: expected an integer >= 1, got {value!r}")
    missing = [n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in body]
    if missing:
        raise InputError(f"{path}: missing key {missing[0]!r}")
    return ModelConfig(**body)
