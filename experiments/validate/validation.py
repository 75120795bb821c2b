"""Predictions beside measured runs: figures of merit, records, a report."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from analysis.records import RunWriter
from analysis.report import write_report
from experiments.calibrate import fit_all, left_out_rows
from experiments.common import check_output, put_result
from experiments.validate.config import ValidateConfig
from jaxsim.calibration import (
    LeftOutRow,
    Machine,
    Measurements,
    Prediction,
    by_distance,
    by_size,
    coverage,
    documented_belief,
    features,
    find_measurements,
    left_out_table,
    merit,
    predict,
    predict_runs,
    predict_sync_s,
    run_arrays,
)
from jaxsim.cluster import (
    GPU_PRESETS,
    POOLED,
    STACKS,
    Calibration,
    MachineFit,
    above_record,
    find_fit,
    load_fits,
    load_left_out,
    shipped_fit,
)
from jaxsim.files import InputError
from jaxsim.workload import build_workload

# Mean absolute errors of step time that others publish or reach on these tables [%].
PEERS: dict[str, dict[str, float]] = {
    "vtrain_single": {"vTrain": 8.4, "calculon": 38.9},
    "vtrain_multi": {"vTrain": 14.7, "calculon": 12.9},
    "megatron_sc21_table1": {"calculon": 10.3},
    "korthikanti": {"calculon": 3.7},
    "sailor": {"Sailor": 8.9},
}
DRAWS = 64  # of the calibration's posterior, for the interval of a prediction


def machine_fits(path: str | None) -> Callable[[str, str], MachineFit]:
    """(GPU type, stack) -> its fit, from a file or as shipped; the documented priors without any."""
    fits = None if path is None else load_fits(path)

    def fit_of(gpu: str, stack: str) -> MachineFit:
        if fits is None:
            found = shipped_fit(gpu, stack)
            return MachineFit(documented_belief(Machine(gpu, stack))) if found is None else found
        found = find_fit(fits, gpu, stack)
        if found is None:
            held = ", ".join(fits)
            raise InputError(f"{path}: calibrations: none for {gpu}; the file has: {held}")
        return found

    return fit_of


def with_stack_of(found: Measurements, path: str | None) -> Measurements:
    """The runs, those that name no stack taken for runs of the one that a calibration file is of: what
    `calibrate --adapt` made of them is what they are tried with."""
    held = set() if path is None else {name.partition("/")[2] for name in load_fits(path)}
    if len(held) != 1 or not (stack := held.pop()):
        return found
    nameless = sum(run.stack == POOLED for run in found.runs)
    if nameless:
        print(f"{nameless} runs name no stack: taken for {stack}, that of {path}", file=sys.stderr)
    runs = [dataclasses.replace(r, stack=stack) if r.stack == POOLED else r for r in found.runs]
    return dataclasses.replace(found, runs=runs)


def run_bands(
    predictions: list[Prediction], fit_of: Callable[[str, str], MachineFit]
) -> tuple[np.ndarray, list[str]]:
    """[N, 2] [s] 90 % band of each step time, from the parameters' uncertainty and the model's error,
    and for each run what of it lies outside the calibrated domain (empty: nothing)."""
    out, outside = np.full((len(predictions), 2), np.nan), [""] * len(predictions)
    for gpu, stack in dict.fromkeys((p.run.gpu, p.run.stack) for p in predictions):
        fit = fit_of(gpu, stack)
        places = [i for i, p in enumerate(predictions) if (p.run.gpu, p.run.stack) == (gpu, stack)]
        arrays = run_arrays([predictions[i].run for i in places])
        draws = fit.belief.samples(DRAWS, seed=0)
        fields = vars(draws)
        each = [type(draws)(**{k: v[d] for k, v in fields.items()}) for d in range(DRAWS)]
        logs = np.log([np.asarray(predict_runs(arrays, c).total_s) for c in each])
        for i, spread in zip(places, logs.std(axis=0), strict=True):
            at = features(predictions[i].run)
            distance = 0.0 if fit.domain is None else fit.domain.distance(at)
            reach = np.exp(fit.band.reach(distance, float(spread)))
            out[i] = predictions[i].step_s / reach, predictions[i].step_s * reach
            far = ["GPU type and stack"] if fit.domain is None else fit.domain.outside(at)
            outside[i] = "; ".join(far)
    return out, outside


def run_rows(predictions: list[Prediction], bounds: np.ndarray, outside: list[str]) -> list[dict]:
    """One row per run for the record; empty where nothing was measured."""
    rows = []
    for p, (low, high), far in zip(predictions, bounds, outside, strict=True):
        run = p.run
        gib = run.peak_memory_gib
        rows.append(
            {
                "dataset": run.dataset,
                "row_id": run.row_id,
                "gpu": run.gpu,
                "stack": run.stack,
                "model": f"{run.model.layers}x{run.model.hidden}",
                **{k: getattr(run, k) for k in ("n_gpus", "tp", "cp", "pp", "dp", "micro_batch")},
                "measured_s": run.step_s,
                "predicted_s": p.step_s,
                "predicted_lo_s": low,
                "predicted_hi_s": high,
                "error_pct": 100 * p.step_error,
                "measured_gib": gib,
                "predicted_gib": p.memory_gib,
                "memory_error_pct": 100 * (p.memory_gib / gib - 1) if gib else None,
                "fits": p.fits,
                "outside": far,
                "record": _above_record(p),
            }
        )
    return rows


def sync_merit(found: Measurements, calibration: Calibration) -> dict[str, dict]:
    """Figures of merit of time in synchronisation, by data set."""
    out = {}
    for name, rows in found.syncs.items():
        errors = np.asarray(predict_sync_s(rows, calibration)) / [r.sync_s for r in rows] - 1
        out[name] = {
            "n": len(rows),
            "mape_pct": float(100 * np.abs(errors).mean()),
            "median_ape_pct": float(100 * np.median(np.abs(errors))),
            "bias_pct": float(100 * errors.mean()),
            "kendall_tau": None,
            "choice_regret_pct": None,
            "memory_mape_pct": None,
            "unfit": None,
        }
    return out


def _above_record(p: Prediction) -> str:
    """What `above_record` says of a predicted run."""
    tflop = float(build_workload([p.run.job]).useful_tflop[0])
    peak = GPU_PRESETS[p.run.gpu].peak_tflops * p.run.n_gpus
    return above_record(tflop / (p.step_s * peak), p.run.gpu, p.run.precision == "float8")


def leave_out(found: Measurements) -> tuple[list[LeftOutRow], list[dict]]:
    """Fit the runs, refit without each group of them; rows as left out, and the table of them."""
    rows = left_out_rows(fit_all(found))
    return rows, left_out_table(rows)


def validate(config: ValidateConfig) -> dict:
    """Predict, compare, record; returns the summary."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    found = find_measurements(config.data, config.strict)
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    fit_of = machine_fits(config.calibration)
    found = with_stack_of(found, config.calibration)
    predictions = predict(found.runs, lambda gpu, stack: fit_of(gpu, stack).belief.calibration())
    bounds, outside = run_bands(predictions, fit_of)
    datasets = {
        name: merit([p for p in predictions if p.run.dataset == name])
        for name in dict.fromkeys(r.dataset for r in found.runs)
    }
    links = found.runs[0] if found.runs else None
    links = ("A100-80GB", POOLED) if links is None else (links.gpu, links.stack)
    datasets.update(sync_merit(found, fit_of(*links).belief.calibration()))
    peers = {name: PEERS[name] for name in datasets if name in PEERS}
    summary = {"datasets": datasets, "peers": peers, "skipped": len(found.left_out)}
    run_table = run_rows(predictions, bounds, outside)
    summary["outside"] = sum(bool(row["outside"]) for row in run_table)
    summary["above_record"] = [row["row_id"] for row in run_table if row["record"]]
    with RunWriter.create("validate", dataclasses.asdict(config), seed=0, out=config.out) as writer:
        writer.append("metrics", run_table)
        if config.leave_one_out:
            left, summary["left_out"] = leave_out(found)
            summary["coverage"] = coverage_row(left)
            summary["bias"] = by_size(left)
            writer.append("left_out", by_distance(left))
        else:
            for key, table in (("left_out", "left_out"), ("bias", "left_out_bias")):
                summary[key] = [
                    row
                    for row in load_left_out(config.calibration, table)
                    if config.data is None or row["dataset"] in (*STACKS, *datasets)
                ]
        writer.finish(summary)
    report = write_report([writer.dir])
    if put_result(summary, config.json):
        print(left_out_text(summary))
        print(merit_table(summary))
        if summary["outside"]:
            print(
                f"{summary['outside']} of {len(run_table)} runs lie outside the calibrated domain"
            )
        for row in run_table:
            if row["record"]:
                print(f"{row['row_id']}: {row['record']}")
        if found.left_out:
            print(f"left out: {len(found.left_out)} rows or files, named on standard error")
        print(f"report: {report}")
    return summary


def coverage_row(rows: list[LeftOutRow]) -> dict:
    """Share of left-out rows that a nominal 90 % band holds, by kind of group and together."""
    kinds = coverage(rows)
    n, inside = sum(c.rows for c in kinds.values()), sum(c.inside for c in kinds.values())
    shares = {kind: 100 * c.share for kind, c in kinds.items()}
    return {"n": n, "all_pct": 100 * inside / max(n, 1), **shares}


def left_out_text(summary: dict) -> str:
    """Errors of left-out groups as text, the closed form's beside them."""
    rows = summary.get("left_out") or []
    if not rows:
        return "No left-out errors are stored for these data; --leave-one-out computes them."
    table = Table(title="Step time of groups that the fit did without")
    names = ("data set or stack", "GPU type", "left out by", "runs", "mean\n%", "bias\n%")
    names += ("in 90 %\nband, %", "memory\n%", "FLOPs / peak x\nconstant, %")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i < 3 else "right")
    keys = ("mape_pct", "bias_pct", "coverage_pct", "memory_mape_pct", "baseline_pct")
    for row in sorted(rows, key=lambda r: (r["dataset"], r["label"], r["kind"])):
        cells = ["-" if row.get(key) is None else f"{row[key]:.1f}" for key in keys]
        table.add_row(row["dataset"], row["label"], row["kind"], str(row["n"]), *cells)
    n = sum(row["n"] for row in rows)
    inside = sum(row["n"] * row["coverage_pct"] for row in rows) / n
    text = (
        f"A nominal 90 % band, made without the runs that it judges, holds {inside:.1f} % of {n} "
        "left-out rows.\n"
    )
    return _rendered(table) + text + bias_text(summary.get("bias") or [])


def bias_text(rows: list[dict]) -> str:
    """Bias of left-out runs by model size and by sequence length, a line for each data set."""
    words = {"hidden": "width", "seq": "length"}
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        value = f"{row['value']:g}: {row['bias_pct']:+.1f} ({row['n']})"
        lines.setdefault((row["dataset"], row["by"]), []).append(value)
    said = [
        f"  {name} by {words[by]}: {', '.join(x)}" for (name, by), x in lines.items() if len(x) > 1
    ]
    return "\n".join(["Bias in % (and left-out rows):", *said]) + "\n" if said else ""


def _rendered(table: Table) -> str:
    console = Console(width=130, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def merit_table(summary: dict) -> str:
    """The figures of merit as text, peers beside them."""
    table = Table(title="Step time predicted against measured")
    for i, name in enumerate(
        (
            "data set",
            "runs",
            "mean\n%",
            "median\n%",
            "bias\n%",
            "Kendall\ntau",
            "choice\nregret %",
            "memory\n%",
            "said not\nto fit",
            "published by others\nmean %",
        )
    ):
        table.add_column(name, justify="left" if i in (0, 9) else "right")
    keys = ("mape_pct", "median_ape_pct", "bias_pct", "kendall_tau", "choice_regret_pct")
    for name, row in summary["datasets"].items():
        cells = ["-" if row[k] is None else f"{row[k]:.2f}" for k in (*keys, "memory_mape_pct")]
        unfit = "-" if row["unfit"] is None else str(row["unfit"])
        peers = ", ".join(f"{k} {v:g}" for k, v in summary["peers"].get(name, {}).items())
        table.add_row(name, str(row["n"]), *cells, unfit, peers)
    return _rendered(table)
