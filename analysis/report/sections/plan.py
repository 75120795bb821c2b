"""What a report says about a plan: the best synchronous one and the best of any, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from analysis import figures
from analysis.records import RecordError, RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from
from analysis.report.sections.markdown import MISSING, cell, fixed, number, table

_SETTINGS = {"synchronous": "best synchronous plan", "any": "best of any plan"}


def plan_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Both plans in a table, the map, the trade-off of speed and price where it was asked for.

    Raises:
        RecordError: when the summary holds no plans.
    """
    told = record.summary.get("alternatives")
    if not isinstance(told, dict) or not told:
        path, status = record.dir / "summary.json", record.run["status"]
        raise RecordError(
            f"{path}: lacks the keys ['alternatives'] (the run's status is {status!r})"
        )
    asked = record.summary.get("asked") or {}
    text = (
        f"{cell(asked.get('model'))} with {number(asked.get('global_batch'))} sequences of "
        f"{number(asked.get('seq'))} tokens a step, on {cell(asked.get('cluster'))}. Square brackets "
        "hold the 90 % band of what is not known of the calibration. What no plan can do is a dash."
    )
    pictures = []
    if any(told.values()):
        drawn = drawn_from(record, "summary.json", figures.plan_map, record.summary)
        caption = (
            "Domains lie as far apart as their round trips. Colours and numbers tell the groups; "
            "arrows are the links in use, as wide as they are busy."
        )
        pictures.append(Picture("plan", drawn, caption))
    else:
        notes.append(f"Map of the plan: no plan of {record.dir} can run.")
    if record.summary.get("pareto"):
        drawn = drawn_from(record, "summary.json", figures.plan_front, record.summary)
        caption = "Plans of which none is both faster and cheaper."
        pictures.append(Picture("pareto", drawn, caption))
    yield Section("The plan", f"{text}\n\n{_both(told)}", tuple(pictures))


def _both(told: dict[str, dict | None]) -> str:
    shown = [name for name in _SETTINGS if name in told]
    rows = [
        [title, *(MISSING if told[name] is None else show(told[name]) for name in shown)]
        for title, show in _ROWS.items()
    ]
    return table(["what", *(_SETTINGS[name] for name in shown)], rows)


def _number(key: str) -> Callable[[dict], str]:
    return lambda one: number(one.get(key))


def _banded(key: str) -> Callable[[dict], str]:
    def show(one: dict) -> str:
        band = one.get(f"{key}_band")
        return number(one.get(key)) + (f" [{number(band[0])}, {number(band[1])}]" if band else "")

    return show


_ROWS: dict[str, Callable[[dict], str]] = {
    "plan": lambda one: cell(one["plan"]["label"]),
    "groups talk": lambda one: cell(one.get("talks")),
    "step time [s]": _banded("step_s"),
    "tokens/s": _number("tokens_per_s"),
    "a token is worth": _banded("efficiency"),
    "effective tokens/s": _banded("effective_tokens_per_s"),
    "USD per hour": _number("usd_per_hour"),
    "USD / effective million tokens": _number("usd_per_effective_mtoken"),
    "days": _banded("days"),
    "USD": _banded("usd"),
    "fullest GPU [GB]": _number("memory_gb_max"),
    "WAN [GB/step]": _number("wan_gb_per_step"),
    "bound by": lambda one: cell((one.get("bound_by") or {}).get("part")),
    "share of the step that bounds it [%]": lambda one: fixed(
        None if not one.get("bound_by") else 100 * one["bound_by"]["share"]
    ),
}
