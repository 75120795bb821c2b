"""The communication command: methods compared, the selector judged in hindsight and in training."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from analysis.records import RunWriter
from ddp_bench.communication.links import drawn_link
from ddp_bench.communication.methods import METHODS
from ddp_bench.communication.selector import MethodCost, Played, play
from ddp_bench.communication.settings import CommunicationSettings
from ddp_bench.communication.sharded import SCATTERING
from ddp_bench.communication.training import (
    PLAIN,
    SELECTOR,
    Run,
    Trained,
    overlap_on_rank,
    train_on_rank,
)
from ddp_bench.errors import ConfigError
from ddp_bench.toolbox import on_ranks, table

Say = Callable[[str], None]
PRELOAD = ("ddp_bench.communication.training",)
PILOT = 1_000  # added to the seed of the run that decides what may be chosen


def work(settings: CommunicationSettings, writer: RunWriter, say: Say) -> dict:
    """Everything, in the order in which it is printed."""
    names = settings.names() or list(METHODS)
    if unknown := [name for name in names if name not in METHODS]:
        allowed = ", ".join(METHODS)
        raise ConfigError(f"methods: {', '.join(unknown)}: allowed all, {allowed}")
    pilot = _pilot(settings, names, writer, say)
    allowed = {n: row["cost"] for n, row in pilot.items() if row["allowed"]}
    compute = float(np.median([row["compute_s"] for row in pilot.values()]))
    played = _play(settings, allowed, compute, writer, say)
    judged = _judge(settings, allowed, compute, say)
    say("overlap of messages and backward")
    overlap = on_ranks(
        *(overlap_on_rank, settings.ranks, 10), timeout_s=settings.timeout_s, preload=PRELOAD
    )[0]
    regrets = [p.regret_pct for p in played]
    sharded = _sharded(settings, names, writer, say) if settings.sharded else None
    return {
        "methods": {n: {k: v for k, v in row.items() if k != "cost"} for n, row in pilot.items()},
        "regret_pct": float(np.mean(regrets)),
        "regret_worst_pct": max(regrets),
        "switches_mean": float(np.mean([p.switches for p in played])),
        "loss_tolerance": settings.loss_tolerance,
        **judged,
        "overlap": overlap,
        "sharded": sharded,
    }


def _trained(settings: CommunicationSettings, runs: list[Run]) -> list[Trained]:
    found = on_ranks(
        *(train_on_rank, settings.ranks, runs), timeout_s=settings.timeout_s, preload=PRELOAD
    )
    return found[0]


def _pilot(
    settings: CommunicationSettings, names: list[str], writer: RunWriter, say: Say
) -> dict[str, dict[str, Any]]:
    """Method -> what a run on a seed of its own says: bytes, compression, loss, whether it may be
    chosen. Half of the tolerance is left for what other seeds bring."""
    say(f"training {settings.steps} steps by each of {len(names)} methods")
    seed = settings.seed + PILOT
    runs = [Run(name, seed, settings.steps) for name in names]
    found = dict(zip(names, _trained(settings, runs), strict=True))
    exact = found["exact"].final_loss
    if not math.isfinite(exact):
        raise ConfigError(
            f"seed is {settings.seed}: the loss of training by exact gradients is {exact}, so that "
            "no method can be held against it; allowed is a seed whose loss is finite"
        )
    rows = {}
    for name, trained in found.items():
        row = _row(trained, exact)
        row["allowed"] = bool(row["loss_gap"] <= settings.loss_tolerance / 2)
        writer.append("methods", {"method": name} | row)
        rows[name] = row | {"cost": trained.cost}
    _say_rows(rows, {"allowed": "allowed"}, say)
    return rows


def _sharded(
    settings: CommunicationSettings, names: list[str], writer: RunWriter, say: Say
) -> dict[str, dict[str, Any]]:
    """Method -> what training under FSDP2 by it says, held against FSDP2's own messages (PLAIN)."""
    names = [PLAIN, *(name for name in names if name in SCATTERING)]
    say(f"training {settings.steps} steps of a sharded model by each of {len(names)} methods")
    seed = settings.seed + PILOT
    runs = [Run(name, seed, settings.steps, is_sharded=True) for name in names]
    found = dict(zip(names, _trained(settings, runs), strict=True))
    rows = {name: _row(trained, found[PLAIN].final_loss) for name, trained in found.items()}
    del rows[PLAIN]["wire_bytes"], rows[PLAIN]["hops"]  # nobody counts its messages
    for name, row in rows.items():
        writer.append("sharded", {"method": name, "wire_bytes": None, "hops": None} | row)
    _say_rows(rows, {}, say)
    return rows


def _row(trained: Trained, exact: float) -> dict[str, Any]:
    """What one method's training says, beside the loss of exact gradients."""
    return {
        "wire_bytes": sum(m[0] for m in trained.cost.messages),
        "hops": sum(m[1] for m in trained.cost.messages),
        "compress_s": trained.cost.seconds,
        "compute_s": trained.compute_s,
        "final_loss": trained.final_loss,
        "loss_gap": trained.final_loss / exact - 1,
    }


def _say_rows(rows: dict[str, dict[str, Any]], more: dict[str, str], say: Say) -> None:
    """A table, with the columns `more` (key -> title) behind the others."""
    header = ["method", "sent [kB]", "hops", "compression [ms]", "loss", "gap [%]", *more.values()]
    cells = [
        [
            name,
            row["wire_bytes"] / 1e3 if "wire_bytes" in row else None,
            row.get("hops"),
            1e3 * row["compress_s"],
            row["final_loss"],
            100 * row["loss_gap"],
            *(row[key] for key in more),
        ]
        for name, row in rows.items()
    ]
    say(f"\n{table(header, cells)}\n")


def _play(
    settings: CommunicationSettings,
    costs: dict[str, MethodCost],
    compute_s: float,
    writer: RunWriter,
    say: Say,
) -> list[Played]:
    """The selector on emulated links, beside every fixed method."""
    played = []
    for index in range(settings.links):
        link = drawn_link(settings.seed + index, settings.played_steps)
        played.append(play(costs, link, settings.played_steps, compute_s, settings.every))
        row = {"link": index, "seconds": played[-1].seconds, "switches": played[-1].switches}
        best = min(played[-1].fixed, key=played[-1].fixed.__getitem__)
        fixed = {"best_fixed": best, "best_fixed_s": played[-1].fixed[best]}
        writer.append("links", row | fixed | {"regret_pct": played[-1].regret_pct})
    regrets = [p.regret_pct for p in played]
    say(
        f"regret to the best fixed method in hindsight, {settings.links} links of "
        f"{settings.played_steps} steps: mean {np.mean(regrets):.1f} %, worst {max(regrets):.1f} %\n"
    )
    return played


def _judge(
    settings: CommunicationSettings, costs: dict[str, MethodCost], compute_s: float, say: Say
) -> dict[str, Any]:
    """Losses of the selector's training against plain DistributedDataParallel's, on seeds that chose
    nothing; what decisions cost beside the steps."""
    say(f"training by the selector, {settings.seeds} seeds")
    seeds = range(settings.seed, settings.seed + settings.seeds)
    runs = [Run(PLAIN, seed, settings.steps) for seed in seeds]
    for seed in seeds:
        chosen = Run(SELECTOR, seed, settings.steps, seed, costs, compute_s, settings.every)
        runs.append(chosen)
    found = _trained(settings, runs)
    plain, chosen = found[: settings.seeds], found[settings.seeds :]
    gaps = [s.final_loss / e.final_loss - 1 for s, e in zip(chosen, plain, strict=True)]
    steps_s = sum((t.compute_s + t.messages_s + t.cost.seconds) * settings.steps for t in chosen)
    overhead = 100 * sum(t.decision_s for t in chosen) / steps_s
    compute = sum(t.compute_s * settings.steps for t in chosen)
    of_compute = 100 * sum(t.decision_cpu_s for t in chosen) / compute
    used = {n: sum(t.chosen.count(n) for t in chosen) for n in costs}
    mean, worst = 100 * np.mean(gaps), 100 * max(gaps)
    say(f"loss over plain DistributedDataParallel: mean {mean:+.2f} %, worst {worst:+.2f} %")
    say(f"decisions: {overhead:.2f} % of the time; on the CPU {of_compute:.2f} % of computation\n")
    return {
        "loss_gap": max(gaps),
        "loss_gap_mean": float(np.mean(gaps)),
        "loss_within_tolerance": bool(max(gaps) <= settings.loss_tolerance),
        "decision_overhead_pct": overhead,
        "decision_overhead_of_compute_pct": of_compute,
        "steps_by_method": used,
    }
