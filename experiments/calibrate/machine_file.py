"""Fit a machine to its own measurements, write the calibration file and the record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from analysis.records import RunWriter
from experiments.calibrate.config import CalibrateConfig
from experiments.calibrate.machine import Fit, entry_name, fit_machine, predict
from experiments.calibrate.microbench import Bench, Step, read_bench
from experiments.common import as_text, put_result, write_text
from jaxsim.cluster import PRIORS, Calibration, load_fits, prior_belief
from jaxsim.files import InputError, dump_yaml

HEADER = """\
# Efficiency parameters of a machine whose ranks stand for GPUs, fitted by `hippo calibrate` to what
# `hippo microbench` measured of it: kernels, sums, steps of ranks that say nothing to each other and
# steps beside a message; no step of data parallelism. An entry for each number of ranks.
"""
HELD_SPREAD = 1e-6  # of a parameter that was not fitted
Z95 = 1.959964


def calibrate_machine(config: CalibrateConfig, target: Path) -> None:
    """Fit, write the calibration file and the record. Raises InputError."""
    for option in ("gpu", "adapt", "base"):
        if getattr(config, option) is not None:
            raise InputError(f"{option}: goes with measured runs; {config.data} is a microbench")
    bench = read_bench(config.data)
    with RunWriter.create("calibrate", dataclasses.asdict(config), 0, out=config.run) as writer:
        fits = fit_machine(bench)
        entries = {entry_name(n): _entry(bench, fit) for n, fit in fits.items()}
        body = dump_yaml({"calibrations": entries}, default_flow_style=None, width=100)
        write_text(target, HEADER + body, load_fits)
        steps = [step for step in bench.of("none") if step.ranks in fits]
        rows = predicted_rows(bench, steps, {n: fit.calibration() for n, fit in fits.items()})
        summary = {
            "gpus": list(entries),
            "datasets": {bench.name: merits(rows)},
            "skipped": 0,
            "sheet": dataclasses.asdict(bench.sheet),
            "steps": rows,
        }
        writer.append("metrics", _parameter_rows(bench, fits))
        writer.finish(summary)
    if put_result(summary, config.json):
        print(_sheet(bench))
        print(steps_table("Steps of ranks that say nothing to each other, fitted", rows))
        print(f"{config.out}: {', '.join(entries)}; record: {writer.dir}")


def predicted_rows(
    bench: Bench, steps: Sequence[Step], fits: Mapping[int, Calibration]
) -> list[dict[str, Any]]:
    """Predicted beside measured, a row for each step, in the columns of a validation."""
    return [
        {
            "dataset": bench.name,
            "row_id": f"{step.model}-{step.ranks}",
            "gpu": entry_name(step.ranks),
            "stack": None,
            "model": step.model,
            **{"n_gpus": step.ranks, "tp": 1, "cp": 1, "pp": 1, "dp": step.ranks},
            "micro_batch": bench.rows,
            "measured_s": step.seconds,
            "measured_lo_s": step.interval[0],
            "measured_hi_s": step.interval[1],
            "predicted_s": float(told),
            **dict.fromkeys(("predicted_lo_s", "predicted_hi_s", "measured_gib", "predicted_gib")),
            "memory_error_pct": None,
            "error_pct": 100.0 * (float(told) / step.seconds - 1.0),
        }
        for step, told in zip(steps, predict(bench, steps, fits), strict=True)
    ]


def merits(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of merit of a data set; null is what was not measured."""
    errors = np.array([row["error_pct"] for row in rows])
    gone = ("kendall_tau", "choice_regret_pct", "memory_mape_pct", "unfit")
    return {
        "n": len(rows),
        "mape_pct": float(np.abs(errors).mean()),
        "median_ape_pct": float(np.median(np.abs(errors))),
        "bias_pct": float(errors.mean()),
        **dict.fromkeys(gone),
    }


def steps_table(
    title: str, rows: Sequence[Mapping[str, Any]], also: Mapping[str, str] | None = None
) -> str:
    """Steps measured and predicted as text; `also`: head of a further column -> its key [%]."""
    table, also = Table(title=title), also or {}
    names = ("model", "ranks", "measured\nms", "95 % interval\nms", "predicted\nms", "error\n%")
    for i, name in enumerate((*names, *also)):
        table.add_column(name, justify="right" if i else "left")
    for row in rows:
        measured, low, high, told = (
            f"{1e3 * row[key]:.1f}"
            for key in ("measured_s", "measured_lo_s", "measured_hi_s", "predicted_s")
        )
        shares = (f"{row[key]:+.1f}" for key in ("error_pct", *also.values()))
        line = (row["model"], str(row["n_gpus"]), measured, f"{low} to {high}", told)
        table.add_row(*line, *shares)
    worth = merits(rows)
    words = f"mean error {worth['mape_pct']:.1f} %, bias {worth['bias_pct']:+.1f} %"
    return as_text(table) + words + "\n"


def _sheet(bench: Bench) -> str:
    sheet = bench.sheet
    return (
        f"{bench.name}: {bench.cores} cores; best product {1e3 * sheet.peak_tflops:.4g} GFLOP/s, copy "
        f"{sheet.memory_gb_per_s:.4g} GB/s, sum {sheet.nvlink_gb_per_s:.4g} GB/s"
    )


def _entry(bench: Bench, fit: Fit) -> dict[str, Any]:
    figures = {
        name: {"value": float(value), "spread": float(fit.spread.get(name, HELD_SPREAD))}
        for name, value in fit.values.items()
    }
    return {"fitted_on": [bench.name], "parameters": figures}


def _parameter_rows(bench: Bench, fits: Mapping[int, Fit]) -> list[dict[str, Any]]:
    """One row for each number of ranks and parameter, as of every calibration."""
    before, rows = prior_belief(), []
    for n, fit in fits.items():
        for name, value in fit.values.items():
            prior, spread = PRIORS[name], fit.spread.get(name, 0.0)
            free = prior.to_free(value)
            low, high = (prior.from_free(free + sign * Z95 * spread) for sign in (-1.0, 1.0))
            documented = before.interval(name)
            known = 1.0 - spread / prior.spread if name in fit.spread else 0.0
            rows.append(
                {
                    "gpu": entry_name(n),
                    "parameter": name,
                    "unit": prior.unit,
                    "about": prior.about,
                    "prior": prior.value,
                    "prior_lo": documented[0],
                    "prior_hi": documented[1],
                    "value": value,
                    "lo": low,
                    "hi": high,
                    "identified": max(known, 0.0),
                    "told_by": bench.name,
                }
            )
    return rows
