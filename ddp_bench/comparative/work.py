"""The comparative command: equal losses first, then turns on the clock, memory, moves and starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from analysis.records import RunWriter
from ddp_bench.comparative.entries import REFERENCE
from ddp_bench.comparative.frameworks import Task
from ddp_bench.comparative.group import Group, environment
from ddp_bench.comparative.judge import disagreement, global_losses
from ddp_bench.comparative.moves import move_all
from ddp_bench.comparative.outcome import Outcome
from ddp_bench.comparative.page import write_pages
from ddp_bench.comparative.settings import ComparativeSettings
from ddp_bench.toolbox import RanksFailed, table

Say = Callable[[str], None]
PREPARE_S = 600.0  # a compiler's


def work(settings: ComparativeSettings, writer: RunWriter, say: Say) -> dict:
    """Everything, in the order in which it is printed."""
    return _Comparison(settings, writer, say).result()


class _Comparison:
    """All frameworks of a run, and the groups of those that are alive."""

    def __init__(self, settings: ComparativeSettings, writer: RunWriter, say: Say) -> None:
        self._settings, self._writer, self._say = settings, writer, say
        self._task = Task(settings.model, settings.rows, settings.length, settings.seed)
        self._outcomes = {name: Outcome(entry) for name, entry in settings.entries().items()}
        self._groups: dict[str, Group] = {}
        self._logs = writer.dir / "logs"
        self._logs.mkdir()

    def result(self) -> dict[str, Any]:
        """Run all, print the table, write the pages."""
        settings = self._settings
        reference = self._reference()
        with ExitStack() as stack:
            for name in self._outcomes:
                self._admit(name, reference, stack)
            self._measure_memory()
            # Before the turns: behind them little of the loss is left, in which to see a difference.
            alive = {name: (self._outcomes[name], group) for name, group in self._groups.items()}
            move_all(alive, self._outcomes, settings.tolerance, self._say)
            for turn in range(settings.repeats):
                self._round(turn)
        self._start_again()
        rows = {name: one.row(settings.timed_steps) for name, one in self._outcomes.items()}
        self._print(rows)
        result = {
            "frameworks": rows,
            "reference_losses": reference,
            "tolerance": settings.tolerance,
            "repeats": settings.repeats,
            "timed_steps": settings.timed_steps,
        }
        write_pages(self._writer.dir, settings, result)
        return result

    def _group(self, name: str) -> Group:
        outcome = self._outcomes[name]
        return Group(outcome.entry, self._task, self._settings.timeout_s, self._logs / _file(name))

    def _reference(self) -> list[float]:
        """Losses of one process alone. RanksFailed where it fails."""
        self._say("reference: one process alone")
        logs = self._logs / "reference"
        with Group(REFERENCE, self._task, self._settings.timeout_s, logs) as group:
            return _first_losses(group, self._settings.steps)[0]

    def _admit(self, name: str, reference: list[float], stack: ExitStack) -> None:
        """Start a framework and compare its losses; it stays alive if they are equal."""
        outcome = self._outcomes[name]
        _prepare(outcome.entry.prepare)
        with ExitStack() as own:
            try:
                group = own.enter_context(self._group(name))
                outcome.losses, started = _first_losses(group, self._settings.steps)
            except (RanksFailed, ValueError) as error:
                outcome.why_not = str(error)
                self._say(f"{name}: not run: {outcome.why_not}")
                return
            outcome.starts.append(max(one["at_s"] for one in started) - group.started_s)
            outcome.imported = [one["imported_bytes"] for one in started]
            outcome.lines = started[0]["lines"]
            tolerance = self._settings.tolerance
            outcome.loss_error, wrong = disagreement(outcome.losses, reference, tolerance)
            outcome.losses_equal, outcome.why_not = wrong is None, wrong
            self._record_losses(name, outcome.losses)
            if wrong is None:
                self._groups[name] = group
                stack.enter_context(own.pop_all())
        error = "" if outcome.loss_error is None else f" ({outcome.loss_error:.1e})"
        self._say(f"{name}: {wrong or f'losses are equal{error}'}")

    def _record_losses(self, name: str, losses: list[float]) -> None:
        rows = [{"framework": name, "step": i, "loss": loss} for i, loss in enumerate(losses)]
        self._writer.append("losses", rows)

    def _round(self, turn: int) -> None:
        """One turn of every framework; each round begins with another one."""
        names = list(self._groups)
        first = turn % max(len(names), 1)
        steps = self._settings.timed_steps
        for name in names[first:] + names[:first]:
            try:
                seconds = max(self._groups[name].ask("time", steps=steps))
            except RanksFailed as error:
                self._lose(name, str(error))
                continue
            self._outcomes[name].seconds.append(seconds)
            row = {"framework": name, "turn": turn, "steps_per_s": steps / seconds}
            self._writer.append("turns", row)

    def _lose(self, name: str, why: str) -> None:
        self._groups.pop(name).close()
        self._outcomes[name].why_not = why
        self._say(f"{name}: {why}")

    def _measure_memory(self) -> None:
        for name in list(self._groups):
            try:
                self._outcomes[name].rss = self._groups[name].ask("memory")
            except RanksFailed as error:
                self._lose(name, str(error))

    def _start_again(self) -> None:
        """More starts, in rounds, of those that were timed."""
        names = [name for name, one in self._outcomes.items() if one.why_not is None]
        for turn in range(1, self._settings.starts):
            self._say(f"start {turn + 1} of {self._settings.starts}")
            for name in names:
                try:
                    with self._group(name) as group:
                        begun = group.ask("start")
                except RanksFailed as error:
                    self._outcomes[name].failed_starts.append(str(error))
                    self._say(f"{name}: start {turn + 1} failed: {error}")
                    continue
                seconds = max(one["at_s"] for one in begun) - group.started_s
                self._outcomes[name].starts.append(seconds)

    def _print(self, rows: dict[str, dict[str, Any]]) -> None:
        cells = []
        for name, row in rows.items():
            low, high = row["ci95"] or (None, None)
            rss = row["peak_rss_bytes"]
            cells.append(
                [
                    name,
                    row["loss_error"],
                    row["steps_per_s"],
                    low,
                    high,
                    max(rss) / 1e6 if rss else None,
                    row["config_lines"],
                    row["restart_s"],
                ]
            )
        header = ["framework", "loss error", "steps/s", "from", "to"]
        header += ["peak RSS [MB]", "lines", "restart [s]"]
        self._say(f"\n{table(header, cells)}\n")


def _first_losses(group: Group, steps: int) -> tuple[list[float], list[dict[str, Any]]]:
    """Losses of the first steps, and what ranks say of their start."""
    started = group.ask("start")
    rest = group.ask("losses", steps=steps - 1)
    pairs = zip(started, rest, strict=True)
    return global_losses([[first["loss"], *others] for first, others in pairs]), started


def _file(name: str) -> str:
    return name.replace(":", ".")


_PREPARED: set[str] = set()


def _prepare(module: str | None) -> None:
    """Run what compiles, once; what fails there fails again in the ranks, which say why."""
    if module is None or module in _PREPARED:
        return
    _PREPARED.add(module)
    command = [sys.executable, "-m", module]
    try:
        subprocess.run(
            command,
            env=environment(),
            cwd=Path.cwd(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PREPARE_S,
        )
    except subprocess.TimeoutExpired:
        return
