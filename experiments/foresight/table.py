"""Re-planners on the same scenarios: what each leaves on the table, and what of it is foresight.

Regret to clairvoyant has two parts. One a better decision on what was measured would save; the other
nobody could have, who does not know the future. `rollout` at its best futures and horizon bounds the
first from below: what it still lacks of clairvoyant is at most foresight, as far as its model is right.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pandas as pd
from tqdm import tqdm

from agents.protocol import Scheduler
from agents.registry import find
from analysis.records import RunWriter
from analysis.statistics import bootstrap_interval
from experiments.common import (
    BASE_SPREAD,
    check_output,
    load_regions,
    load_world,
    progress,
    put_result,
)
from experiments.evaluate import Evaluator, named, tune
from experiments.foresight.config import ForesightConfig
from experiments.runs import tell_dry
from jaxsim.scenario import ScenarioSettings, World
from jaxsim.workload import load_model

RIVALS = ("best_static", "hysteresis", "self_tuning_hysteresis", "smoothed_hysteresis")
REFERENCE = "hysteresis"
ORACLE = "replan_oracle"  # beside clairvoyant, from whom regret is counted


def compare(config: ForesightConfig) -> None:
    """Play all worlds, write the tables and say where they are. Raises InputError, RecordError."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    RunWriter.check("foresight", config.out, False)
    spec, world, _ = load_world(
        *(config.cluster, config.model, config.global_batch, config.seq, config.table_size),
        layout_limit=config.layout_limit,
        loaded=config.load_share > 0,
    )
    body = {k: v for k, v in dataclasses.asdict(config).items() if k != "dry_run"}
    with RunWriter.create("foresight", body, config.seeds, config.out) as run:
        rows, scenarios = [], []
        names = _worlds(config)
        with progress(total=len(names), desc="foresight", unit="world") as bar:
            for name in names:
                bar.set_postfix_str(name)
                frame = regrets(config, world, settings_of(config, name))
                scenarios.append(frame.assign(world=name))
                rows += summarised(frame, name)
                bar.update()
        run.write_table("scenarios", pd.concat(scenarios, ignore_index=True))
        run.write_table("foresight", pd.DataFrame(rows))
        summary = {"cluster": spec.name, "model": config.model, "rows": rows}
        run.finish(summary)
        if put_result(summary, config.json):
            print(markdown(rows))
            print(f"run folder: {run.dir}")


def dry_run(config: ForesightConfig) -> None:
    """Check the files, say how much there is to play and how long runs like it took. Raises
    InputError."""
    names = _worlds(config)
    for name in names:
        settings_of(config, name).links()
    load_model(config.model)
    work = {
        "domains": load_regions(config.cluster).n_domains,
        "worlds": len(names),
        "schedulers": len(RIVALS) + 1 + len(config.futures) * len(config.horizons),
        "scenarios of each": config.seeds,
        "scenarios to tune on": config.tuning_scenarios,
        "intervals each": config.steps,
    }
    tell_dry("foresight", dataclasses.asdict(config), work, config.json)


def _worlds(config: ForesightConfig) -> list[str]:
    """How links move in each of the worlds."""
    return [name.strip() for name in config.jitters.split(",")]


def settings_of(config: ForesightConfig, jitter: str) -> ScenarioSettings:
    """How one world's scenarios are drawn."""
    return ScenarioSettings(
        jitter=jitter,
        base_spread=BASE_SPREAD,
        load_share=config.load_share,
        load_swing=0.2 if config.load_share > 0 else 0.0,
        horizon=config.steps,
    )


def regrets(config: ForesightConfig, world: World, settings: ScenarioSettings) -> pd.DataFrame:
    """[S x schedulers] rows: regret to clairvoyant by scenario, and the decision's time."""
    weights = (1.0, 0.0, 0.0, 0.0)
    tuned: dict[str, float] = {}
    if config.tuning_scenarios:
        training = Evaluator(world, settings, range(config.tuning_scenarios), "train", weights)
        tuned = tune([training], [*RIVALS, ORACLE])
    test = Evaluator(world, settings, range(config.seeds), "test", weights)
    frames = []
    for label, scheduler in contestants(config, world, tuned):
        taken = test.decision_ms(scheduler, calls=50)
        frames.append(
            pd.DataFrame(
                {
                    "scheduler": label,
                    "scenario": np.arange(len(test)),
                    "regret_pct": test.regret_pct(scheduler),
                    "decision_ms_p50": np.percentile(taken, 50),
                    "decision_ms_p99": np.percentile(taken, 99),
                }
            )
        )
        tqdm.write(f"{settings.jitter} {label}: {frames[-1]['regret_pct'].mean():.2f} %")
    return pd.concat(frames, ignore_index=True)


def contestants(
    config: ForesightConfig, world: World, tuned: dict[str, float]
) -> list[tuple[str, Scheduler]]:
    """Who plays, with the name of its row."""
    everyone = [(name, named(name, world, tuned)) for name in (*RIVALS, ORACLE)]
    entry, n_choices = find("rollout"), world.problem.choices.size
    for futures, horizon in itertools.product(config.futures, config.horizons):
        made = entry.make(world.table, n_choices, futures=futures, horizon=horizon)
        everyone.append((f"rollout M={futures} H={horizon}", made))
    return everyone


def summarised(frame: pd.DataFrame, world: str) -> list[dict[str, Any]]:
    """A row for each scheduler: regret with its interval, gain over hysteresis, paired over the
    scenarios in which something can run."""
    table = frame.pivot(index="scenario", columns="scheduler", values="regret_pct").dropna()
    rows = []
    for name in frame["scheduler"].unique():
        own = frame[frame["scheduler"] == name]
        row: dict[str, Any] = {"world": world, "scheduler": name, "n": len(table)}
        regret = bootstrap_interval(table[name].to_numpy()) if len(table) else None
        gain = (table[REFERENCE] - table[name]).to_numpy()
        gain = bootstrap_interval(gain) if len(table) else None
        for key, value in (("regret", regret), ("gain", gain)):
            ends = ("estimate", "lo", "hi")
            found = [None] * 3 if value is None else [_number(value[end]) for end in ends]
            row |= dict(zip((f"{key}_pct", f"{key}_lo", f"{key}_hi"), found, strict=True))
        row["decision_ms_p50"] = float(own["decision_ms_p50"].iloc[0])
        row["decision_ms_p99"] = float(own["decision_ms_p99"].iloc[0])
        rows.append(row)
    return rows


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table as it stands in the documentation, and how much of the distance is foresight."""
    lines = [
        "| world | scheduler | regret % | 95 % interval | gain over hysteresis | decision ms |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        regret, gain, between = (
            _said(row["regret_pct"]),
            f"{_said(row['gain_pct'])} ({_said(row['gain_lo'])} to {_said(row['gain_hi'])})",
            f"{_said(row['regret_lo'])} to {_said(row['regret_hi'])}",
        )
        cells = (row["world"], row["scheduler"], regret, between, gain)
        lines.append(f"| {' | '.join(cells)} | {row['decision_ms_p50']:.1f} |")
    lines += [
        "",
        *(said for world in dict.fromkeys(r["world"] for r in rows) for said in _part(world, rows)),
    ]
    return "\n".join(lines)


def _part(world: str, rows: list[dict[str, Any]]) -> list[str]:
    """How much of hysteresis' regret the best rollout leaves."""
    own = {r["scheduler"]: r["regret_pct"] for r in rows if r["world"] == world}
    least = {name: x for name, x in own.items() if name.startswith("rollout") and x is not None}
    if not least or not own.get(REFERENCE):
        return []
    best = min(least, key=lambda name: least[name])
    share = 100.0 * least[best] / own[REFERENCE]
    return [
        f"{world}: of hysteresis' {own[REFERENCE]:.2f} % {best} leaves {least[best]:.2f} %: at most "
        f"{share:.0f} % of the distance to clairvoyant is foresight that nobody can have."
    ]


def _said(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
