"""Small run folders: key figures, suites, sweeps, plans, training over emulated networks."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.figures import (
    EFFECT_COLUMNS,
    EFFICIENCY_COLUMNS,
    KPI_COLUMNS,
    SCENE_COLUMNS,
    WAN_COLUMNS,
)
from analysis.records import RunWriter

FRONT = ("plans_scored", "plans_in_family", "front_size", "hypervolume_ratio")
PARTS = ("compute", "sync", "bubble")


def written(kind: str, out: Path, tables: dict, summary: dict, **config) -> Path:
    """A finished run of these tables."""
    with RunWriter.create(kind, config, 0, out) as run:
        for name, table in tables.items():
            run.write_table(name, table)
        run.finish(summary)
    return run.dir


def kpi_run(out: Path) -> Path:
    """Two schedulers, both settings, one row on the front of plans."""
    rows = [
        ("training time", None, "best_static", 30.0, 26.0, 34.0, 25.0, "%", 40.0, "pass"),
        ("training time", None, "single_domain", 20.0, 16.0, 24.0, 25.0, "%", 22.0, "out_of_reach"),
        ("Pareto coverage", None, "front of plans", 91.0, 89.0, 93.0, 90.0, "%", 100.0, "pass"),
        ("decision latency", "upper", None, 2.0, 1.0, 3.0, 1000.0, "ms", np.nan, "pass"),
        ("WAN cost", "GB", "zero", np.nan, np.nan, np.nan, 30.0, "%", np.nan, "fail"),
    ]
    front = [(np.nan,) * 4, (np.nan,) * 4, (1234.0, 9876.0, 7.0, 0.93)] + [(np.nan,) * 4] * 2
    body = [
        (setting, name, *row, *extra)
        for setting in ("synchronous", "any")
        for name in ("hi_ppo", "hysteresis")
        for row, extra in zip(rows, front, strict=True)
    ]
    table = pd.DataFrame(body, columns=["setting", *KPI_COLUMNS, *FRONT])
    return written("kpi", out, {"kpis": table}, {"policy": "hi_ppo"}, seeds=8)


def suite_run(out: Path) -> Path:
    """Three scenes, one of many jobs."""
    rows = [
        ("calm", "clairvoyant", 0.0, 0.0, 0.0, 0.0, 1.0, 8, np.nan),
        ("calm", "hysteresis", 5.0, 4.0, 3.0, 6.0, 5.0, 8, np.nan),
        ("storm", "hi_ppo", 3.0, 2.0, 1.0, 3.0, 5.0, 8, np.nan),
        ("storm", "hysteresis", 9.0, 8.0, 7.0, 9.0, 9.0, 8, np.nan),
        ("queue", "hysteresis", np.nan, np.nan, np.nan, np.nan, np.nan, 8, 1.75),
    ]
    table = pd.DataFrame(rows, columns=[*SCENE_COLUMNS, "jct_normalised"])
    return written(
        "suite", out, {"scenes": table}, {"scenes": {"storm": {"paired": {"hi_ppo": {}}}}}
    )


def sweep_run(out: Path) -> Path:
    """A grid of two factors."""
    cells = [(jitter, strength) for jitter in ("ou", "none") for strength in (0.1, 0.4)]
    gains = {cell: 2.0 + number for number, cell in enumerate(cells)}
    points = pd.DataFrame(
        [
            {
                "point": n,
                "scheduler": name,
                "jitter": jitter,
                "strength": strength,
                "scenarios": 6,
                "tokens_per_s": 1e5,
                "gain_pct": gain * (name == "ours"),
            }
            for n, ((jitter, strength), gain) in enumerate(gains.items())
            for name in ("rival", "ours")
        ]
    )
    effects = pd.DataFrame(
        [
            ("ours", "jitter", "ou", "none", 2.0, 1.5, 2.5),
            ("ours", "strength", "0.1", "0.4", 1.0, 0.25, 1.75),
        ],
        columns=list(EFFECT_COLUMNS),
    )
    of_all = {"scenarios": 24, "step_s": 2.5, "tokens_per_s": 1e5}
    gain = {"gain_pct": 3.5, "gain_lo_pct": 3.25, "gain_hi_pct": 3.75}
    schedulers = [
        {"scheduler": "rival", **of_all, **dict.fromkeys(gain)},
        {"scheduler": "ours", **of_all, **gain},
    ]
    summary = {"reference": "rival", "factors": ["jitter", "strength"], "schedulers": schedulers}
    tables = {"points": points, "effects": effects}
    return written("sweep", out, tables, summary, design="grid", scenarios=6, steps=10)


def plan_run(out: Path) -> Path:
    """Both plans on the map, and the trade-off of speed and price."""
    groups = [
        {
            "domains": [{"domain": name, "layers": 32, "tp": 2, "pp": 2}],
            "dp": 2,
            "micro_batches": 16,
            "micro_batch": 1,
        }
        for name in ("north", "south")
    ]
    link = {"gb_per_step": 1.5, "busy": 0.4, "gbps": 5.0, "kind": "ring"}
    one = {
        "plan": {"label": "north | south", "groups": groups},
        "talks": "every step, 16 bits",
        "step_s": 4.5,
        "step_s_band": [4.1, 4.9],
        "tokens_per_s": 93_000.0,
        "efficiency": 0.97,
        "efficiency_band": [0.95, 1.0],
        "effective_tokens_per_s": 90_210.0,
        "effective_tokens_per_s_band": [88_350.0, 93_000.0],
        "usd_per_hour": 64.0,
        "usd_per_effective_mtoken": 0.197,
        "days": 12.5,
        "days_band": [11.0, 14.0],
        "usd": 19_200.0,
        "usd_band": [17_000.0, 21_500.0],
        "memory_gb_max": 61.0,
        "wan_gb_per_step": 3.0,
        "bound_by": {"part": "compute", "share": 0.71},
        "wan": [{"src": "north", "dst": "south", **link}],
    }
    front = {
        "plan": "north | south",
        "talks": "every step, 16 bits",
        "effective_tokens_per_s_lo": 88_350.0,
        "usd_per_effective_mtoken_hi": 0.201,
    }
    summary = {
        "allow": "any",
        "alternatives": {"synchronous": None, "any": one},
        "pareto": [front],
        "asked": {
            "model": "llama-7b",
            "cluster": "two-sites",
            "global_batch": 1024,
            "seq": 4096,
            "domains": {"north": 16, "south": 16},
            "rtt_ms": [[0.0, 30.0], [30.0, 0.0]],
        },
    }
    return written("plan", out, {}, summary, model="llama-7b")


def study_run(out: Path) -> Path:
    """Predictions beside real runs."""
    rows = [
        ("near", "rings", "data_parallel", True, 1.0, 1.1),
        ("far", "rings", "data_parallel", False, 1.125, 1.0),
    ]
    errors = {"n": 2, "median_ape_pct": 7.25, "p90_ape_pct": 9.0, "bias_pct": -1.0}
    worst = {"condition": "far", "plan": "rings", "measured_s": 1.0, "predicted_s": 1.125}
    choice = {"kendall_tau": 0.5, "chosen": "rings", "best": "pipeline", "loss_pct": 3.5}
    summary = {
        "families": {"data_parallel": errors},
        "all": errors,
        "choices": {"far": choice},
        "choices_near_best_pct": 100.0,
        "largest_errors": [{**worst, "error_pct": 12.5}],
        "moves": {"n": 6, "lost_s_median": 0.75, "median_ape_pct": 10.0},
    }
    tables = {"runs": pd.DataFrame(rows, columns=list(WAN_COLUMNS))}
    return written("wan_study", out, tables, summary, steps=3)


def efficiency_run(out: Path) -> Path:
    """What tokens are worth, of two seeds."""
    losses = pd.DataFrame(
        [
            (arm, seed, tokens, 3.0 - tokens / 4e4 + 0.01 * seed)
            for arm in ("every step", "H = 30")
            for seed in (0, 1)
            for tokens in (1e4, 2e4, 3e4)
        ],
        columns=["arm", "seed", "tokens", "loss"],
    )
    arms = pd.DataFrame(
        [("H = 30", 0.91, 0.04, 0.972, 0.951, 0.993, True)], columns=list(EFFICIENCY_COLUMNS)
    )
    return written("wan_efficiency", out, {"losses": losses, "efficiency": arms}, {}, steps=3)


def end_to_end_run(out: Path) -> Path:
    """Two schedulers that steer training."""
    names = ("best_static", "hysteresis")
    progress = pd.DataFrame(
        [
            {
                "scheduler": name,
                "t_s": 5.0 * (t + 1),
                "steps": 3.0 * (t + 1),
                "along": 2.9 * (t + 1),
                "measured": 2.8 * (t + 1),
                "switched": t == 2,
            }
            for name in names
            for t in range(5)
        ]
    )
    counts = {"measured_steps": 14.0, "foreseen_steps": 15.0, "along_steps": 14.5}
    rows = [{"scheduler": n, **counts, "replans": 1, "foreseen_decisions": 2} for n in names]
    return written("wan_end_to_end", out, {"progress": progress}, {"schedulers": rows}, rows=5)
