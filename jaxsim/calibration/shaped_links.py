"""Measured synchronisation over shaped links: DDP, local SGD and DiLoCo between four machines."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsim.cluster import GBIT_PER_GBYTE, Calibration
from jaxsim.files import InputError, listed, read_header, read_text_table, values
from jaxsim.step_time import ring_rate_gb_per_s

COLUMNS = ("row_id", "algorithm", "H", "world", "bandwidth_gbps", "steps", "params_m")
COLUMNS += ("bytes_per_param", "sync_blocked_s")
SMALLEST = 1e-6  # of any figure of a row
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
    return set(COLUMNS) <= set(read_header(path))


def load_sync_runs(path: str | Path, strict: bool = False) -> tuple[list[SyncRun], list[str]]:
    """Load the table; returns the runs and one line per row left out (refused with `strict`)."""
    table = read_text_table(path, "a table of syncs", None)
    for column in COLUMNS:
        if column not in table.columns:
            raise InputError(f"{path}: missing column {column!r}; needed: {listed(COLUMNS)}")
    runs, left_out = [], []
    for line, row in zip(table.index.tolist(), table.to_dict("records"), strict=True):
        try:
            runs.append(_run(row))
        except InputError as error:
            problem = InputError(f"{path}: line {line} ({row['row_id'][:60]}): {error}")
            if strict:
                raise problem from None
            left_out.append(str(problem))
    return runs, left_out


def _run(row: dict[str, str]) -> SyncRun:
    algorithm = values.choice(row["algorithm"], "algorithm", ALGORITHMS)

    def positive(key: str) -> float:
        return values.cell_number(row[key], key, SMALLEST, allowed="a number > 0 (1e-6 to 1e12)")

    return SyncRun(
        values.name(row["row_id"], "row_id"),
        algorithm,
        values.cell_count(row["H"], "H"),
        values.cell_count(row["world"], "world", low=2),
        positive("bandwidth_gbps"),
        values.cell_count(row["steps"], "steps"),
        positive("params_m") * positive("bytes_per_param") / 1e3,
        positive("sync_blocked_s"),
    )


def predict_sync_s(runs: Sequence[SyncRun], cal: Calibration) -> Float[Array, " N"]:
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
