"""The memory command: predictions checked, budgets met, allocators replayed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from analysis.records import RunWriter
from ddp_bench.memory.allocators import POLICIES
from ddp_bench.memory.chooser import (
    UNSEEN,
    Costs,
    NoRoom,
    costs_of,
    exhaustive,
    fitted,
    least_peak,
    peak_of,
)
from ddp_bench.memory.figures import draw_replays, draw_timeline
from ddp_bench.memory.measure import Measurement, measure
from ddp_bench.memory.predict import Prediction, predict
from ddp_bench.memory.recompute_times import option_seconds
from ddp_bench.memory.replay import Replayed, replay
from ddp_bench.memory.settings import MemorySettings
from ddp_bench.memory.step import KEEP, OFFLOAD, RECOMPUTE, LlamaJob, options_of, units_of
from ddp_bench.toolbox import SHAPES, device_of, table

BATCHES = ((2, 64), (4, 96), (8, 64))  # sequences, tokens
CHOICES = (KEEP, RECOMPUTE, "first child", OFFLOAD, "in turn")
MOST_TRIED = 200_000  # policies; beyond, trying all of them takes minutes
Say = Callable[[str], None]


def work(settings: MemorySettings, writer: RunWriter, say: Say) -> dict:
    """Everything, in the order in which it is printed."""
    folder = settings.offload_dir or None
    checked = _check_predictions(settings, folder, writer, say)
    budgets, kept_all = _meet_budgets(settings, folder, writer, say)
    replays, cached = _replay_all(settings, kept_all, writer, say)
    errors = [abs(row["error_pct"]) for row in checked]
    return {
        "peak_error_pct": max(errors),
        "peak_error_mean_pct": sum(errors) / len(errors),
        "settings": checked,
        "budget_kept": _all_kept(budgets),
        "budgets": budgets,
        "reserve": settings.reserve,
        "units": kept_all.units,
        "phases": kept_all.phases,
        "kinds_at_peak": kept_all.kinds,
        "replay": replays,
        "caching_error_pct": cached,
    }


def _all_kept(budgets: list[dict[str, Any]]) -> bool | None:
    """Whether all budgets that could be met were kept; None where none could be."""
    kept = [row["kept"] for row in budgets if row["kept"] is not None]
    return all(kept) if kept else None


def case(index: int, models: list[str], device: str) -> tuple[str, LlamaJob, str]:
    """The setting of this number: (name of the model, job, choice); the first twenty of four models
    are all different."""
    name = models[index % len(models)]
    rows, length = BATCHES[index % len(BATCHES)]
    optimizer = ("adamw", "sgd")[index // 4 % 2]
    return name, LlamaJob(SHAPES[name], rows, length, optimizer, device), CHOICES[index % 5]


def policy_of(choice: str, job: LlamaJob) -> dict[str, str]:
    """The choice of every unit of a job's model."""
    units = units_of(LlamaJob(job.shape, 1, 2)().model)
    policy = {}
    for index, (name, unit) in enumerate(units.items()):
        options = options_of(unit)
        child = next((o for o in options if o.startswith(f"{RECOMPUTE}:")), RECOMPUTE)
        turn = (KEEP, child, RECOMPUTE, OFFLOAD)[index % 4]
        policy[name] = {"first child": child, "in turn": turn}.get(choice, choice)
    return policy


def _check_predictions(
    settings: MemorySettings, folder: str | None, writer: RunWriter, say: Say
) -> list[dict[str, Any]]:
    """One row per setting: peak predicted, peak measured."""
    rows = []
    for index in range(settings.settings):
        name, job, choice = case(index, settings.model_names(), device_of().type)
        policy = policy_of(choice, job)
        predicted, found = predict(job, policy).peak, measure(job, policy, folder).peak
        rows.append(
            {
                "model": name,
                "rows": job.rows,
                "length": job.length,
                "optimizer": job.optimizer,
                "choice": choice,
                "predicted_bytes": predicted,
                "measured_bytes": found,
                "error_pct": 100 * (predicted / found - 1),
            }
        )
        writer.append("settings", rows[-1])
        say(f"setting {index + 1}/{settings.settings}: error {rows[-1]['error_pct']:+.3f} %")
    header = [
        "model",
        "batch",
        "optimizer",
        "choice",
        "predicted [MB]",
        "measured [MB]",
        "error [%]",
    ]
    cells = [
        [
            row["model"],
            f"{row['rows']} x {row['length']}",
            row["optimizer"],
            row["choice"],
            row["predicted_bytes"] / 1e6,
            row["measured_bytes"] / 1e6,
            row["error_pct"],
        ]
        for row in rows
    ]
    say(f"\nPeak memory of a training step\n{table(header, cells)}\n")
    return rows


def _meet_budgets(
    settings: MemorySettings, folder: str | None, writer: RunWriter, say: Say
) -> tuple[list[dict[str, Any]], Prediction]:
    """One row per capacity, and the prediction in which every unit keeps everything."""
    shape, device = SHAPES[settings.model], device_of()
    job = LlamaJob(shape, settings.rows, settings.length, settings.optimizer, device.type)
    seconds = option_seconds(job, settings.repeats, folder, settings.offload, say)
    options = list(next(iter(seconds.values())))
    say(f"predicting {len(options)} choices for all units")
    predictions = {o: predict(job, dict.fromkeys(seconds, o)) for o in options}
    costs = costs_of(predictions, seconds)
    rows = []
    for capacity in _capacities(settings, costs):
        budget = int(capacity * (1 - settings.reserve))
        rows.append(_meet(job, costs, capacity, budget, folder))
        writer.append("budgets", {k: v for k, v in rows[-1].items() if k != "policy"})
    header = ["capacity [MB]", "budget [MB]", "predicted [MB]", "measured [MB]", "extra [ms]"]
    header += ["over the best [%]", "kept"]
    cells = [
        [
            row["capacity_bytes"] / 1e6,
            row["budget_bytes"] / 1e6,
            _scaled(row["predicted_bytes"], 1e-6),
            _scaled(row["measured_bytes"], 1e-6),
            _scaled(row["extra_s"], 1e3),
            row["gap_pct"],
            row["kept"],
        ]
        for row in rows
    ]
    say(f"\nChoices within a budget\n{table(header, cells)}\n")
    return rows, predictions[KEEP]


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _capacities(settings: MemorySettings, costs: Costs) -> list[int]:
    if settings.capacity_mb:
        return [int(settings.capacity_mb * 1e6)]
    least, most = least_peak(costs) + UNSEEN, peak_of(costs, {}) + UNSEEN
    return [
        math.ceil((least + share * (most - least)) / (1 - settings.reserve)) + 1
        for share in (0.1, 0.4, 0.7)
    ]


def _meet(
    job: LlamaJob, costs: Costs, capacity: int, budget: int, folder: str | None
) -> dict[str, Any]:
    """Choose for one budget, and measure what was chosen."""
    row = {"capacity_bytes": capacity, "budget_bytes": budget}
    unmet = dict.fromkeys(("predicted_bytes", "measured_bytes", "extra_s", "gap_pct", "kept"))
    try:
        choice, predicted = fitted(job, costs, budget)
    except NoRoom as error:
        return {**row, **unmet, "policy": None, "why_not": str(error)}
    found = measure(job, choice.policy, folder)
    tried = math.prod(map(len, costs.units.values()))
    best = exhaustive(costs, budget) if tried <= MOST_TRIED else None
    gap = None
    if best is not None:
        gap = 100 * (choice.seconds / best.seconds - 1) if best.seconds > 0 else 0.0
    return {
        **row,
        "predicted_bytes": predicted.peak,
        "measured_bytes": found.peak,
        "extra_s": choice.seconds,
        "gap_pct": gap,
        "kept": max(predicted.peak, found.peak) <= budget,
        "policy": choice.policy,
        "why_not": None,
    }


def _replay_all(
    settings: MemorySettings, kept: Prediction, writer: RunWriter, say: Say
) -> tuple[dict[str, dict], float | None]:
    """Policy -> what it made of the trace; and, on a GPU, how far the caching policy's peak is from
    what PyTorch's allocator really held [%]."""
    replays = {policy: replay(kept.trace, policy) for policy in POLICIES}
    cells = [[n, r.live / 1e6, r.reserved / 1e6, 100 * r.fragmentation] for n, r in replays.items()]
    header = ["allocator", "alive [MB]", "taken [MB]", "fragmentation [%]"]
    say(f"Allocators on the trace of {settings.model}\n{table(header, cells)}\n")
    draw_timeline(kept.trace, writer.figures / "timeline.png")
    draw_replays(kept.trace, replays, writer.figures / "allocators.png")
    return {name: _row(replayed) for name, replayed in replays.items()}, _cached(settings)


def _row(replayed: Replayed) -> dict[str, Any]:
    return {
        "live_bytes": replayed.live,
        "reserved_bytes": replayed.reserved,
        "fragmentation": replayed.fragmentation,
        "moved_bytes": replayed.moved,
    }


def _cached(settings: MemorySettings) -> float | None:
    device = device_of()
    if device.type != "cuda":
        return None
    shape = SHAPES[settings.model]
    job = LlamaJob(shape, settings.rows, settings.length, settings.optimizer, device.type)
    found: Measurement = measure(job)
    return 100 * (replay(found.trace, "caching").reserved / found.reserved - 1)
