"""The command: the scoreboards of all settings, measured one after another, and their records.

Of several settings each has a run folder of its own in the run's, so that a run goes on behind those
that are finished.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import pandas as pd
from tqdm import tqdm

from agents.registry import rivals_with_rules
from analysis.records import RunWriter, load
from experiments.common import check_output, progress, put_result, side_by_side
from experiments.kpi.config import KpiConfig, recorded
from experiments.kpi.scoreboard import Scoreboard
from experiments.kpi.table import kpi_table
from experiments.runs import tell_dry
from jaxsim.learning import read_efficiency
from jaxsim.load import read_jobs
from jaxsim.workload import load_model

FURTHER = (  # columns of kpis.csv that only some KPIs have
    *("hypervolume_ratio", "front_size", "plans_scored", "plans_in_family"),
    "n_jobs",
)
LEFT_OUT = ("ci95", "weights", *FURTHER)


def kpi(config: KpiConfig) -> None:
    """Measure, print the scoreboards, keep the records. Raises InputError, RecordError,
    KeyboardInterrupt."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    folder, resume = config.resume or config.out, config.resume is not None
    RunWriter.check("kpi", folder, resume)
    kept = kept_settings(config)
    # One at a time: two scoreboards take more memory than many a machine has.
    first = next((name for name in config.settings if name not in kept), None)
    board = None if first is None else ready(config, first)
    with RunWriter.create("kpi", recorded(config), config.seeds, folder, resume) as writer:
        try:
            for setting in config.settings:
                if setting not in kept:
                    board = board or ready(config, setting)
                    alone = len(config.settings) == 1
                    kept[setting] = record(board, config, None if alone else writer.dir / setting)
                    board = None
                    let_go()
                summary, tables = together([kept[s] for s in config.settings if s in kept])
                for name, table in tables.items():
                    writer.write_table(name, table)
        except KeyboardInterrupt:
            tqdm.write(f"interrupted; go on with --resume {writer.dir}", file=sys.stderr)
            raise
        writer.finish(summary)
    if put_result(summary, config.json):
        print(kpi_table(summary))
        print(f"run folder: {writer.dir}")


def dry_run(config: KpiConfig) -> None:
    """Check the files, say how much there is to measure and how long runs like it took. Raises
    InputError."""
    read_efficiency(config.efficiency)
    load_model(config.model)
    if config.jobs is not None:
        read_jobs(config.jobs)
    boards = [Scoreboard(config, setting) for setting in config.settings]
    first = boards[0]
    work = {
        "settings": len(boards),
        "clusters": len(first.files),
        "tables": sum(len(board.tables()) for board in boards),
        "candidates": len(first.candidates),
        "scenarios of each cluster": config.seeds,
        "scenarios of many jobs": config.jobs_seeds,
        "scenarios to tune on": config.tuning_scenarios,
        "intervals each": config.scenario.horizon,
    }
    tell_dry("kpi", dataclasses.asdict(config), work, config.json)


Measured = tuple[dict[str, Any], dict[str, pd.DataFrame]]  # a summary, and tables by name


def kept_settings(config: KpiConfig) -> dict[str, Measured]:
    """What a run that goes on has measured whole. Raises RecordError."""
    if config.resume is None or len(config.settings) == 1:
        return {}
    records = {}
    for setting in config.settings:
        folder = Path(config.resume) / setting
        if (folder / "run.json").is_file():
            record = load(folder)
            if record.run["status"] == "finished":
                records[setting] = record.summary, {n: record.table(n) for n in record.tables()}
    return records


def ready(config: KpiConfig, setting: str) -> Scoreboard:
    """The scoreboard of one setting with its tables; with nothing compiled before, minutes."""
    board = Scoreboard(config, setting)
    parts = board.tables()
    with progress(desc="kpi", total=len(parts), unit="table") as bar:

        def shown(what: str, make: Callable[[], Any]) -> None:
            bar.set_postfix_str(what)
            make()
            bar.update()

        side_by_side([functools.partial(shown, *part) for part in parts.items()])
    return board


def record(board: Scoreboard, config: KpiConfig, folder: Path | None) -> Measured:
    """Measure one setting; it is kept in `folder`, as if it had been measured alone, where one is
    given."""
    if folder is None:
        return measure(board, config)
    body = {**recorded(config), "allow": board.setting}
    with RunWriter.create("kpi", body, config.seeds, folder, folder.exists()) as writer:
        summary, tables = measure(board, config)
        for name, table in tables.items():
            writer.write_table(name, table)
        writer.finish(summary)
    return summary, tables


def let_go() -> None:
    """Give back the memory of a scoreboard that nobody holds any more, its programs included; what
    is needed again comes from the compile cache."""
    jax.clear_caches()
    gc.collect()


def measure(board: Scoreboard, config: KpiConfig) -> Measured:
    """Measure everything in one setting."""
    start = time.perf_counter()
    (policy, own), *others = board.run().items()
    best, theirs = others[0] if others else (policy, own)  # the policy is its own best rival
    coverages, about, setting = board.coverages(), board.about(), board.setting
    rows = [
        {"scheduler": name, **_flat(row)}
        for name, its in {policy: own, best: theirs}.items()
        for row in its
    ]
    tables = {
        "kpis": pd.DataFrame(rows),
        "coverage": pd.DataFrame([_flat(row) for row in coverages]),
        "fronts": board.trade_offs,
    }
    if board.frames:
        tables["episodes"] = pd.concat(board.frames, ignore_index=True)
    summary = {
        "policy": board.policy,
        "kpis": own,
        "non_learned": {"scheduler": {setting: best}, "kpis": theirs},
        "coverage": coverages,
        "scenario": {
            "clusters": about["clusters"],
            "tables": {setting: about["tables"]},
            "tuned": {setting: about["tuned"]},
            "model": config.model,
            "seeds": config.seeds,
            "settings": dataclasses.asdict(config.scenario),
            "candidates": board.candidates,
            "nominated": list(rivals_with_rules()),
        },
        "wall_s": time.perf_counter() - start,
    }
    return summary, tables


def together(kept: list[Measured]) -> Measured:
    """Several settings in one summary and in one table of each kind."""
    summaries, tables = zip(*kept, strict=True)
    first = summaries[0]
    scenario = {**first["scenario"]}
    for key in ("tables", "tuned"):
        scenario[key] = _joined(s["scenario"][key] for s in summaries)
    summary = {
        **first,
        "kpis": [row for s in summaries for row in s["kpis"]],
        "non_learned": {
            "scheduler": _joined(s["non_learned"]["scheduler"] for s in summaries),
            "kpis": [row for s in summaries for row in s["non_learned"]["kpis"]],
        },
        "coverage": [row for s in summaries for row in s["coverage"]],
        "scenario": scenario,
        "wall_s": sum(s["wall_s"] for s in summaries),
    }
    names = dict.fromkeys(name for some in tables for name in some)
    joined = {
        name: pd.concat([some[name] for some in tables if name in some], ignore_index=True)
        for name in names
    }
    return summary, joined


def _joined(mappings: Iterable[dict]) -> dict:
    return {key: value for mapping in mappings for key, value in mapping.items()}


def _flat(row: dict) -> dict[str, Any]:
    """A row of kpis.csv or coverage.csv."""
    kept = {k: v for k, v in row.items() if k not in LEFT_OUT}
    return {**kept, "lo": row["ci95"][0], "hi": row["ci95"][1], **{k: row.get(k) for k in FURTHER}}
