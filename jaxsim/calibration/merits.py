"""Figures of merit of groups left out: the table that a calibration file keeps beside its fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jaxsim.calibration.bands import STACK, GroupKey, bands_without, group_of, is_inside
from jaxsim.calibration.left_out import LeftOutRow
from jaxsim.cluster import Band


def left_out_table(rows: Sequence[LeftOutRow]) -> list[dict]:
    """One row per data set (or stack), GPU type and kind of group.

    kind, dataset, label (GPU type), n; mape_pct, bias_pct: of step times left out; memory_mape_pct;
    coverage_pct: of nominal 90 % bands, each from other runs than it judges; baseline_pct: mean
    absolute error of model FLOPs / peak x one utilisation, the median of those kept runs that are of
    the same data set and architecture (else of the same GPU type, else of all).
    """
    bands = bands_without(rows)
    keys: dict[tuple, list[LeftOutRow]] = {}
    for row in rows:
        name = row.name if row.kind == STACK else row.run.dataset
        keys.setdefault((row.kind, name, row.machine.gpu), []).append(row)
    return [
        {
            "kind": kind,
            "dataset": name,
            "label": gpu,
            **_merit(mine, bands),
        }
        for (kind, name, gpu), mine in keys.items()
        if any(np.isfinite(r.step) for r in mine)
    ]


def by_size(rows: Sequence[LeftOutRow]) -> list[dict]:
    """Bias of left-out runs by model size and by sequence length, for each data set."""
    found: dict[tuple, list[float]] = {}
    for row in rows:
        if row.kind == STACK or not np.isfinite(row.step):
            continue
        name, error = row.run.dataset, np.expm1(row.step)
        found.setdefault((name, "hidden", row.run.model.hidden), []).append(error)
        found.setdefault((name, "seq", row.run.seq), []).append(error)
    return [
        {
            "dataset": name,
            "by": by,
            "value": value,
            "n": len(x),
            "bias_pct": 100 * float(np.mean(x)),
        }
        for (name, by, value), x in sorted(found.items())
    ]


def by_distance(rows: Sequence[LeftOutRow]) -> list[dict]:
    """Every left-out run: its distance from the calibrated domain [doublings] and error [%]."""
    return [
        {
            "kind": r.kind,
            "dataset": r.run.dataset,
            "row_id": r.run.row_id,
            "distance": r.distance,
            "error_pct": 100 * float(np.expm1(r.step)),
        }
        for r in rows
        if np.isfinite(r.step)
    ]


def _merit(rows: Sequence[LeftOutRow], bands: Mapping[GroupKey, Band]) -> dict:
    timed = [(r, bands[group_of(r)]) for r in rows if np.isfinite(r.step)]
    error = np.expm1([r.step for r, _ in timed])
    base = np.expm1([r.baseline for r, _ in timed])
    memory = np.array([r.memory for r in rows])
    memory = np.abs(np.expm1(memory[np.isfinite(memory)]))
    inside = [is_inside(r, b) for r, b in timed]
    return {
        "n": len(timed),
        "mape_pct": 100 * float(np.abs(error).mean()),
        "bias_pct": 100 * float(error.mean()),
        "memory_mape_pct": 100 * float(memory.mean()) if len(memory) else None,
        "coverage_pct": 100 * float(np.mean(inside)),
        "baseline_pct": 100 * float(np.abs(base).mean()),
    }
