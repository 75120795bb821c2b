"""The scoreboard as text."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from analysis.statistics import front_note
from analysis.statistics import kpi as kpis
from experiments.common import as_text

COLUMNS = ("KPI", "against", "target", "best possible", "value", "95 % interval", "status")


def kpi_table(summary: dict) -> str:
    """The scoreboards of the policy and of the best rival, setting by setting, as text."""
    rival = summary["non_learned"]
    boards = []
    for setting, best in rival["scheduler"].items():
        plans = "any plan" if setting == "any" else f"{setting} plans"
        for name, rows in (
            (f"{summary['policy']}, {plans}", summary["kpis"]),
            (f"{best}, the best that is not learned, {plans}", rival["kpis"]),
        ):
            boards.append(_board(name, [row for row in rows if row["setting"] == setting]))
        boards.append(_fronts([r for r in summary["coverage"] if r["setting"] == setting], plans))
    return "\n".join(boards) + f"measured in {summary['wall_s'] / 60:.1f} minutes"


def _fronts(rows: list[dict], plans: str) -> str:
    """How well each scheduler that takes weights covers the front."""
    table = Table(title=f"Pareto coverage of schedulers that take weights, {plans}")
    for i, name in enumerate(("scheduler", "covered [%]", "95 % interval", "hypervolume ratio")):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        figures = _number(row["value"], 1, missing="not measured"), _interval(row["ci95"], 1)
        table.add_row(row["scheduler"], *figures, _number(row["hypervolume_ratio"], 2))
    return as_text(table)


def _board(title: str, rows: list[dict]) -> str:
    front = next(row for row in rows if row["name"] == kpis.COVERAGE.name)
    table = Table(title=title, caption=_on_front(front))
    for i, name in enumerate(COLUMNS):
        left = i < 2 or name == "status"
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    last = None
    for row in rows:
        if row["name"] != last:
            table.add_section()
        last = row["name"]
        goal = next(g for g in kpis.GOALS if (g.name, g.part) == (row["name"], row["part"]))
        sense = (">" if goal.at_least else "<") + ("" if goal.strict else "=")
        digits = 1 if row["unit"] == "%" else 3
        table.add_row(
            row["name"] if row["part"] is None else f"{row['name']}, {row['part']}",
            row["rival"] or "",
            f"{sense} {goal.target:g} {goal.unit}",
            _number(row["headroom"], digits),
            _number(row["value"], digits, missing="not measured"),
            _interval(row["ci95"], digits),
            row["status"],
        )
    return as_text(table)


def _on_front(row: dict) -> str | None:
    """What the figures on the Pareto front are of."""
    if row["hypervolume_ratio"] is None:
        return None
    counts = row["plans_scored"], row["plans_in_family"]
    return front_note(row["rival"], row["front_size"], *counts, row["hypervolume_ratio"])


def _number(value: float | None, digits: int, missing: str = "-") -> str:
    return missing if value is None else f"{value:.{digits}f}"


def _interval(ci95: list[float | None], digits: int) -> str:
    low, high = ci95
    known = low is not None and not np.isnan(low)
    return f"{low:.{digits}f} to {high:.{digits}f}" if known else ""
