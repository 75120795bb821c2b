"""The layouts command: profile, predict, train, move, adapt."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from analysis.records import RunWriter
from ddp_bench.layouts.adapt import Rules, adapt_on_rank
from ddp_bench.layouts.hardware import context_on_rank, hardware_on_rank
from ddp_bench.layouts.layout import Layout, layouts_of
from ddp_bench.layouts.measure import steps_on_rank
from ddp_bench.layouts.pieces import Profiler
from ddp_bench.layouts.relayout import PRELOAD, across_sizes, pairs_on_rank
from ddp_bench.layouts.score import Profile, ranked, top1_gap
from ddp_bench.layouts.settings import Case, LayoutsSettings
from ddp_bench.layouts.trainer import Task
from ddp_bench.toolbox import SHAPES, Ranks, on_ranks, table

Say = Callable[[str], None]
ALLOWED_GAP_PCT = 10.0
MEASURES = ("measured_s", "least_s")
OF_PREDICT = (
    *("layouts", "top1_gap_pct", "top1_gaps_pct", "top1_gaps_least_pct", "top1_within_10_pct"),
    *("configurations", "context_parallel", "hardware", "profiles"),
)
LONGEST_MOVED = 32  # [tokens] of a sequence where moves are checked


def work(settings: LayoutsSettings, writer: RunWriter, say: Say) -> dict:
    """Everything, in the order in which it is printed."""
    kinds = settings.kinds()
    predicted = _predict(settings, writer, say) if "predict" in kinds else {}
    moves = _moves(settings, writer, say) if "moves" in kinds and settings.move_steps else []
    rows: list[dict[str, Any]] = predicted.get("layouts", [])
    adaptive = _adaptive(settings, rows, say) if "loop" in kinds else None
    return {
        **dict.fromkeys(OF_PREDICT),
        **predicted,
        "relayout_loss_gap": max((row["loss_gap"] for row in moves), default=None),
        "relayout_order_kept": _all(row["is_order_kept"] for row in moves),
        "relayout_equal": _all(r["is_equal"] and r["is_equal_memory"] is not False for r in moves),
        "moves": moves,
        "adaptive": adaptive,
    }


def _predict(settings: LayoutsSettings, writer: RunWriter, say: Say) -> dict[str, Any]:
    """Every configuration predicted and measured: OF_PREDICT -> what came out."""
    hardware, context = _hardware(settings, say)
    rows: list[dict[str, Any]] = []
    gaps: dict[str, float] = {}
    least: dict[str, float] = {}
    profiles: dict[str, Any] = {}
    for case in settings.case_list():
        found, (gaps[case.name], least[case.name]), slowdown = _case(case, settings, say)
        profiles[case.name] = {"slowdown": slowdown}
        rows += found
        writer.append(
            "layouts", [{k: v for k, v in r.items() if k != "parts"} | r["parts"] for r in found]
        )
    within = sum(gap <= ALLOWED_GAP_PCT for gap in gaps.values())
    say(f"top-1 within {ALLOWED_GAP_PCT:g} %: {within} of {len(gaps)} configurations\n")
    out = (rows, max(gaps.values()), gaps, least, within, len(gaps), context, hardware, profiles)
    return dict(zip(OF_PREDICT, out, strict=True))


def _all(values: Iterable[bool]) -> bool | None:
    """Whether all of them are true; None where there are none."""
    given = list(values)
    return all(given) if given else None


def _task(case: Case, settings: LayoutsSettings, longest: int | None = None) -> Task:
    length = min(case.length, longest or case.length)
    return Task(SHAPES[case.model], case.rows, length, settings.seed)


def _options(settings: LayoutsSettings) -> dict[str, Any]:
    return {"timeout_s": settings.timeout_s, "preload": PRELOAD}


def machine_on_rank(ranks: Ranks, repeats: int) -> tuple[dict[str, Any], str]:
    """(what the machine does, why context parallelism does not run here)."""
    return hardware_on_rank(ranks, repeats), context_on_rank(ranks)


def _hardware(settings: LayoutsSettings, say: Say) -> tuple[dict[str, Any], dict[str, Any]]:
    """(number of ranks -> rates, whether context parallelism runs)."""
    out, why = {}, ""
    for ranks in sorted({case.ranks for case in settings.case_list()}):
        say(f"hardware, {ranks} ranks at once")
        given = (machine_on_rank, ranks, settings.profile_rounds)
        out[str(ranks)], why = on_ranks(*given, **_options(settings))[0]
        operators = out[str(ranks)]["operators"]
        cells = [
            [r["kind"], r["name"], 1e3 * r["median_s"], r["gflop_per_s"], r["gb_per_s"]]
            for r in operators
        ]
        say(table(["kind", "size", "median [ms]", "GFLOP/s", "GB/s"], cells))
    text = f"does not run here: {why}" if why else "runs here, but no layout uses it"
    say(f"\ncontext parallelism {text}\n")
    return out, {"runs": not why, "reason": why or None}


def case_on_rank(
    ranks: Ranks, task: Task, layouts: Sequence[Layout], settings: LayoutsSettings
) -> tuple[Profile, dict[str, list[float]], dict[str, list[float]]]:
    """(profile, seconds of every layout's steps, the same of the finalists, measured afresh).

    Rounds of the profile go on between the finalists' rounds: a machine that is slower for a while is
    so for both. Where the whole profile puts another layout first, that one is measured beside them.
    """
    profiler = Profiler(ranks, task, layouts)
    profiler.play(settings.profile_rounds)
    found = steps_on_rank(ranks, task, layouts, settings.rounds, settings.steps)
    order = [s.layout.name for s in ranked(layouts, task, profiler.profile())]
    fastest = sorted(found, key=lambda name: statistics.median(found[name]))
    by_name = {layout.name: layout for layout in layouts}
    names = dict.fromkeys([*order[: settings.finalists], *fastest[: settings.finalists]])
    finalists = [by_name[name] for name in names]
    last = _in_turn(ranks, task, finalists, settings, profiler)
    profile = profiler.profile()
    first = ranked(layouts, task, profile)[0].layout.name
    if first not in last:
        last = _in_turn(ranks, task, [*finalists, by_name[first]], settings)
    return profile, found, last


def _in_turn(
    ranks: Ranks,
    task: Task,
    finalists: Sequence[Layout],
    settings: LayoutsSettings,
    profiler: Profiler | None = None,
) -> dict[str, list[float]]:
    """Seconds of the finalists' steps, in rounds from both ends of the list in turn; `profiler` plays
    between them."""
    order = list(finalists)
    last: dict[str, list[float]] = {layout.name: [] for layout in order}
    for _ in range(settings.final_rounds):
        if profiler is not None:
            profiler.play(1)
        for name, seconds in steps_on_rank(ranks, task, order, 1, settings.steps).items():
            last[name] += seconds
        order.reverse()
    return last


def _case(
    case: Case, settings: LayoutsSettings, say: Say
) -> tuple[list[dict[str, Any]], list[float], dict[int, float]]:
    """(a row for every layout, how far the first in prediction is from the fastest [%] by
    median and by least time, slowdowns)."""
    task, layouts = _task(case, settings), settings.layouts_for(case)
    say(f"{case.name}: {len(layouts)} layouts")
    given = (case_on_rank, case.ranks, task, layouts, settings)
    profile, found, last = on_ranks(*given, **_options(settings))[0]
    rows = []
    for place, scored in enumerate(ranked(layouts, task, profile), 1):
        name = scored.layout.name
        # What made a layout a finalist was in part luck: its own later measurement replaces it.
        seconds = last.get(name, found[name])
        rows.append(
            {
                "case": case.name,
                "place": place,
                "name": name,
                "predicted_s": scored.seconds,
                "measured_s": statistics.median(seconds),
                "least_s": min(seconds),
                "is_finalist": name in last,
                "parts": scored.parts(),
            }
        )
    compared = [row for row in rows if row["is_finalist"] or row["place"] == 1]
    gaps = [_gap(compared, measure) for measure in MEASURES]
    say(
        f"\n{_ranking(rows)}\n\n{case.name}: the first is {gaps[0]:.1f} % slower than the fastest\n"
    )
    return rows, gaps, dict(profile.slowdown)


def _gap(rows: Sequence[dict[str, Any]], measure: str) -> float:
    predicted = {row["name"]: row["predicted_s"] for row in rows}
    return top1_gap(predicted, {row["name"]: row[measure] for row in rows})


def _ranking(rows: Sequence[dict[str, Any]]) -> str:
    header = [
        "layout",
        "predicted [ms]",
        "measured [ms]",
        "compute",
        "collectives",
        "bubble",
        "optimizer",
    ]
    cells = [
        [row["name"], *(1e3 * row[key] for key in ("predicted_s", "measured_s"))]
        + [1e3 * seconds for seconds in row["parts"].values()]
        for row in rows
    ]
    return table(header, cells)


def kinds_of(layouts: Sequence[Layout]) -> list[Layout]:
    """One layout for every way to place the state: a pipeline's schedule does not change it."""
    found: dict[tuple[int, ...], Layout] = {}
    for layout in layouts:
        found.setdefault((layout.dp, layout.tp, layout.pp, layout.zero), layout)
    return list(found.values())


def _moves(settings: LayoutsSettings, writer: RunWriter, say: Say) -> list[dict[str, Any]]:
    """Moves between all kinds of layouts of the first configuration of every number of ranks, and from
    all of them to all kinds of the other numbers of ranks, and to one rank."""
    first: dict[int, Case] = {}
    for case in settings.case_list():
        first.setdefault(case.ranks, case)
    rows: list[dict[str, Any]] = []
    for ranks, case in first.items():
        task = _task(case, settings, LONGEST_MOVED)
        layouts = kinds_of(settings.layouts_for(case))
        others = [n for n in (1, *first) if n != ranks]
        ends = [end for n in others for end in kinds_of(layouts_of(task.shape, n, task.rows))]
        with tempfile.TemporaryDirectory(prefix="layouts-") as folder:
            for found in _moves_within(layouts, task, folder, settings, say):
                writer.append("moves", found)
                rows += found
            number = len(layouts) * len(ends)
            say(f"{number} moves from {ranks} ranks to {', '.join(map(str, others))}")
            where = Path(folder, "sizes")
            steps, timeout = settings.move_steps, settings.timeout_s
            found = across_sizes(task, layouts, ends, where, steps, timeout)
            writer.append("moves", found)
            rows += found
    gap = max((row["loss_gap"] for row in rows), default=0.0)
    kept = sum(row["is_order_kept"] for row in rows)
    say(f"{len(rows)} moves: losses within {gap:.2g}, order of samples kept by {kept}\n")
    return rows


def _moves_within(
    layouts: Sequence[Layout], task: Task, folder: str, settings: LayoutsSettings, say: Say
) -> Iterator[list[dict[str, Any]]]:
    """Moves from each layout to all others of the same number of ranks, one layout after the other."""
    count = len(layouts) * (len(layouts) - 1)
    if not count:
        return
    ranks = layouts[0].ranks
    say(f"{count} moves between {len(layouts)} layouts of {ranks} ranks")
    with tqdm(total=count, desc="moves", unit="move", disable=None) as bar:
        for start in layouts:
            pairs = [(start, end) for end in layouts if end != start]
            given = (task, pairs, folder, settings.move_steps)
            yield on_ranks(pairs_on_rank, ranks, *given, **_options(settings))[0]
            bar.update(len(pairs))


def _adaptive(
    settings: LayoutsSettings, rows: Sequence[dict[str, Any]], say: Say
) -> dict[str, Any] | None:
    """The loop on the first configuration."""
    if not settings.adapt_steps:
        return None
    case = settings.case_list()[0]
    layouts = settings.layouts_for(case)
    of_case = [row for row in rows if row["case"] == case.name]
    name = settings.start
    if of_case and not name:
        name = max(of_case, key=lambda row: row["predicted_s"])["name"]
    start = next((layout for layout in layouts if layout.name == name), None)
    rules = Rules(
        settings.interval, settings.horizon, settings.hysteresis, min(3, settings.profile_rounds)
    )
    given = (_task(case, settings), layouts, start, settings.adapt_steps, rules)
    found = on_ranks(adapt_on_rank, case.ranks, *given, **_options(settings))[0]
    cells = [
        [
            d["step"],
            d["present"],
            d["chosen"],
            1e3 * d["predicted_s"],
            1e3 * d["best_s"],
            d["cost_s"],
        ]
        for d in found["decisions"]
    ]
    header = ["step", "present", "chosen", "predicted [ms]", "best [ms]", "cost of a move [s]"]
    say(f"{table(header, cells)}\n")
    return {"case": case.name, **found}
