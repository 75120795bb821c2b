"""Metrics per rank and step: written by every rank, merged by rank 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records import RunWriter, load
from ddp_bench.scheduler import FIT_COLUMNS, cost_fits

FLUSH_ROWS = 200


class Recorder:
    """This rank's table metrics_rank<r>.csv, and TensorBoard scalars on rank 0 if asked for."""

    def __init__(self, folder: Path, rank: int, tensorboard: bool) -> None:
        self._writer = RunWriter(folder, {})  # only tables: run.json belongs to rank 0
        self._table = f"metrics_rank{rank}"
        self._rows: list[dict] = []
        self._board = _board(folder) if tensorboard and rank == 0 else None

    def add(self, row: dict) -> None:
        """One step of one arm."""
        self._rows.append(row)
        if self._board and row["global_loss"] is not None:
            names = ("global_loss", "compute_ms", "step_time_ms", "local_batch")
            self.scalars(row["arm"], row["step"], {f"train/{n}": row[n] for n in names})
        if len(self._rows) >= FLUSH_ROWS:
            self.flush()

    def scalars(self, arm: str, step: int, values: dict[str, float]) -> None:
        """TensorBoard scalars, one run per arm name."""
        if self._board:
            for name, value in values.items():
                self._board.add_scalar(f"{arm}/{name}", value, step)

    def flush(self) -> None:
        """Write what has been added."""
        self._writer.append(self._table, self._rows)
        self._rows = []

    def truncate(self, first: int) -> None:
        """Drop rows of steps >= `first`, which a resumed run repeats."""
        self._writer.truncate(self._table, "step", first)


def _board(folder: Path):
    """A TensorBoard writer, or None where the package is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(folder / "tensorboard")


def merge(folder: Path, ranks: int) -> pd.DataFrame:
    """All ranks' rows, ordered by step, arm and rank."""
    record = load(folder)
    tables = [record.table(f"metrics_rank{rank}") for rank in range(ranks)]
    return pd.concat(tables).sort_values(["step", "arm", "rank"], kind="stable")


def summarise(writer: RunWriter, ranks: int) -> dict:
    """Write merged_metrics.csv and cost_fit.csv; per arm: the slowest rank's compute time, padding,
    and wall time and throughput with their spread over steps."""
    merged = merge(writer.dir, ranks)
    writer.write_table("merged_metrics", merged)
    writer.write_table("cost_fit", pd.DataFrame(cost_fits(merged), columns=FIT_COLUMNS))
    result = {}
    for arm, rows in merged.groupby("arm", sort=False):
        worst = rows.groupby("step")["compute_ms"].max()
        mean = rows.groupby("step")["compute_ms"].mean()
        result[arm] = {
            "max_compute_ms_mean": worst.mean(),
            "max_compute_ms_p95": np.percentile(worst, 95),
            "imbalance": (worst / mean).mean(),
            "padding_waste": 1 - rows["real_tokens"].sum() / rows["padded_tokens"].sum(),
            "schedule_ms_mean": rows["schedule_ms"].mean(),
            **_wall_time(rows),
            "final_loss": rows.groupby("step")["global_loss"].first().tail(20).mean(),
        }
    return result


def _wall_time(rows: pd.DataFrame) -> dict[str, float | None]:
    """Ranks finish a step together: its wall time is their mean, its throughput that of all ranks."""
    steps = rows.groupby("step")
    wall_ms = steps["step_time_ms"].mean()
    rates = {
        "step_time_ms": wall_ms,
        "samples_per_s": 1e3 * steps["local_batch"].sum() / wall_ms,
        "real_tokens_per_s": 1e3 * steps["real_tokens"].sum() / wall_ms,
    }
    result = {}
    for name, values in rates.items():
        result[f"{name}_mean"] = values.mean()
        result[f"{name}_p95"] = np.percentile(values, 95)
        result[f"{name}_std"] = values.std()
    return result
