"""Made-up measured runs: rows of a table, and what the simulator would have measured."""

import csv
import dataclasses
import itertools

import numpy as np

from jaxsim.calibration.measured import GIB, MeasuredRun, predict_runs, run_arrays
from jaxsim.workload.workload import ModelConfig

ROW = {
    "row_id": "r-0",
    "gpu": "A100-80GB",
    "n_gpus": 16,
    "gpus_per_node": 8,
    "layers": 24,
    "hidden": 2048,
    "heads": 16,
    "kv_heads": 16,
    "ffn": 8192,
    "ffn_matrices": 2,
    "vocab": 51200,
    "seq": 2048,
    "tp": 4,
    "cp": 1,
    "pp": 2,
    "dp": 2,
    "zero_stage": 1,
    "interleave": 1,
    "micro_batch": 2,
    "global_batch": 64,
    "recompute": "none",
    "sequence_parallel": 1,
    "attention": "flash",
    "precision": "bf16",
    "compile": "",
    "async_tp": "",
    "step_s": 1.5,
    "peak_memory_gib": 30.0,
    "source": "made up",
    "note": "",
}


def write_runs(path, *changes):
    """A table with one row for each mapping of changes to ROW; a key that maps to None is left out
    of the header."""
    columns = [k for k in ROW if not any(k in c and c[k] is None for c in changes)]
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        for i, change in enumerate(changes):
            row = {**ROW, "row_id": f"r-{i}", **change}
            table.writerow({k: row[k] for k in columns})
    return path


def made_run(**changes):
    """A MeasuredRun like ROW, with changes to its fields."""
    values = {
        "dataset": "made",
        "row_id": "r",
        "gpu": "A100-80GB",
        "n_gpus": 16,
        "gpus_per_node": 8,
        "model": ModelConfig(24, 2048, 16, 16, 8192, 2, 51200, True),
        "seq": 2048,
        "tp": 4,
        "cp": 1,
        "pp": 2,
        "dp": 2,
        "zero_stage": 1,
        "virtual_stages": 1,
        "micro_batch": 2,
        "global_batch": 64,
        "recompute": "none",
        "sequence_parallel": True,
        "flash": True,
        "precision": "bf16",
        "compiled": True,
        "async_tp": False,
        "step_s": 1.5,
        "peak_memory_gib": 30.0,
        "state_gib": None,
        "activation_gib": None,
        "source": "made up",
        "note": "",
    }
    return MeasuredRun(**{**values, **changes})


def varied_runs():
    """54 runs: two models, three splits of 16 GPUs, micro-batches, recomputation, attention."""
    models = (
        ModelConfig(24, 2048, 16, 16, 8192, 2, 51200, True),
        ModelConfig(32, 4096, 32, 32, 16384, 2, 51200, True),
    )
    splits = ((1, 2, 8), (4, 2, 2), (8, 1, 2))
    settings = (("none", True, 2), ("none", False, 1), ("full", False, 2), ("none", True, 8))
    settings += (("selective", True, 2), ("full", True, 1), ("none", True, 1))
    settings += (("none", False, 4), ("selective", False, 1))
    return [
        made_run(
            row_id=f"r-{i}",
            model=model,
            tp=tp,
            pp=pp,
            dp=dp,
            recompute=recompute,
            flash=flash,
            sequence_parallel=flash,
            micro_batch=b,
            global_batch=b * dp * (8 if i % 2 else 32),
        )
        for i, (model, (tp, pp, dp), (recompute, flash, b)) in enumerate(
            itertools.product(models, splits, settings)
        )
    ]


def measure(runs, calibration, rng=None, step_noise=0.0, memory_noise=0.0):
    """The runs with what the simulator says under `calibration`, times lognormal noise."""
    cost = predict_runs(run_arrays(runs), calibration)
    steps = np.asarray(cost.total_s, np.float64)
    memory = np.asarray(cost.memory_gb, np.float64)[:, 0] * 1e9 / GIB
    if rng is not None:
        steps = steps * np.exp(step_noise * rng.normal(size=len(runs)))
        memory = memory * np.exp(memory_noise * rng.normal(size=len(runs)))
    return [
        dataclasses.replace(r, step_s=float(s), peak_memory_gib=float(m))
        for r, s, m in zip(runs, steps, memory, strict=True)
    ]
