"""What a report says about a sweep: gains over the reference, and which factors make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis import figures
from analysis.figures import EFFECT_COLUMNS, POINT_COLUMNS
from analysis.records import RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.markdown import cell, fixed, interval, number, table

_DESIGNS = {"grid": "grid", "random": "random design", "latin_hypercube": "Latin hypercube"}
_SCHEDULERS = ("scheduler", "scenarios", "gain [%]", "95 % interval", "step [s]", "tokens/s")
_EFFECTS = ("scheduler", "factor", "from", "to", "effect [points]", "95 % interval")


def sweep_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """The schedulers over all points, the effects of the factors, and the pictures."""
    points = optional_table(record, "points", POINT_COLUMNS, "Sweep", notes)
    if points is None:
        return
    summary, config = record.summary, record.run["config"]
    reference = summary.get("reference") or str(points["scheduler"].iloc[0])
    factors = [name for name in summary.get("factors", []) if name in points.columns]
    design = _DESIGNS.get(str(config.get("design")), "design")
    redrawn = "scenarios" if config.get("design") == "grid" else "points"
    text = (
        f"A {design} of {number(points['point'].nunique())} points with "
        f"{number(config.get('scenarios'))} scenarios each of {number(config.get('steps'))} intervals. "
        f"A gain is over `{reference}` in the same scenario. Intervals are of the mean over all "
        f"points, over {redrawn}. What varies: {', '.join(factors) or 'nothing'}."
    )
    rows = [_scheduler(row) for row in summary.get("schedulers", [])]
    text += "\n\n" + table(_SCHEDULERS, rows)
    effects = _effects(record)
    if len(effects):
        text += (
            "\n\nAn effect says by how many percentage points the mean gain is higher at one level "
            "of a factor than at another, over all values of the other factors.\n\n"
        )
        text += table(_EFFECTS, [_effect(row) for row in effects.to_dict("records")], 4)
    yield Section("Sweep", text, tuple(_pictures(record, points, effects, factors, reference)))


def _effects(record: RunRecord) -> pd.DataFrame:
    """The table of effects, empty where no factor varies."""
    if "effects" not in record.tables():
        return pd.DataFrame(columns=list(EFFECT_COLUMNS))
    return record.table("effects", EFFECT_COLUMNS)


def _scheduler(row: dict[str, Any]) -> list[str]:
    between = interval([row.get("gain_lo_pct"), row.get("gain_hi_pct")], 2)
    measured = (fixed(row.get("step_s"), 2), fixed(row.get("tokens_per_s"), 0))
    scenarios = number(row.get("scenarios"))
    return [str(row["scheduler"]), scenarios, fixed(row.get("gain_pct"), 2), between, *measured]


def _effect(row: dict[str, Any]) -> list[str]:
    names = [cell(str(row[key])) for key in ("scheduler", "factor", "from_level", "to_level")]
    between = interval([row["effect_lo_pct"], row["effect_hi_pct"]], 2)
    return [*names, fixed(row["effect_pct"], 2), between]


def _pictures(
    record: RunRecord,
    points: pd.DataFrame,
    effects: pd.DataFrame,
    factors: list[str],
    reference: str,
) -> Iterator[Picture]:
    """None where no factor varies or nobody is compared."""
    others = points[(points["scheduler"] != reference) & points["gain_pct"].notna()]
    if not factors or others.empty:
        return
    order = figures.strongest(effects, factors)
    drawn = drawn_from(record, "points", figures.gain_map, points, order[:2], reference)
    caption = (
        f"Mean gain over {reference} by the two factors of the largest effect. "
        "A dash stands where there is no point."
    )
    yield Picture("gain-map", drawn, caption)
    best = others.groupby("scheduler", sort=False)["gain_pct"].mean().idxmax()
    args = (points, order, reference, best)
    drawn = drawn_from(record, "points", figures.parallel_factors, *args)
    caption = (
        f"Every point of the design over its factors, and what {best} gains there over {reference}. "
        "The quarter of the points with the highest gain is dark."
    )
    yield Picture("parallel", drawn, caption)
    if effects["effect_pct"].notna().any():
        drawn = drawn_from(record, "effects", figures.factor_effects, effects, reference)
        caption = "Change of the mean gain from the first level to the second, with 95 % intervals."
        yield Picture("effects", drawn, caption)
