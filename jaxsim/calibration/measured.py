"""Measured training runs: the table that published step times and memory are collected in."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.cluster import (
    GPU_ALIASES,
    GPU_PRESETS,
    POOLED,
    STACKS,
    Calibration,
    Cluster,
    micro_batches_of_row,
    stack_of_row,
)
from jaxsim.files import (
    InputError,
    listed,
    meant,
    read_header,
    read_text_table,
    shown,
    values,
)
from jaxsim.plan import Plan, Problem, Recompute, Schedule, empty_plan
from jaxsim.step_time import (
    NetworkView,
    StepCost,
    in_flight_chunks,
    job_step_cost,
    layer_memory,
    state_bytes_per_param,
)
from jaxsim.workload import PRECISIONS, JobSpec, ModelConfig, build_workload

GIB = 2.0**30
# Network of one node [GB/s] per direction, of the systems these GPUs were measured in: eight HDR
# (SC 2021's Selene), eight NDR (H100 training clusters), four Slingshot-11 ports (Alps); of GPUs that
# nobody measured here, what their makers' reference systems have.
NODE_GB_PER_S = {"A100": 200.0, "A800": 200.0, "H100": 400.0, "H200": 400.0, "B200": 400.0}
NODE_GB_PER_S |= {"GH200": 100.0, "MI300X": 400.0, "L40S": 50.0, "V100": 12.5}
INTRA_RTT_S = 5e-6
MEASURABLE = (1e-6, 1e9)  # [s], [GiB]
# Selective activation checkpointing, operator by operator, is PyTorch's name for the same.
RECOMPUTE = {mode.word: mode for mode in Recompute} | {"per-op SAC": Recompute.SELECTIVE}
COUNTS = ("n_gpus", "gpus_per_node", "layers", "hidden", "heads", "kv_heads", "ffn", "ffn_matrices")
COUNTS += ("vocab", "seq", "tp", "cp", "pp", "dp", "micro_batch", "global_batch")
REQUIRED = ("row_id", "gpu", *COUNTS, "recompute", "attention", "precision", "step_s")


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """One row: what was trained how, and what was measured; None = not published."""

    dataset: str
    row_id: str
    gpu: str
    n_gpus: int
    gpus_per_node: int
    model: ModelConfig
    seq: int
    tp: int
    cp: int
    pp: int
    dp: int
    zero_stage: int
    virtual_stages: int
    micro_batch: int
    global_batch: int
    recompute: str
    sequence_parallel: bool
    flash: bool
    precision: str
    compiled: bool
    async_tp: bool
    step_s: float | None
    peak_memory_gib: float | None
    state_gib: float | None  # published split: weights, gradients and optimizer of the layers
    activation_gib: float | None  # and what the layers keep for the backward pass
    source: str
    note: str
    stack: str = POOLED

    @property
    def job(self) -> JobSpec:
        """The job as the simulator takes it."""
        return JobSpec(
            self.model,
            self.global_batch,
            self.seq,
            causal_flops=self.flash,
            flash_attention=self.flash,
            precision=self.precision,
            compiled=self.compiled,
            sequence_parallel=self.sequence_parallel,
            async_tensor_parallel=self.async_tp,
            virtual_stages=self.virtual_stages,
            **_sharding(self.stack),
        )

    @property
    def model_key(self) -> tuple[int, int]:
        """Runs of one model share layers and width."""
        return self.model.layers, self.model.hidden

    @property
    def choice_key(self) -> tuple:
        """Runs that differ only in the plan: a planner chooses among these."""
        return (self.model, self.seq, self.n_gpus, self.global_batch)


def load_measured(path: str | Path, strict: bool = False) -> tuple[list[MeasuredRun], list[str]]:
    """Load one CSV file of measured runs; returns the runs and one line per row left out.

    Raises InputError that names the file and the missing column, or, with `strict`, the first row
    that is wrong.
    """
    path = Path(path)
    # Of a row cut short, the missing fields are empty like any other.
    table = read_text_table(path, "a table of measured runs", None)
    for column in REQUIRED:
        if column not in table.columns:
            raise InputError(f"{path}: missing column {column!r}; needed: {listed(REQUIRED)}")
    runs, left_out, lines = [], [], {}
    for number, row in zip(table.index.tolist(), table.to_dict("records"), strict=True):
        try:
            first = lines.setdefault(row["row_id"], number)
            if first != number:
                raise ValueError(f"row_id: stands in line {first} already")
            runs.append(_parse(row, path.stem))
        except ValueError as error:
            problem = InputError(f"{path}: line {number} ({row['row_id'][:60]}): {error}")
            if strict:
                raise problem from None
            left_out.append(str(problem))
    return runs, left_out


def is_measured_table(path: Path) -> bool:
    """Does the file's header belong to a table of measured runs?"""
    return {"row_id", "gpu", "tp", "pp", "dp"} <= set(read_header(path))


def _count(
    row: dict, key: str, default: int | None = None, least: int = 1, most: int | None = None
) -> int:
    text = row.get(key, "")
    if not text:
        if default is None:
            raise ValueError(f"{key} is empty")
        return default
    return values.cell_count(text, key, least, values.LARGEST_COUNT if most is None else most)


def _flag(row: dict, key: str, default: bool = False) -> bool:
    return bool(_count(row, key, int(default), least=0, most=1))


def _choice(row: dict, key: str, allowed: Sequence[str]) -> str:
    if row[key] not in allowed:
        near = meant(row[key], allowed)
        raise ValueError(f"{key}: unknown {shown(row[key])}{near}; known: {listed(allowed)}")
    return row[key]


def _measured(row: dict, key: str) -> float | None:
    """A measurement, None where the field is empty."""
    if not row.get(key, ""):
        return None
    return values.cell_number(
        row[key], key, *MEASURABLE, allowed="a finite number > 0 (1e-6 to 1e9)"
    )


def _noted(row: dict, key: str) -> float | None:
    """A figure that the note gives as `key number`."""
    found = re.search(rf"{key} +([0-9]+(?:\.[0-9]*)?)", row.get("note", ""))
    return values.cell_number(found.group(1), key) if found else None


def _parse(row: dict, dataset: str) -> MeasuredRun:
    n = {key: _count(row, key) for key in COUNTS}
    product = n["tp"] * n["cp"] * n["pp"] * n["dp"]
    if product != n["n_gpus"]:
        raise ValueError(f"tp x cp x pp x dp = {product}, but n_gpus = {n['n_gpus']}")
    per_wave = n["dp"] * n["micro_batch"]
    if n["global_batch"] % per_wave:
        raise ValueError(f"global_batch {n['global_batch']} is no multiple of {per_wave}")
    if n["pp"] > n["layers"]:
        raise ValueError(f"pp: {n['pp']} stages for {n['layers']} layers")
    virtual_stages = _count(row, "interleave", 1)
    if virtual_stages > 1 and n["pp"] == 1:
        raise ValueError(f"interleave: {virtual_stages} chunks of a single stage (pp = 1)")
    if n["heads"] % n["tp"]:
        raise ValueError(f"tp: {n['tp']} does not divide heads {n['heads']}")
    local, split = n["global_batch"] // n["dp"], micro_batches_of_row(row, n["pp"])
    if split is not None and local % split == 0:
        n["micro_batch"] = local // split
    model_fields = ("layers", "hidden", "heads", "kv_heads", "ffn", "ffn_matrices", "vocab")
    # A plain FFN is the GPT family's, whose input and output tables are one.
    tied = n["ffn_matrices"] == 2
    model = ModelConfig(*(n[k] for k in model_fields), tied_embeddings=tied)
    model.check()
    gpu = GPU_ALIASES.get(row["gpu"], row["gpu"])
    if gpu not in GPU_PRESETS:
        near = meant(row["gpu"], GPU_PRESETS)
        raise ValueError(f"gpu: unknown {shown(row['gpu'])}{near}; known: {listed(GPU_PRESETS)}")
    flash = _choice(row, "attention", ("unfused", "flash")) == "flash"
    return MeasuredRun(
        dataset=dataset,
        row_id=values.name(row["row_id"], "row_id"),
        gpu=gpu,
        n_gpus=n["n_gpus"],
        gpus_per_node=n["gpus_per_node"],
        model=model,
        **{k: n[k] for k in ("seq", "tp", "cp", "pp", "dp", "micro_batch", "global_batch")},
        zero_stage=_count(row, "zero_stage", 0, least=0, most=3),
        virtual_stages=virtual_stages,
        recompute=_choice(row, "recompute", tuple(RECOMPUTE)),
        sequence_parallel=_flag(row, "sequence_parallel"),
        flash=flash,
        precision=_choice(row, "precision", PRECISIONS),
        # Megatron's fused kernels count as compiled; they exist for 16 bits only.
        compiled=_flag(row, "compile", row["precision"] != "fp32"),
        async_tp=_flag(row, "async_tp"),
        step_s=_measured(row, "step_s"),
        peak_memory_gib=_measured(row, "peak_memory_gib"),
        state_gib=_noted(row, "param_opt_GiB"),
        activation_gib=_noted(row, "activation_GiB"),
        source=row.get("source", ""),
        note=row.get("note", ""),
        stack=stack_of_row(row),
    )


def _sharding(stack: str) -> dict[str, Any]:
    """Fields of a JobSpec that the stack decides and a row does not print."""
    if stack == POOLED:
        return {}
    fields = STACKS[stack].job_fields
    return {
        key: fields[key] for key in ("reshard", "scatter_each", "reduce_bytes", "balanced_ring")
    }


def _plan(run: MeasuredRun) -> Plan:
    """The run as a plan over one domain (NumPy leaves)."""
    fields = {
        "group": 0,
        "layers": run.model.layers,
        "batch_share": run.global_batch // (run.micro_batch * run.dp),
        "dp": run.dp,
        "micro_batch": run.micro_batch,
        "recompute": RECOMPUTE[run.recompute],
        "schedule": Schedule.ONE_F_ONE_B,
        "tp": run.tp,
        "pp": run.pp,
        "cp": run.cp,
        "zero_stage": run.zero_stage,
    }
    return empty_plan(1).replace(**{k: np.array([v], np.int32) for k, v in fields.items()})


def _cluster(run: MeasuredRun) -> Cluster:
    """One domain as large as the run, on its GPU type's usual network (NumPy leaves)."""
    network = next(v for k, v in NODE_GB_PER_S.items() if run.gpu.startswith(k))
    one = np.ones((1, 1), np.float32)
    leaves: dict[str, Any] = {
        "gpu": jax.tree.map(np.asarray, GPU_PRESETS[run.gpu].to_arrays()),
        "mask": np.array([True]),
        "gpus": np.array([run.n_gpus], np.int32),
        "gpus_per_node": np.array([run.gpus_per_node], np.int32),
        "usd_per_gpu_hour": np.zeros(1, np.float32),
        "intra_gb_per_s": np.float32(network),
        "intra_rtt_s": np.float32(INTRA_RTT_S),
        "bandwidth_gb_per_s": one,
        "rtt_s": 0.0 * one,
        "egress_usd_per_gb": 0.0 * one,
    }
    return Cluster(**leaves)


def run_arrays(runs: Sequence[MeasuredRun]) -> tuple:
    """(plans, works, clusters, views) of the runs, leaves [N, ...]: what `predict_runs` takes."""
    plans = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *[_plan(r) for r in runs])
    clusters = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *[_cluster(r) for r in runs])
    works = build_workload([r.job for r in runs])
    views = NetworkView(clusters.bandwidth_gb_per_s, clusters.rtt_s, clusters.gpus)
    return plans, works, clusters, views


@jax.jit
def predict_runs(arrays: tuple, calibration: Calibration) -> StepCost:
    """StepCost of every run, leaves [N, ...], under one calibration.

    `total_s` is the step time to compare: `step_s` is infinite where the model says that memory
    does not suffice.
    """
    plans, works, clusters, views = arrays
    problems = Problem(works, clusters, calibration)
    # One calibration for all, and one worth of a token.
    alike: Any = problems.replace(work=0, cluster=0, calibration=None, learning=None)
    return jax.vmap(job_step_cost, in_axes=(0, alike, 0))(plans, problems, views)


def published_split_gib(runs: Sequence[MeasuredRun], calibration: Calibration) -> np.ndarray:
    """[N, 2] [GiB] of the layers alone, first stage: state, and activations of all micro-batches in
    flight; what Korthikanti et al. 2022 print (18 B x 12 h^2 a layer; eqs. 2-6)."""
    plans, works, _, _ = run_arrays(runs)
    layers = np.array([r.model.layers / r.pp for r in runs])
    weights = np.array([r.model.layer_params - 2.0 * r.model.hidden for r in runs])  # no norms
    share = weights * layers / np.array([r.tp for r in runs])
    state = share * np.asarray(state_bytes_per_param(plans.zero_stage, plans.dp * plans.cp))[:, 0]
    layer = jax.vmap(layer_memory, (0, None, 0, 0))(works, calibration, plans.tp, plans.cp)
    held = plans.micro_batch.astype(jnp.float32) * layer.held(plans.recompute)
    chunks = np.array([in_flight_chunks(r.pp, r.virtual_stages) for r in runs])
    flying = np.minimum(np.asarray(plans.batch_share)[:, 0], np.array([r.pp for r in runs]))
    activations = np.asarray(held, np.float64)[:, 0] * 1e9 * layers * flying * chunks
    return np.stack([state, activations], axis=1) / GIB
