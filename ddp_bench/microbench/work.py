"""The microbench command: measure, fit the collective model, draw the roofline."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from analysis.records import RunWriter
from ddp_bench.microbench.collective_model import SMALLEST, fit_collective, left_out_errors
from ddp_bench.microbench.collectives import Point, measure_collectives
from ddp_bench.microbench.figures import draw_roofline
from ddp_bench.microbench.operators import KINDS, Operator, measure_operators
from ddp_bench.microbench.profile import profile_name, write_profile
from ddp_bench.microbench.settings import MicrobenchSettings
from ddp_bench.microbench.steps import LENGTH, MODELS, ROWS, measure_alone, measure_on_ranks
from ddp_bench.toolbox import SHAPES, Repeats, Timed, device_of, table

Say = Callable[[str], None]
ALLOWED_GAP = 0.1  # between medians of odd and even rounds, relative
FEWEST = 4  # sizes of which one can be left out
Step = tuple[str, int, str, Timed]  # model, ranks, what they say to each other, time


def work(settings: MicrobenchSettings, writer: RunWriter, say: Say) -> dict:
    """Everything, in the order in which it is printed."""
    device, kinds = device_of(), settings.kinds()
    points = _collectives(settings, writer, say) if "collectives" in kinds else []
    models = _models(points, say)
    measured = _operators([k for k in kinds if k in KINDS], settings, device, writer, say)
    steps = _steps(settings, device, say) if "steps" in kinds else []
    roof = _roofline(measured, writer, say)
    cells = [("collectives", p.timed) for p in points] + [(o.kind, t) for o, t in measured]
    cells += [("steps", timed) for *_, timed in steps]
    gaps = [timed.repeat_gap for _, timed in cells]
    within = repeats_within(cells)
    _say_repeats(within, cells, say)
    errors = [error for model in models for error in model["left_out_errors"]]
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "collectives": [_point_row(point) for point in points],
        "collective_models": models,
        "collective_model_error_pct": 100 * sum(errors) / len(errors) if errors else None,
        "repeat_gap_pct": _median_and_worst([100 * gap for gap in gaps if gap is not None]),
        "repeats_within_10_pct": within,
        **{kind: [_operator_row(o, t) for o, t in measured if o.kind == kind] for kind in KINDS},
        "steps": [{"model": n, "ranks": r, "talk": talk, **_time(t)} for n, r, talk, t in steps],
        "models": {name: dataclasses.asdict(SHAPES[name]) for name in MODELS},
        "batch": {"rows": ROWS, "length": LENGTH},
        "cores": os.cpu_count(),
        "roofline": roof,
    }


def _repeats(settings: MicrobenchSettings) -> Repeats:
    steady = settings.steady_pct / 100
    return Repeats(settings.repeats, 2, steady=steady, limit_s=settings.limit_s)


def _median_and_worst(values: Iterable[float]) -> dict[str, float] | None:
    ordered = sorted(values)
    if not ordered:
        return None
    return {"median": ordered[len(ordered) // 2], "worst": ordered[-1]}


def repeats_within(cells: Sequence[tuple[str, Timed]]) -> dict[str, float] | None:
    """Kind, and "total" -> share of cells whose medians of odd and even rounds are at most
    ALLOWED_GAP apart.

    Args:
        cells: (kind, time) of everything that was timed; None where nothing was timed twice.
    """
    held: dict[str, list[bool]] = {"total": []}
    for kind, timed in cells:
        if timed.repeat_gap is not None:
            is_within = timed.repeat_gap <= ALLOWED_GAP
            held["total"].append(is_within)
            held.setdefault(kind, []).append(is_within)
    if not held["total"]:
        return None
    return {kind: sum(of_kind) / len(of_kind) for kind, of_kind in held.items()}


def _say_repeats(
    within: dict[str, float] | None, cells: Sequence[tuple[str, Timed]], say: Say
) -> None:
    if within is None:
        return
    counts = Counter(kind for kind, _ in cells) | {"total": len(cells)}
    rows = [[kind, counts[kind], 100 * share] for kind, share in within.items()]
    header = ["kind", "cells", f"repeats within {100 * ALLOWED_GAP:g} % [%]"]
    say(f"\n{table(header, rows)}\n")


def _time(timed: Timed) -> dict[str, Any]:
    gap = timed.repeat_gap
    return {
        "median_s": timed.median,
        "ci95_s": list(timed.interval),
        "repeat_gap_pct": None if gap is None else 100 * gap,
    }


def _point_row(point: Point) -> dict[str, Any]:
    rates = {"algbw_gb_per_s": point.algbw / 1e9, "busbw_gb_per_s": point.busbw / 1e9}
    of = {"collective": point.collective, "ranks": point.ranks, "size_bytes": point.size}
    return {**of, **_time(point.timed), **rates}


def _operator_row(operator: Operator, timed: Timed) -> dict[str, Any]:
    seconds = timed.median
    return {
        "name": operator.name,
        **_time(timed),
        "gflop_per_s": operator.flop / seconds / 1e9 if operator.flop else None,
        "gb_per_s": operator.bytes / seconds / 1e9,
    }


def _collectives(settings: MicrobenchSettings, writer: RunWriter, say: Say) -> list[Point]:
    points = []
    for ranks in settings.groups():
        say(f"collectives of {ranks} ranks")
        sizes, timeout = settings.sizes(), settings.timeout_s
        points += measure_collectives(ranks, sizes, _repeats(settings), timeout_s=timeout)
    rows = [_point_row(point) for point in points]
    writer.append("collectives", [{k: v for k, v in r.items() if k != "ci95_s"} for r in rows])
    cells = [
        [p.collective, p.ranks, p.size // 1024, 1e3 * p.timed.median, p.algbw / 1e9, p.busbw / 1e9]
        for p in points
    ]
    header = ["collective", "ranks", "size [KiB]", "median [ms]", "algbw [GB/s]", "busbw [GB/s]"]
    say(f"\n{table(header, cells)}\n")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    write_profile(writer.dir / profile_name(gpu), points)
    return points


def _models(points: Sequence[Point], say: Say) -> list[dict[str, Any]]:
    """One row per kind and number of ranks, of sizes that the model is for."""
    groups: dict[tuple[str, int], list[Point]] = defaultdict(list)
    for point in points:
        if point.size >= SMALLEST:
            groups[point.collective, point.ranks].append(point)
    rows = []
    for (name, ranks), of_group in groups.items():
        if len(of_group) < FEWEST:
            continue
        given = [p.size for p in of_group], [p.timed.median for p in of_group]
        model, errors = fit_collective(*given), left_out_errors(*given)
        rows.append(
            {
                "collective": name,
                "ranks": ranks,
                "form": model.form,
                "coefficients": model.coefficients,
                "left_out_errors": errors,
            }
        )
    if rows:
        cells = [
            [r["collective"], r["ranks"], r["form"], 100 * sum(e) / len(e), 100 * max(e)]
            for r in rows
            for e in (r["left_out_errors"],)
        ]
        header = ["collective", "ranks", "form", "left-out error, mean [%]", "largest [%]"]
        say(f"Seconds from bytes, sizes from {SMALLEST // 1024} KiB\n{table(header, cells)}\n")
    return rows


def _operators(
    kinds: list[str],
    settings: MicrobenchSettings,
    device: torch.device,
    writer: RunWriter,
    say: Say,
) -> list[tuple[Operator, Timed]]:
    if not kinds:
        return []
    say(f"operators: {', '.join(kinds)}")
    measured = measure_operators(kinds, _repeats(settings), device)
    rows = [{"kind": o.kind, **_operator_row(o, t)} for o, t in measured]
    writer.append("operators", [{k: v for k, v in r.items() if k != "ci95_s"} for r in rows])
    cells = [
        [r["kind"], r["name"], 1e3 * r["median_s"], r["gflop_per_s"], r["gb_per_s"]] for r in rows
    ]
    say(f"\n{table(['kind', 'size', 'median [ms]', 'GFLOP/s', 'GB/s'], cells)}\n")
    return measured


def _steps(settings: MicrobenchSettings, device: torch.device, say: Say) -> list[Step]:
    """Whole training steps, of one process and of ranks."""
    say("training steps")
    alone = measure_alone(_repeats(settings), device)
    found: list[Step] = [(name, 1, "none", timed) for name, timed in alone.items()]
    for ranks in settings.groups():
        on_all = measure_on_ranks(ranks, _repeats(settings), settings.timeout_s)
        found += [(name, ranks, talk, timed) for (name, talk), timed in on_all.items()]
    cells = [
        [name, ranks, talk, 1e3 * timed.median, *(1e3 * end for end in timed.interval)]
        for name, ranks, talk, timed in found
    ]
    header = ["model", "ranks", "talk", "median [ms]", "from [ms]", "to [ms]"]
    say(f"\n{table(header, cells)}\n")
    return found


def _roofline(
    measured: Sequence[tuple[Operator, Timed]], writer: RunWriter, say: Say
) -> dict[str, float] | None:
    """The machine's two limits as the best that was seen, drawn with what operators reach."""
    rates = [o.flop / t.median for o, t in measured if o.kind == "gemm"]
    copied = [o.bytes / t.median for o, t in measured if o.kind == "copy"]
    if not rates or not copied:
        return None
    peak, bandwidth = max(rates), max(copied)
    draw_roofline(measured, peak, bandwidth, writer.figures / "roofline.png")
    say(f"roof: {peak / 1e9:.4g} GFLOP/s, {bandwidth / 1e9:.4g} GB/s")
    return {"peak_gflop_per_s": peak / 1e9, "bandwidth_gb_per_s": bandwidth / 1e9}
