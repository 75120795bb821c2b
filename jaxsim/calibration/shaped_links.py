"""Measured synchronisation over shaped links: DDP, local SGD and DiLoCo between four machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax import Array

from jaxsim.cluster import GBIT_PER_GBYTE, Calibration
from jaxsim.files import InputError
from jaxsim.step_time import ring_rate_gb_per_s

COLUMNS = ("row_id", "algorithm", "H", "world", "bandwidth_gbps", "steps", "params_m")
COLUMNS += ("bytes_per_param", "sync_blocked_s")
ALGORITHMS = ("ddp", "localsgd", "diloco")


@dataclasses.dataclass(frozen=True)
class SyncRun:
    """One training run whose time in synchronisation was measured."""

    row_id: str
    algorithm: str
    sync_period: int
    world: int
    bandwidth_gbps: float
    steps: int
    gb: float  # [GB] gradient or weights of one sync
    sync_s: float  # [s] of the whole run


def is_sync_table(path: Path) -> bool:
    """Does the file's header belong to a table of syncs over shaped links?"""
    with path.open(errors="replace") as lines:
        return set(COLUMNS) <= set(lines.readline().strip().split(","))


def load_sync_runs(path: str | Path, strict: bool = False) -> tuple[list[SyncRun], list[str]]:
    """Load the table; returns the runs and one line per row left out (refused with `strict`)."""
    path = Path(path)
    try:
        table = pd.read_csv(path)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        line = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as a table of syncs: {line}") from None
    missing = [c for c in COLUMNS if c not in table.columns]
    if missing:
        raise InputError(f"{path}: missing column {missing[0]!r}; needed: {', '.join(COLUMNS)}")
    runs, left_out = [], []
    numbers = [c for c in COLUMNS if c not in ("row_id", "algorithm")]
    for line, row in enumerate(table.to_dict("records"), start=2):
        values = pd.to_numeric(pd.Series([row[c] for c in numbers]), errors="coerce").to_numpy()
        bad = [c for c, v in zip(numbers, values, strict=True) if not (np.isfinite(v) and v > 0)]
        if row["algorithm"] not in ALGORITHMS:
            bad.insert(0, "algorithm")
        if bad:
            problem = f"{path}: line {line} ({row['row_id']}): {bad[0]}: {row[bad[0]]!r}"
            if strict:
                raise InputError(problem)
            left_out.append(problem)
            continue
        gb = float(row["params_m"]) * float(row["bytes_per_param"]) / 1e3
        counts = (int(row["H"]), int(row["world"]))
        runs.append(
            SyncRun(
                str(row["row_id"]),
                row["algorithm"],
                *counts,
                float(row["bandwidth_gbps"]),
                int(row["steps"]),
                gb,
                float(row["sync_blocked_s"]),
            )
        )
    return runs, left_out


def predict_sync_s(runs: Sequence[SyncRun], cal: Calibration) -> Array:
    """[N] [s] of all syncs of each run: rounds = floor(steps / H) rings of 2 (n - 1) / n volumes.

    An outer sync moves all weights at once, as the simulator's H > 1 does, whatever H is; plain
    data parallelism sends buckets of gradients.
    """
    outer = jnp.asarray([2 if r.algorithm != "ddp" else 1 for r in runs], jnp.int32)
    bandwidth = jnp.asarray([r.bandwidth_gbps / GBIT_PER_GBYTE for r in runs], jnp.float32)
    volume = jnp.asarray([2 * (r.world - 1) / r.world * r.gb for r in runs], jnp.float32)
    rounds = jnp.asarray([r.steps // r.sync_period for r in runs], jnp.float32)
    ring_s = volume / ring_rate_gb_per_s(bandwidth, outer, cal)
    return rounds * ring_s + cal.sync_fixed_s
