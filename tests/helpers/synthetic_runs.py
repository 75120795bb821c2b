"""Small run folders with the schema's tables, drawn from a seeded generator."""

from pathlib import Path

import numpy as np
import pandas as pd

from analysis.records import RunWriter
from analysis.statistics.summary import evaluation_summary

DOMAINS = ("virginia", "ohio", "oregon", "frankfurt")
# Mean progress relative to clairvoyant, plans switched per episode, WAN GB per step.
SCHEDULERS = {
    "clairvoyant": (1.0, 6, 31.0),
    "hi_ppo": (0.968, 5, 30.0),
    "self_tuning_hysteresis": (0.958, 6, 32.0),
    "hysteresis": (0.93, 8, 34.0),
    "best_static": (0.845, 0, 28.0),
    "single_domain": (0.52, 0, 0.0),
    "static_even_split": (0.61, 0, 55.0),
    "random": (0.24, 60, 48.0),
}
PLANS = (
    "ohio>virginia | oregon",
    "virginia>ohio | frankfurt",
    "ohio>virginia",
    "virginia>ohio>oregon>frankfurt",
    "oregon | ohio>virginia",
    "virginia | ohio | oregon | frankfurt",
    "frankfurt>virginia",
    "oregon>ohio",
    "virginia",
    "ohio",
)
WEIGHTS = (1.0, 0.3, 0.2, 0.0)


def metrics(seeds=3, updates=60, rng=None):
    """Training metrics: `updates` rows for each seed, rising and noisy."""
    rng = rng or np.random.default_rng(0)
    frames = []
    for seed in range(seeds):
        update = np.arange(updates)
        rise = 1 - np.exp(-update / updates * (4 + seed))
        progress = 0.9 + 0.24 * rise + 0.02 * rng.normal(size=updates)
        parts = {
            "reward_eff": progress - 1,
            "reward_util": 0.35 + 0.05 * rise,
            "reward_cost": 0.1 + 0.02 * rng.random(updates),
            "reward_fair": 0.01 + 0 * rise,
        }
        frames.append(
            pd.DataFrame(
                {
                    "seed": seed,
                    "update": update,
                    "env_steps": (update + 1) * 32768,
                    "wall_s": (update + 1) * 1.4,
                    "train_s": (update + 1) * 1.1,
                    "steps_per_s": 23000 + 500 * rng.normal(size=updates),
                    "progress_rel": progress,
                    "reward": weighted(parts),
                    **parts,
                    "upper_entropy": 1.5 - rise,
                    "lower_entropy": 0.8 - 0.5 * rise,
                    "upper_kl": 0.01,
                    "lower_kl": 0.01,
                    "upper_value_loss": 0.5 - 0.4 * rise,
                    "lower_value_loss": 0.4 - 0.3 * rise,
                    "switch_rate": 0.3 - 0.2 * rise,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def evaluations(seeds=3, points=6, rng=None):
    """Evaluations during training on held-out scenarios."""
    rng = rng or np.random.default_rng(1)
    frames = []
    for seed in range(seeds):
        update = np.arange(points) * 12
        regret = 3.3 + 14 * np.exp(-np.arange(points)) + 0.4 * rng.normal(size=points)
        frames.append(
            pd.DataFrame(
                {
                    "seed": seed,
                    "update": update,
                    "env_steps": (update + 1) * 32768,
                    "regret_pct": regret,
                    "regret_lo": regret - 0.8,
                    "regret_hi": regret + 0.8,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def weighted(parts):
    w1, w2, w3, w4 = WEIGHTS
    return (
        w1 * parts["reward_eff"]
        + w2 * parts["reward_util"]
        - w3 * parts["reward_cost"]
        - w4 * parts["reward_fair"]
    )


def scenarios(count=24, policy_seeds=3, schedulers=SCHEDULERS, rng=None):
    """One row per scheduler, scenario and (for hi_ppo) policy seed."""
    rng = rng or np.random.default_rng(2)
    headroom = rng.gamma(3.0, 4.0, size=count)
    difficulty = rng.normal(size=count)
    frames = []
    for name in schedulers:
        mean, replans, wan = SCHEDULERS[name]
        for seed in range(policy_seeds) if name == "hi_ppo" else (np.nan,):
            spread = (1 - mean) * (0.25 * difficulty + 0.1 * rng.normal(size=count))
            relative = np.clip(mean + spread, 0.02, 1.0)
            parts = {
                "reward_eff": relative * 1.2 - 1,
                "reward_util": 0.42 * relative,
                "reward_cost": wan / 400 + 0.01 * rng.random(count),
                "reward_fair": 0.02 * rng.random(count),
            }
            frames.append(
                pd.DataFrame(
                    {
                        "scheduler": name,
                        "policy_seed": seed,
                        "scenario": np.arange(count) + 1000,
                        "headroom_pct": headroom,
                        "progress": 3000 * relative,
                        "progress_rel": relative,
                        "regret_pct": 100 * (1 - relative),
                        "bound_pct": 100 * (1 - relative / 1.03),
                        "step_s": 9.0 / relative,
                        "step_s_std": 1.1,
                        "tokens_per_s": 230_000 * relative,
                        "utilisation": 0.42 * relative,
                        "memory_utilisation": 0.71,
                        "bandwidth_utilisation": 0.38,
                        "comm_to_compute": 0.31,
                        "overlap": 0.64,
                        "wan_gb_per_step": wan,
                        "usd_per_mtoken": 0.13 / relative,
                        "efficiency": 1.0,
                        "effective_tokens_per_s": 230_000 * relative,
                        "usd_per_effective_mtoken": 0.13 / relative,
                        "replans": replans,
                        "reward": weighted(parts),
                        **parts,
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def decisions(schedulers=SCHEDULERS, rng=None):
    """Decision times of every scheduler."""
    rng = rng or np.random.default_rng(3)
    p50 = rng.uniform(0.05, 2.0, size=len(schedulers))
    return pd.DataFrame(
        {"scheduler": list(schedulers), "decision_ms_p50": p50, "decision_ms_p99": p50 * 1.7}
    )


def links(steps=120, interval_s=60.0, rng=None):
    """Bandwidth of every directed link in one episode."""
    rng = rng or np.random.default_rng(4)
    frames = []
    for i, src in enumerate(DOMAINS):
        for j, dst in enumerate(DOMAINS):
            if i != j:
                base = 2 + 1.5 * abs(3 - abs(i - j))
                noise = np.convolve(rng.normal(size=steps + 9), np.ones(10) / 10, "valid")
                frames.append(
                    pd.DataFrame(
                        {
                            "t_s": np.arange(steps) * interval_s,
                            "src": src,
                            "dst": dst,
                            "bandwidth_gbps": base * (1 + 0.5 * noise),
                        }
                    )
                )
    return pd.concat(frames, ignore_index=True)


def timeline(steps=120, interval_s=60.0, schedulers=SCHEDULERS, rng=None):
    """What every scheduler did in that episode; a switch takes three intervals."""
    rng = rng or np.random.default_rng(5)
    frames = []
    for name in schedulers:
        mean, replans, _ = SCHEDULERS[name]
        switched = np.zeros(steps, int)
        if replans:
            switched[
                rng.choice(np.arange(2, steps), size=min(replans, steps // 4), replace=False)
            ] = 1
        in_transition = np.convolve(switched, np.ones(3, int))[:steps] > 0
        plan = np.array(PLANS)[(np.cumsum(switched) * 3 + len(name)) % len(PLANS)]
        step_s = 9 / mean * (1 + 0.1 * rng.normal(size=steps))
        frames.append(
            pd.DataFrame(
                {
                    "scheduler": name,
                    "t_s": np.arange(steps) * interval_s,
                    "step_s": np.where(in_transition, np.nan, step_s),
                    "progress_rate": np.where(in_transition, 0.0, 1 / step_s),
                    "in_transition": in_transition.astype(int),
                    "switched": switched,
                    "plan": plan,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def traffic(schedulers=SCHEDULERS, rng=None):
    """WAN traffic of every scheduler on every directed link."""
    rng = rng or np.random.default_rng(6)
    rows = []
    for name in schedulers:
        shares = rng.dirichlet(np.full(12, 0.5))
        pairs = [(a, b) for a in DOMAINS for b in DOMAINS if a != b]
        for (src, dst), share in zip(pairs, shares, strict=True):
            total = SCHEDULERS[name][2]
            rows.append(
                {"scheduler": name, "src": src, "dst": dst, "wan_gb_per_step": total * share}
            )
    return pd.DataFrame(rows)


def train_run(out: Path, seeds=3, updates=60) -> Path:
    """A finished training run."""
    with RunWriter.create("train", {"updates": updates}, list(range(seeds)), out) as run:
        run.append("metrics", metrics(seeds, updates).to_dict("records"))
        run.append("eval", evaluations(seeds).to_dict("records"))
        run.finish({"regret_pct": 3.2})
    return run.dir


def evaluate_run(out: Path, count=24, steps=120, learned=("hi_ppo",)) -> Path:
    """A finished evaluation with every table."""
    config = {
        "cluster": "four-regions",
        "weights": list(WEIGHTS),
        "jitter": {"process": "ou", "size": 0.3},
    }
    with RunWriter.create("evaluate", config, 7, out) as run:
        table = scenarios(count)
        run.write_table("scenarios", table)
        run.write_table("decisions", decisions())
        run.write_table("timeline", timeline(steps))
        run.write_table("links", links(steps))
        run.write_table("traffic", traffic())
        summary = evaluation_summary(table, decisions(), 3.0, learned)
        run.finish({"scenario": {"cluster": "four-regions", "domains": 4}, **summary})
    return run.dir


def bench_run(out: Path) -> Path:
    """A finished benchmark."""
    with RunWriter.create("bench", {"what": "env"}, 0, out) as run:
        for domains in (4, 8):
            row = {"what": "env", "domains": domains, "envs": 1024, "per_s": 2.4e6 / domains}
            rest = {"compile_s": 3.1, "flops_per_step": 5e4, "peak_memory_gb": None}
            run.append("metrics", {**row, **rest, "device": "cpu"})
        run.finish({"what": "env", "per_s": 6e5})
    return run.dir
