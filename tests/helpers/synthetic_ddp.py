"""A made-up data-parallel run with known answers."""

import numpy as np
import pandas as pd

from analysis.records import RunWriter
from ddp_bench.scheduler import FIT_COLUMNS, cost_fits

A, B, C = 4.0, 0.1, 0.001
COUNTS = {"static": 8, "pooled": 4, "packed": 5}


def made_up(steps=60, noise=0.02, seed=0, arms=COUNTS):
    """Four ranks whose compute time is a + b kL + c kL^2 and noise; `pooled` does half of it."""
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        lengths = rng.integers(10, 40, 4)
        for arm in arms:
            for rank in range(4):
                count, length = COUNTS[arm], int(lengths[rank])
                tokens, attention = count * length, count * length**2
                work = A + B * tokens + C * attention
                rows.append(
                    {
                        "step": step,
                        "arm": arm,
                        "rank": rank,
                        "local_batch": count,
                        "max_seq_len_in_batch": length,
                        "padded_tokens": tokens,
                        "real_tokens": tokens - count,
                        "attention_tokens_sq": attention,
                        "compute_ms": work * rng.normal(1, noise),
                        "wait_ms": 1.0,
                        "step_time_ms": 100.0,
                        "schedule_ms": 0.5,
                        "peak_mem_mb": np.nan,
                        "oom_redos": 0,
                    }
                )
    return pd.DataFrame(rows)


def fits(table):
    """What a run keeps in cost_fit.csv."""
    return pd.DataFrame(cost_fits(table), columns=FIT_COLUMNS)


def write_run(folder, table, seed=0, correct=True, used=None, **changes):
    config = {"global_batch": 32, "seed": seed, "dataset": "synthetic", "steps": 60} | changes
    with RunWriter.create("ddp", config, seed, folder) as writer:
        writer.write_table("merged_metrics", table)
        writer.write_table("cost_fit", fits(table))
        if correct:
            rng = np.random.default_rng(1)
            rows = [
                {"arm": arm, "row": i, "correct": int(rng.random() < 0.9)}
                for arm in table["arm"].unique()
                for i in range(200)
            ]
            writer.append("eval_rows", rows)
        check = {arm: {"float64_whole": 1e-15, "float32_whole": 1e-7} for arm in COUNTS}
        writer.finish(
            {"gradient_check": check, "setup": {"notes": ["SYNTHETIC data"]} | (used or {})}
        )
    return folder
