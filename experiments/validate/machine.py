"""Data-parallel steps of a machine beside what the simulator says of them, calibrated without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.records import RunWriter
from analysis.report import write_report
from experiments.calibrate import (
    Bench,
    entry_name,
    fit_machine,
    merits,
    predicted_rows,
    read_bench,
    steps_table,
)
from experiments.common import put_result
from experiments.validate.config import ValidateConfig
from jaxsim.cluster import Calibration, load_fits
from jaxsim.files import InputError, listed


def validate_machine(config: ValidateConfig) -> dict[str, Any]:
    """Predict, compare, record; returns the summary. Raises InputError."""
    if config.calibration is None:
        raise InputError(
            f"calibration: none given, and {config.data} is a microbench: its machine's own is what "
            f"hippo calibrate --data {config.data} --out FILE writes"
        )
    bench = read_bench(str(config.data))
    fits = machine_calibrations(bench, config.calibration)
    rows = predicted_rows(bench, bench.of("ddp"), fits)
    alone = {(step.model, step.ranks): step.seconds for step in bench.of("none")}
    for row in rows:
        free_s = alone[row["model"], row["n_gpus"]]
        row["alone_error_pct"] = 100.0 * (free_s / row["measured_s"] - 1.0)
    summary: dict[str, Any] = {
        "datasets": {bench.name: merits(rows)},
        "peers": {},
        "skipped": 0,
        "steps": rows,
        "alone_mape_pct": float(np.mean([abs(row["alone_error_pct"]) for row in rows])),
    }
    left: list[dict[str, Any]] = []
    if config.leave_one_out:
        left = left_out_rows(bench)
        summary["left_out"] = _left_out_table(left)
    with RunWriter.create("validate", dataclasses.asdict(config), seed=0, out=config.out) as writer:
        writer.append("metrics", rows)
        writer.finish(summary)
    report = write_report([writer.dir])
    if put_result(summary, config.json):
        also = {"measured without\nmessages, %": "alone_error_pct"}
        print(steps_table("Data-parallel steps, none of them fitted", rows, also))
        print(f"A step without messages, as measured, is {summary['alone_mape_pct']:.1f} % off.")
        if left:
            print(steps_table("The same, each model left out of the fit as a whole", left))
        print(f"report: {report}")
    return summary


def machine_calibrations(bench: Bench, path: str) -> dict[int, Calibration]:
    """Number of ranks -> its parameters in a file. Raises InputError where one is missing."""
    fits = load_fits(path)
    missing = [entry_name(n) for n in bench.groups if entry_name(n) not in fits]
    if missing:
        raise InputError(
            f"{path}: calibrations: none for {missing[0]}; the file has: {listed(fits)}"
        )
    return {n: fits[entry_name(n)].belief.calibration() for n in bench.groups}


def left_out_rows(bench: Bench) -> list[dict[str, Any]]:
    """Data-parallel steps of every model, predicted by a fit to all that was measured of the others."""
    rows = []
    for model in dict.fromkeys(step.model for step in bench.of("ddp")):
        fits = {n: fit.calibration() for n, fit in fit_machine(bench.without(model)).items()}
        steps = [step for step in bench.of("ddp") if step.model == model]
        rows += predicted_rows(bench, steps, fits)
    return rows


def _left_out_table(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each number of ranks, as of every validation."""
    table = []
    for label in dict.fromkeys(row["gpu"] for row in rows):
        worth = merits([row for row in rows if row["gpu"] == label])
        of = {"kind": "model", "dataset": rows[0]["dataset"], "label": label}
        kept = {key: worth[key] for key in ("n", "mape_pct", "bias_pct")}
        table.append({**of, **kept, "coverage_pct": None})
    return table
