"""The command: the scoreboards of all settings, measured one after another, and their records."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import pandas as pd

from agents.registry import rivals_with_rules
from analysis.records import RunWriter
from experiments.common import check_output, progress, put_result, side_by_side
from experiments.kpi.config import KpiConfig
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
    """Measure, print the scoreboards, keep the records. Raises InputError, RecordError."""
    if config.json not in (None, "-"):
        check_output(config.json, "--json")
    RunWriter.check("kpi", config.out)
    boards = [Scoreboard(config, setting) for setting in config.settings]
    make_tables(boards)
    body = {k: v for k, v in dataclasses.asdict(config).items() if k != "dry_run"}
    with RunWriter.create("kpi", body, config.seeds, config.out) as writer:
        summary = measure(config, boards, writer)
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
        "scenarios to tune on": config.tuning_scenarios,
        "intervals each": config.scenario.horizon,
    }
    tell_dry("kpi", dataclasses.asdict(config), work, config.json)


def make_tables(boards: list[Scoreboard]) -> None:
    """All tables of all settings; with nothing compiled before, minutes."""
    parts = [part for board in boards for part in board.tables().items()]
    with progress(desc="kpi", total=len(parts), unit="table") as bar:

        def shown(what: str, make: Callable[[], Any]) -> None:
            bar.set_postfix_str(what)
            make()
            bar.update()

        side_by_side([functools.partial(shown, *part) for part in parts])


def measure(config: KpiConfig, boards: list[Scoreboard], writer: RunWriter) -> dict[str, Any]:
    """Measure everything, write the tables, return the summary."""
    start = time.perf_counter()
    ours, theirs, coverages, best = [], [], [], {}
    rows, episodes, fronts = [], [], []
    for board in boards:
        (policy, own), *others = board.run().items()
        name, rival = others[0] if others else (policy, own)  # the policy is its own best rival
        best[board.setting] = name
        ours, theirs = ours + own, theirs + rival
        coverages += board.coverages()
        rows += [
            {"scheduler": n, **_flat(r)} for n, rs in {policy: own, name: rival}.items() for r in rs
        ]
        episodes += board.frames
        # What is measured is kept, whatever becomes of the next setting.
        writer.write_table("kpis", pd.DataFrame(rows))
        writer.write_table("coverage", pd.DataFrame([_flat(row) for row in coverages]))
        fronts.append(board.trade_offs)
        writer.write_table("fronts", pd.concat(fronts, ignore_index=True))
        if episodes:
            writer.write_table("episodes", pd.concat(episodes, ignore_index=True))
    first = boards[0]
    return {
        "policy": first.policy,
        "kpis": ours,
        "non_learned": {"scheduler": best, "kpis": theirs},
        "coverage": coverages,
        "scenario": {
            "clusters": first.about()["clusters"],
            "tables": {board.setting: board.about()["tables"] for board in boards},
            "tuned": {board.setting: board.about()["tuned"] for board in boards},
            "model": config.model,
            "seeds": config.seeds,
            "settings": dataclasses.asdict(config.scenario),
            "candidates": first.candidates,
            "nominated": list(rivals_with_rules()),
        },
        "wall_s": time.perf_counter() - start,
    }


def _flat(row: dict) -> dict[str, Any]:
    """A row of kpis.csv or coverage.csv."""
    kept = {k: v for k, v in row.items() if k not in LEFT_OUT}
    return {**kept, "lo": row["ci95"][0], "hi": row["ci95"][1], **{k: row.get(k) for k in FURTHER}}
