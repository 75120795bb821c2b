"""Small run folders of validations and calibrations, drawn from a seeded generator."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records import RunWriter

# Runs, GPU, measured seconds (least, most), spread and bias of the error, has memory.
DATASETS = {
    "one_node": (240, "A100-80GB", (0.06, 1.6), 0.09, 0.0, False),
    "many_nodes": (53, "A100-80GB", (3.5, 60.0), 0.08, -0.02, False),
    "sharded": (9, "H100-96GB-500W", (1.9, 8.4), 0.03, 0.01, True),
    "small_gh": (15, "GH-96", (0.07, 2.7), 0.06, 0.03, True),
    "lone": (1, "H100-96GB-500W", (2.0, 3.0), 0.05, 0.0, False),
}
SMALL = {name: (min(row[0], 12), *row[1:]) for name, row in DATASETS.items()}
PEERS = {"one_node": {"other_sim": 38.9, "third": 8.4}, "many_nodes": {"other_sim": 1.5}}
MODELS = ("24x1024", "48x8192", "96x12288")
# Unit, what it is, prior, spread of its logarithm, how well identified, value / prior.
PARAMETERS = {
    "gemm_efficiency": ("share", "of peak FLOP/s that a large product reaches", 0.9, 0.05, 0.9, 1),
    "kernel_s": ("s", "start and end of one kernel", 4e-6, 0.5, 0.6, 1.3),
    "launch_s": ("s", "host work per layer", 9e-4, 0.2, 0.4, 0.9),
    "restart_s": ("s", "stop, rebuild | warm up", 11.4, 0.5, 0.0, 1.0),
    "straggler": ("share", "lost per doubling of nodes", 0.01, 1.2, 0.7, 3.0),
    "state_bytes": ("B", "weights, gradients and Adam state", 18.0, 0.15, 0.51, 1.05),
}


def runs(datasets=DATASETS, rng=None):
    """The metrics table of a validation."""
    rng = rng or np.random.default_rng(11)
    frames = []
    for name, (n, gpu, (least, most), spread, bias, memory) in datasets.items():
        measured = np.exp(rng.uniform(np.log(least), np.log(most), n))
        ratio = np.exp(bias + spread * rng.standard_t(4, n))
        gib = rng.uniform(20, 80, n) if memory else np.full(n, np.nan)
        told = gib * np.exp(0.05 * rng.normal(size=n))
        frames.append(
            pd.DataFrame(
                {
                    "dataset": name,
                    "row_id": [f"{name}-{i}" for i in range(n)],
                    "gpu": gpu,
                    "model": [MODELS[i % len(MODELS)] for i in range(n)],
                    "n_gpus": 64,
                    "tp": 8,
                    "cp": 1,
                    "pp": 4,
                    "dp": 2,
                    "micro_batch": 1,
                    "measured_s": measured,
                    "predicted_s": measured * ratio,
                    "predicted_lo_s": measured * ratio * 0.93,
                    "predicted_hi_s": measured * ratio * 1.06,
                    "error_pct": 100 * (ratio - 1),
                    "measured_gib": gib,
                    "predicted_gib": told,
                    "memory_error_pct": 100 * (told / gib - 1),
                }
            )
        )
    table = pd.concat(frames, ignore_index=True)
    extra = table.iloc[-1].to_dict() | {"row_id": "memory-only", "measured_gib": 40.0}
    missing = dict.fromkeys(("measured_s", "error_pct"), np.nan)
    extra |= {**missing, "predicted_gib": 42.0, "memory_error_pct": 5.0}
    return pd.concat([table, pd.DataFrame([extra])], ignore_index=True)


def summaries(table):
    """Figures of merit by data set, as a validation records them."""
    found = {}
    for name, rows in table.groupby("dataset", sort=False):
        errors, memory = rows["error_pct"].dropna(), rows["memory_error_pct"].dropna()
        found[name] = {
            "n": len(errors),
            "mape_pct": errors.abs().mean(),
            "median_ape_pct": errors.abs().median(),
            "bias_pct": errors.mean(),
            "kendall_tau": 0.9 if len(errors) > 1 else None,
            "choice_regret_pct": 0.4,
            "memory_mape_pct": memory.abs().mean() if len(memory) else None,
        }
    return found


def refits(table):
    """Entries of `left_out`: one data set by two kinds of group, and one whole stack."""
    mine = table[table["dataset"] == "many_nodes"]
    one = {"dataset": "many_nodes", "label": mine["gpu"].iloc[0], "n": len(mine)}
    errors = {"mape_pct": 11.0, "bias_pct": -7.5, "coverage_pct": 91.5, "baseline_pct": 30.25}
    by_model = {**one, **errors, "memory_mape_pct": 6.5, "mape_pct": 8.0, "bias_pct": 3.2}
    stack = {"dataset": "megatron-fused", "label": one["label"], "n": 60}
    return [
        {"kind": "stack", **stack, **errors, "memory_mape_pct": None},
        {"kind": "model", **by_model},
        {"kind": "scale", **one, **errors, "memory_mape_pct": None},
    ]


def validate_run(out: Path, datasets=DATASETS, left_out=True, peers=PEERS) -> Path:
    """A finished validation."""
    table = runs(datasets)
    summary = {"datasets": summaries(table), "skipped": 2}
    if left_out:
        summary["left_out"] = refits(table)
    if peers:
        summary["peers"] = peers
    with RunWriter.create("validate", {"data": "measured"}, 0, out) as run:
        run.append("metrics", table.to_dict("records"))
        run.finish(summary)
    return run.dir


def parameters(gpus=("A100-80GB", "H100-96GB-500W"), table=PARAMETERS):
    """The metrics table of a calibration."""
    rows = []
    for g, gpu in enumerate(gpus):
        for name, (unit, about, prior, spread, identified, ratio) in table.items():
            told = max(identified - 0.3 * g, 0.0)
            value, fitted = prior * ratio ** (1 - 0.5 * g), spread * (1 - told)
            rows.append(
                {
                    "gpu": gpu,
                    "parameter": name,
                    "unit": unit,
                    "about": about,
                    "prior": prior,
                    "prior_lo": prior * np.exp(-1.96 * spread),
                    "prior_hi": prior * np.exp(1.96 * spread),
                    "value": value,
                    "lo": value * np.exp(-1.96 * fitted),
                    "hi": value * np.exp(1.96 * fitted),
                    "identified": told,
                    "told_by": "one_node 0.62; profile 0.31" if told else None,
                }
            )
    return pd.DataFrame(rows)


def calibrate_run(out: Path) -> Path:
    """A finished calibration."""
    table = parameters()
    with RunWriter.create("calibrate", {"data": "measured"}, 0, out) as run:
        run.append("metrics", table.to_dict("records"))
        run.finish({"datasets": summaries(runs()), "gpus": list(table["gpu"].unique())})
    return run.dir
