"""Profiles of operators, layers and collectives: what fixes parameters before any step is fitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from jaxsim.cluster import GPU_PRESETS, Calibration
from jaxsim.files import InputError, listed, numbers, one_line, read_json, read_text_table, values
from jaxsim.plan import Recompute
from jaxsim.step_time import gemm_alone_s, layer_time
from jaxsim.workload import JobSpec, ModelConfig, build_workload

# Which GPU a public profile was taken on, by what its file name contains.
GPU_OF_FILE = {
    "h100": "H100-80GB",
    "a100": "A100-80GB",
    "a100-40": "A100-40GB",
    "gh-96": "GH200-96GB",
}
# Vidur's A100 is the PCIe card (300 W): its level is not that of an SXM node, its shape is.
PCIE_PROFILE = "ops_a100"
# Pairs of PCIe cards bridged by NVLink say nothing about an NVSwitch node.
NOT_A_NODE = "pairwise"
KIND = "a profile"
SHORTEST_S = 1e-9  # of a measured time; a zero is none
OPERATOR_COLUMNS = {"ms_attn_pre_proj", "ms_mlp_up_proj", "num_tokens"}
# OPT-350M, whose layers Sailor's GH200 profile holds (SOSP 2025); trained in fp32.
PROFILED_MODELS = {
    "OPT-350": (ModelConfig(24, 1024, 16, 16, 4096, 2, 50272, True), 2048),
}


class UnknownModel(Exception):
    """A layer profile of a model whose shape is not known; one line that names the file."""


class Profile(NamedTuple):
    """Measured seconds beside a function that predicts them."""

    name: str
    gpu: str
    kind: str  # operators, collectives or layers
    measured_s: np.ndarray  # [N]
    predict: Callable[[Calibration], Array]  # -> [N] [s]
    shape_only: bool = False  # the card's clock differs: only ratios between rows carry over


def load_profile(path: str | Path) -> Profile | None:
    """Load one profile, whose kind its content says; None for a file of another kind or GPU.

    Raises InputError that names a file that cannot be read, and UnknownModel.
    """
    path = Path(path)
    gpus = [g for key, g in GPU_OF_FILE.items() if key in path.name.lower()]
    if not gpus or NOT_A_NODE in path.name:
        return None
    try:
        if path.suffix == ".json":
            return _layers(path, gpus[-1])
        if ".csv" in path.name:
            table = read_text_table(path, KIND)
            if set(table.columns) >= OPERATOR_COLUMNS:
                return _operators(path, gpus[-1], table)
            if "collective" in table or "coll" in table:
                return _collectives(path, gpus[-1], table)
    except (ValueError, LookupError, AttributeError, TypeError) as error:
        if str(error).startswith(f"{path}: "):
            raise  # it is named already
        raise InputError(f"{path}: cannot be read as {KIND}: {error}") from None
    return None


def _column(table: pd.DataFrame, name: str, path: Path, above: float | None = None) -> np.ndarray:
    """A column as numbers >= 0, or > `above`; InputError names the line."""
    if name not in table:
        raise ValueError(f"missing column {name!r}")
    return numbers(table[name], path, above)


def _some(rows: np.ndarray) -> np.ndarray:
    if not len(rows):
        raise ValueError("it holds no row that a fit can use")
    return rows


def _operators(path: Path, gpu: str, table: pd.DataFrame) -> Profile:
    """Matrix products of one layer by tokens and tensor parallelism (Vidur, MLSys 2024)."""
    counts = ("num_tensor_parallel_workers", "num_tokens", "n_embd", "n_expanded_embd")
    tp, tokens, h, ffn, kv_heads, heads = (
        _column(table, name, path, 0.0) for name in (*counts, "n_kv_head", "n_head")
    )
    gates = 1.0 + (table.use_gated_mlp == "True").to_numpy()
    columns = {
        "ms_attn_pre_proj": ((h + 2 * h * kv_heads / heads) / tp, h),
        "ms_attn_post_proj": (h, h / tp),
        "ms_mlp_up_proj": (gates * ffn / tp, h),
        "ms_mlp_down_proj": (h, ffn / tp),
    }
    rows = np.concatenate(
        [
            np.stack([tokens, n, k, _column(table, c, path)], 1).astype(np.float32)
            for c, (n, k) in columns.items()
        ]
    )
    # Shapes below a hundred tokens are decoding, not training.
    rows = _some(rows[(rows[:, 3] > SHORTEST_S) & (rows[:, 0] >= 256)][::7])
    m, n, k = (jnp.asarray(rows[:, i]) for i in range(3))
    arrays = GPU_PRESETS[gpu].to_arrays()

    def predict(cal: Calibration) -> Array:
        return gemm_alone_s(arrays, cal, m, n, k)

    return Profile(
        path.stem, gpu, "operators", rows[:, 3] / 1e3, predict, PCIE_PROFILE in path.name
    )


def _collectives(path: Path, gpu: str, table: pd.DataFrame) -> Profile:
    """All-reduces inside one node: nccl-tests logs, or Vidur's table."""
    if "coll" in table:
        one = table[(table.coll == "all_reduce_perf") & table.log.str.contains("_N1_")]
        names, unit = ("ranks", "bytes", "time_us"), 1e6
    else:
        large = _column(table, "size", path) >= 1e6
        one = table[(table.collective == "all_reduce") & large]
        names, unit = ("num_workers", "size", "ms_median"), 1e3
    ranks, size, time = (_column(one, name, path, 0.0) for name in names)
    rows = np.stack([ranks, size, time / unit], 1).astype(np.float32)
    rows = _some(rows[rows[:, 0] > 1][:: max(1, len(rows) // 300)])
    if (rows[:, 2] < SHORTEST_S).any():
        raise ValueError(f"{names[2]}: expected times of at least {SHORTEST_S:g} s")
    n, gb = jnp.asarray(rows[:, 0]), jnp.asarray(rows[:, 1]) / 1e9
    nvlink = GPU_PRESETS[gpu].nvlink_gb_per_s

    def predict(cal: Calibration) -> Array:
        rate = nvlink * cal.nvlink_efficiency
        return cal.collective_alpha_s * jnp.log2(n) + 2.0 * (n - 1.0) / n * gb / rate

    return Profile(path.stem, gpu, "collectives", rows[:, 2], predict)


def _holds_layers(path: Path) -> bool:
    """Is the file laid out as a layer profile: micro-batch -> tensor parallelism -> layer -> times?"""
    try:
        micro_batches = read_json(path, KIND)
        slices = next(iter(micro_batches.values()))
        times = next(iter(next(iter(slices.values())).values()))
    except (ValueError, AttributeError, StopIteration):
        return False
    return all(key.isdigit() for key in (*micro_batches, *slices)) and isinstance(times, list)


def _layers(path: Path, gpu: str) -> Profile | None:
    """Forward and backward of a middle layer by micro-batch and tensor parallelism (Sailor)."""
    known = [m for m in PROFILED_MODELS if m in path.name]
    if not known:
        if _holds_layers(path):
            line = f"{path}: a layer profile of an unknown model; known: {listed(PROFILED_MODELS)}"
            raise UnknownModel(one_line(line))
        return None
    model, seq = PROFILED_MODELS[known[0]]
    rows = []
    for micro_batch, by_tp in read_json(path, KIND).items():
        for tp, layers in by_tp.items():
            where = f"{micro_batch[:20]}.{tp[:20]}"
            forward_s, backward_s, _ = layers[str(len(layers) // 2)]
            sizes = (values.cell_count(text, where) for text in (micro_batch, tp))
            times = (values.number(x, where, SHORTEST_S, 1e6) for x in (forward_s, backward_s))
            rows.append((*sizes, *times))
    table = _some(np.array([r for r in rows if r[0] <= 32], np.float32))
    job = JobSpec(
        model,
        1,
        seq,
        causal_flops=False,
        flash_attention=False,
        precision="fp32",
        sequence_parallel=False,
    )
    work = build_workload([job]).job(0)
    micro_batch, tp = (jnp.asarray(table[:, i], jnp.int32) for i in (0, 1))
    arrays = GPU_PRESETS[gpu].to_arrays()
    n = tp.astype(jnp.float32)
    volume = work.boundary_gb * micro_batch.astype(jnp.float32)

    def predict(cal: Calibration) -> Array:
        rate = arrays.nvlink_gb_per_s * cal.nvlink_efficiency
        reduce_s = cal.collective_alpha_s * jnp.log2(n) + 2.0 * (n - 1.0) / n * volume / rate
        mode = jnp.full_like(tp, int(Recompute.NONE))
        args = (micro_batch, mode, tp, jnp.ones_like(tp), reduce_s)
        layer = layer_time(work, arrays, cal, *args)
        busy = layer.forward_s + layer.backward_s + layer.tensor_s
        return busy

    return Profile(path.stem, gpu, "layers", table[:, 2] + table[:, 3], predict)
