"""A sweep from checked inputs to records."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from rich.table import Table
from tqdm import tqdm

from agents import registry
from analysis import figures
from analysis.records import RunWriter
from analysis.statistics import sweep as statistics
from experiments.common import (
    as_text,
    check_output,
    load_regions,
    progress,
    put_result,
    use_compile_cache,
)
from experiments.evaluate import requested, requested_for_jobs
from experiments.sweep import executors
from experiments.sweep.batches import Batch, describe, fingerprint, group_of, make_batches
from experiments.sweep.config import SweepConfig, recorded
from experiments.sweep.contents import digests
from experiments.sweep.design import Point, design_points, varied
from experiments.sweep.jobs import JobsPlayer
from experiments.sweep.parts import WHOLE, Parts, load_pyarrow
from experiments.sweep.playing import Player
from jaxsim.files import InputError
from jaxsim.learning import read_efficiency
from jaxsim.scenario import ScenarioSettings
from jaxsim.workload import load_model


def sweep(config: SweepConfig) -> None:
    """Play the batches that the run folder does not hold yet, write tables and figures, and say where
    they are. Raises InputError, RecordError, KeyboardInterrupt."""
    points = check_inputs(config)
    batches = make_batches(config, points)
    if config.dry_run:
        answer = rehearsal(config, points, batches)
        if put_result(answer, config.json):
            print(_said(answer))
        return
    folder, resume = config.resume or config.out, config.resume is not None
    RunWriter.check("sweep", folder, resume)
    with RunWriter.create("sweep", recorded(config), config.seed, folder, resume) as writer:
        parts = Parts(writer.dir, fingerprint(config), digests(config))
        try:
            done = parts.finished(len(batches))
            taken = _play_rest(config, points, batches, parts, set(done))
        except KeyboardInterrupt:
            line = f"interrupted; go on with hippo sweep --resume {writer.dir}"
            tqdm.write(line, file=sys.stderr)
            raise
        rows = parts.join(len(batches)).to_pandas()
        summary = {**describe(batches), "batches_resumed": len(done), **taken}
        summary |= _tell(config, points, rows, writer)
        writer.finish(summary)
    if put_result(summary, config.json):
        print(sweep_table(summary))
        print(f"rows: {parts.whole}")
        print(f"run folder: {writer.dir}")


def check_inputs(config: SweepConfig) -> list[Point]:
    """The points of the design, once all that it names was read. Raises InputError, and says where a
    package is missing."""
    if not config.dry_run:
        load_pyarrow()
    if config.executor == "ray":
        executors.load_ray()
    if config.json not in (None, "-"):
        check_output(str(config.json), "--json")
    names = _checked_names(config)
    if config.reference is not None and config.reference not in names:
        raise InputError(
            f"sweep: reference: expected one of {', '.join(names)}, got {config.reference!r}"
        )
    read_efficiency(config.efficiency)
    points = design_points(config)
    for cluster in config.cluster:
        for domains in config.domains or [None]:
            load_regions(cluster, domains)
    for model in config.model:
        load_model(model)
    for jitter in config.jitter:
        ScenarioSettings(jitter=jitter).links()
    return points


def _checked_names(config: SweepConfig) -> list[str]:
    """Who is to play. Raises InputError for those who cannot."""
    if config.names == ["all"]:
        raise InputError("sweep: schedulers: expected names separated by commas, got all")
    if config.jobs:
        return list(dict.fromkeys(one.name for one in requested_for_jobs(config.schedulers, None)))
    names, checkpoints = requested(config.schedulers)
    apart = registry.names(low_communication=True)
    if wrong := [name for name in names if name in apart and name not in checkpoints]:
        raise InputError(
            f"sweep: schedulers: {wrong[0]} plays on a table of its own; allowed are those beside "
            f"{', '.join(apart)}, or hippo evaluate"
        )
    return names


def reference_of(config: SweepConfig) -> str:
    """Whom the others are compared with."""
    return config.reference or config.names[0]


def _workers(config: SweepConfig) -> int:
    """Batches at a time. Of threads one more than there are cores: one draws its scenarios, which
    Python does alone, while the others compute."""
    return config.workers or executors.cores() + (config.executor == "local")


def _play_rest(
    config: SweepConfig, points: list[Point], batches: list[Batch], parts: Parts, done: set[int]
) -> dict[str, Any]:
    """Play and write the batches that are not `done`; how long that took."""
    left = [batch for batch in batches if batch.number not in done]
    start = time.perf_counter()
    total = sum(batch.count for batch in batches)
    known = total - sum(batch.count for batch in left)
    with (
        progress(total=total, initial=known, desc="sweep", unit="scenario") as bar,
        contextlib.closing(_played(config, points, left)) as played,
    ):
        for batch, columns in played:
            parts.write(batch.number, columns)
            bar.update(batch.count)
    wall_s = time.perf_counter() - start
    return {"wall_s": wall_s, "scenarios_per_s": (total - known) / wall_s if left else None}


def _played(
    config: SweepConfig, points: list[Point], batches: list[Batch]
) -> Iterator[tuple[Batch, dict[str, Any]]]:
    if not batches:
        return
    workers = _workers(config)
    if config.executor == "local":
        yield from executors.play_local(_player(config, points).columns, batches, workers)
        return
    with executors.ray_cluster(config.address, workers) as ray:
        make = functools.partial(_player_of_a_worker, config, points)
        yield from executors.play_ray(ray, make, batches, workers)


def _player(config: SweepConfig, points: list[Point]) -> Player | JobsPlayer:
    return JobsPlayer(config, points) if config.jobs else Player(config, points)


def _player_of_a_worker(config: SweepConfig, points: list[Point]) -> Player | JobsPlayer:
    """A player in a process of its own."""
    use_compile_cache()
    return _player(config, points)


def rehearsal(config: SweepConfig, points: list[Point], batches: list[Batch]) -> dict[str, Any]:
    """What --dry-run says: how much there is to do, and how long it would take, from two batches of
    each group's size: the first compiles, the second is measured. Groups of which none was played are
    taken to be as fast as the first."""
    player, first = _player(config, points), batches[0]
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        player.columns(first)
        taken.append(time.perf_counter() - start)
    count, workers = describe(batches), _workers(config)
    # Batches at once share the machine: a batch alone already keeps some of its cores busy.
    at_once = min(workers, executors.cores())
    whole_s = taken[1] * len(batches) / at_once
    prepare_s = (taken[0] - taken[1]) * count["groups"]
    return {
        **count,
        "points": len(points),
        "schedulers": config.names,
        "batch": first.size,
        "workers": workers,
        "first_batch_s": taken[0],
        "batch_s": taken[1],
        "expected_s": [whole_s + prepare_s, whole_s * at_once + prepare_s],
    }


def _said(answer: dict[str, Any]) -> str:
    low, high = (_duration(x) for x in answer["expected_s"])
    others = ", if every group is as fast as the first" if answer["groups"] > 1 else ""
    return (
        f"{answer['points']:,} points, {answer['scenarios']:,} scenarios, "
        f"{len(answer['schedulers'])} schedulers, {answer['batches']:,} batches of up to "
        f"{answer['batch']} in {answer['groups']} groups of one shape\n"
        f"a batch takes {answer['batch_s']:.1f} s once compiled ({answer['first_batch_s']:.1f} s the "
        f"first time); {answer['workers']} at a time\n"
        f"expected: {low} if they do not slow each other down, at most {high}{others}\n"
        "nothing was written"
    )


def _duration(seconds: float) -> str:
    minutes = seconds / 60.0
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60.0:.1f} h"


def _tell(
    config: SweepConfig, points: list[Point], rows: pd.DataFrame, writer: RunWriter
) -> dict[str, Any]:
    """Write points.csv, effects.csv and the figures; the summary's part on what came out."""
    reference = reference_of(config)
    factors = varied(points)
    names = [field.name for field in dataclasses.fields(Point)]
    text = dict.fromkeys((n for n in rows if isinstance(rows[n].dtype, pd.CategoricalDtype)), str)
    rows = statistics.with_gain(rows.astype(text), reference)
    means = statistics.point_means(rows, names)
    found = statistics.effects(rows, factors, reference, paired=config.design == "grid")
    writer.write_table("points", means)
    if found:
        writer.write_table("effects", pd.DataFrame(found))
    shown = {
        "reference": reference,
        "factors": factors,
        "schedulers": statistics.scheduler_gains(rows, reference, config.design == "grid"),
        "effects": found,
        "groups": len({group_of(point) for point in points}),
        "rows": len(rows),
        "table": WHOLE,
    }
    for name, draw in pictures(means, pd.DataFrame(found), factors, reference).items():
        figures.save(draw(), writer.figures / f"{name}.png")
    return shown


def pictures(
    means: pd.DataFrame, found: pd.DataFrame, factors: list[str], reference: str
) -> dict[str, Callable[[], Any]]:
    """The figures that a sweep has, by name; none where no factor varies or nobody is compared."""
    there = means[(means["scheduler"] != reference) & means["gain_pct"].notna()]
    if not factors or there.empty:
        return {}
    order = figures.strongest(found, factors)
    best = there.groupby("scheduler", sort=False)["gain_pct"].mean().idxmax()
    drawn = {
        "gain-map": functools.partial(figures.gain_map, means, order[:2], reference),
        "parallel": functools.partial(figures.parallel_factors, means, order, reference, best),
    }
    if not found.empty and found["effect_pct"].notna().any():
        drawn["effects"] = functools.partial(figures.factor_effects, found, reference)
    return drawn


def sweep_table(summary: dict[str, Any]) -> str:
    """The schedulers of a sweep for the terminal."""
    table = Table(title=f"gain over {summary['reference']}", title_justify="left")
    table.add_column("scheduler")
    for name in ("scenarios", "gain [%]", "95 % interval", "step [s]", "tokens/s"):
        table.add_column(name, justify="right")
    for row in summary["schedulers"]:
        ends = [_number(row[key], 2) for key in ("gain_lo_pct", "gain_hi_pct")]
        table.add_row(
            row["scheduler"],
            f"{row['scenarios']:,}",
            _number(row["gain_pct"], 2),
            "-" if "-" in ends else " to ".join(ends),
            _number(row["step_s"], 2),
            _number(row["tokens_per_s"], 0),
        )
    return as_text(table)


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:,.{decimals}f}"
