"""Predictions beside measured runs: figures of merit, records, a report."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from analysis.records import RunWriter
from analysis.report import write_report
from experiments.calibrate import profiles_for
from experiments.common import check_output, put_result
from experiments.validate.config import ValidateConfig
from jaxsim.calibration import (
    Measurements,
    Prediction,
    find_measurements,
    fit_in_stages,
    leave_out_plans,
    merit,
    predict,
    predict_runs,
    predict_sync_s,
    prior_belief,
    run_arrays,
)
from jaxsim.cluster import (
    Belief,
    Calibration,
    load_beliefs,
    load_calibration,
    prior_calibration,
    shipped_belief,
)

# Mean absolute errors of step time that others publish or reach on these tables [%].
PEERS: dict[str, dict[str, float]] = {
    "vtrain_single": {"vTrain": 8.4, "calculon": 38.9},
    "vtrain_multi": {"vTrain": 14.7, "calculon": 12.9},
    "megatron_sc21_table1": {"calculon": 10.3},
    "korthikanti": {"calculon": 3.7},
    "sailor": {"Sailor": 8.9},
}
DRAWS = 64  # of the calibration's posterior, for the interval of a prediction


def calibrations(path: str | None) -> Callable[[str], Calibration]:
    """GPU type -> calibration, from a file or as shipped."""
    if path is not None:
        return lambda gpu: load_calibration(path, gpu)

    def shipped(gpu: str) -> Calibration:
        belief = shipped_belief(gpu)
        return prior_calibration() if belief is None else belief.calibration()

    return shipped


def intervals(
    predictions: list[Prediction], belief_of: Callable[[str], Belief | None]
) -> np.ndarray:
    """[N, 2] [s] 95 % interval of each step time from the calibration's uncertainty, NaN if none."""
    out = np.full((len(predictions), 2), np.nan)
    for gpu in dict.fromkeys(p.run.gpu for p in predictions):
        belief = belief_of(gpu)
        if belief is None:
            continue
        places = [i for i, p in enumerate(predictions) if p.run.gpu == gpu]
        arrays = run_arrays([predictions[i].run for i in places])
        draws = belief.samples(DRAWS, seed=0)
        fields = vars(draws)
        each = [type(draws)(**{k: v[d] for k, v in fields.items()}) for d in range(DRAWS)]
        steps = np.stack([np.asarray(predict_runs(arrays, c).total_s) for c in each])
        out[places] = np.quantile(steps, [0.025, 0.975], axis=0).T
    return out


def run_rows(predictions: list[Prediction], bounds: np.ndarray) -> list[dict]:
    """One row per run for the record; empty where nothing was measured."""
    rows = []
    for p, (low, high) in zip(predictions, bounds, strict=True):
        run = p.run
        gib = run.peak_memory_gib
        rows.append(
            {
                "dataset": run.dataset,
                "row_id": run.row_id,
                "gpu": run.gpu,
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


def leave_out(found: Measurements) -> list[dict]:
    """Refit without some runs, try on them; one row per refit."""
    rows = []
    plans = leave_out_plans(found.runs)
    for plan in tqdm(plans, desc="leave out", unit="refit"):
        gpu = plan.held[0].gpu
        near = profiles_for(gpu, found.profiles)
        fit = fit_in_stages(plan.rest, near, (), prior_belief(gpu))
        got = merit(predict(plan.held, lambda _, fit=fit: fit.calibration))
        rows.append(
            {
                "kind": plan.kind,
                "dataset": plan.dataset,
                "label": plan.label,
                **{k: got[k] for k in ("n", "mape_pct", "bias_pct")},
            }
        )
    return rows


def validate(config: ValidateConfig) -> dict:
    """Predict, compare, record; returns the summary."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    found = find_measurements(config.data, config.strict)
    for line in found.left_out:
        print(f"left out: {line}", file=sys.stderr)
    calibration_of = calibrations(config.calibration)
    beliefs = None if config.calibration is None else load_beliefs(config.calibration)
    predictions = predict(found.runs, calibration_of)
    bounds = intervals(predictions, shipped_belief if beliefs is None else beliefs.get)
    datasets = {
        name: merit([p for p in predictions if p.run.dataset == name])
        for name in dict.fromkeys(r.dataset for r in found.runs)
    }
    gpus = [*dict.fromkeys(r.gpu for r in found.runs), "A100-80GB"]
    datasets.update(sync_merit(found, calibration_of(gpus[0])))
    peers = {name: PEERS[name] for name in datasets if name in PEERS}
    summary = {"datasets": datasets, "peers": peers, "skipped": len(found.left_out)}
    with RunWriter.create("validate", dataclasses.asdict(config), seed=0, out=config.out) as writer:
        writer.append("metrics", run_rows(predictions, bounds))
        if config.leave_one_out:
            summary["left_out"] = leave_out(found)
        writer.finish(summary)
    report = write_report([writer.dir])
    if put_result(summary, config.json):
        print(merit_table(summary))
        if found.left_out:
            print(f"left out: {len(found.left_out)} rows or files, named on standard error")
        print(f"report: {report}")
    return summary


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
    for row in summary.get("left_out", []):
        error = "-" if row["mape_pct"] is None else f"{row['mape_pct']:.2f}"
        table.add_row(f"without {row['dataset']}: {row['label']}", str(row["n"]), error)
    console = Console(width=130, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
