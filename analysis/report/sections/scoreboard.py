"""What a report says about the key figures, and about a suite of scenes."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis import figures
from analysis.figures import FRONT_COLUMNS, KPI_COLUMNS, SCENE_COLUMNS
from analysis.records import RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.markdown import fixed, interval, number, table
from analysis.statistics import front_note


def kpi_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """The scoreboard: how many KPIs pass, every row, and the picture."""
    kpis = optional_table(record, "kpis", KPI_COLUMNS, "Key figures", notes)
    if kpis is None:
        return
    if "setting" not in kpis.columns:  # runs from before there were two
        kpis = kpis.assign(setting="synchronous")
    for setting, rows in kpis.groupby("setting", sort=False):
        yield _kpi_section(record, str(setting), rows)
    if "fronts" in record.tables():  # not in runs of older versions
        fronts = record.table("fronts", FRONT_COLUMNS)
        for setting, rows in fronts.groupby("setting", sort=False):
            yield _front_section(record, str(setting), rows)


def _front_section(record: RunRecord, setting: str, fronts: pd.DataFrame) -> Section:
    """What can be traded: the plans on the front of the first scenario, and who settles where."""
    title = "Trade-offs, any plan" if setting == "any" else "Trade-offs, synchronous plans"
    text = (
        "The first scenario of each cluster, on links that stand still. Time, WAN bytes and price are "
        "of tokens as much as they are worth."
    )
    drawn = drawn_from(record, "fronts", figures.trade_offs, fronts)
    caption = (
        "Grey discs: plans that no other beats in all three. Marks: where schedulers settle, asked for "
        "each preference."
    )
    name = "trade-offs-any" if setting == "any" else "trade-offs"
    return Section(title, text, (Picture(name, drawn, caption),))


def _kpi_section(record: RunRecord, setting: str, kpis: pd.DataFrame) -> Section:
    """One setting: which plans are allowed."""
    text = [_passed(kpis)]
    for name, rows in kpis.groupby("scheduler", sort=False):
        text.append("\n\n".join([f"**{name}**", _kpi_rows(rows), *_on_fronts(rows)]))
    text.append(
        "Best possible is what clairvoyant reaches against the same rival (for WAN cost the better "
        "of clairvoyant and a plan that stays in one domain; for jitter robustness and load stability "
        "clairvoyant's own figure; for many jobs what each would reach alone on the idle cluster). "
        "Out of reach means that neither the value nor that meets the target: it is no pass."
    )
    drawn = drawn_from(record, "kpis", figures.key_figures, kpis)
    caption = (
        "Values with 95 % intervals, the target (dashed) and the best possible (open square). "
        "Savings and shares are to lie to the right of the target, times and losses to its left."
    )
    several = setting == "any"
    title = "Key figures, any plan" if several else "Key figures, synchronous plans"
    picture = Picture("key-figures-any" if several else "key-figures", drawn, caption)
    return Section(title, "\n\n".join(text), (picture,))


def _passed(kpis: pd.DataFrame) -> str:
    """One sentence per scheduler; a KPI passes if all of its rows do."""
    lines = []
    for name, rows in kpis.groupby("scheduler", sort=False):
        good = rows.assign(good=rows["status"] == "pass").groupby("name", sort=False)["good"].all()
        passed = ", ".join(good[good].index) or "none"
        lines.append(f"**{name}** passes {int(good.sum())} of {len(good)} KPIs: {passed}.")
    return " ".join(lines)


def _kpi_rows(rows: pd.DataFrame) -> str:
    header = ["KPI", "part", "against", "target", "value", "95 % interval", "best possible"]
    body = [
        [
            row.name,
            _text(row.part),
            _text(row.rival),
            f"{number(row.target)} {row.unit}",
            fixed(row.value, _digits(row.unit)),
            interval([row.lo, row.hi], _digits(row.unit)),
            fixed(row.headroom, _digits(row.unit)),
            row.status.replace("_", " "),
        ]
        for row in rows.itertuples(index=False)
    ]
    return table([*header, "status"], body, text_columns=3)


def _on_fronts(rows: pd.DataFrame) -> Iterator[str]:
    """What the figures on the Pareto front are of, where the run says it."""
    if "plans_scored" not in rows.columns:
        return
    for row in rows[rows["hypervolume_ratio"].notna()].itertuples(index=False):
        counts = int(row.plans_scored), int(row.plans_in_family)
        yield front_note(row.rival, row.front_size, *counts, row.hypervolume_ratio)


def _text(value) -> str:
    return value if isinstance(value, str) else ""


def _digits(unit: str) -> int:
    return 1 if unit == "%" else 3


def suite_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Every scene's schedulers, least regret first, and the picture."""
    scenes = optional_table(record, "scenes", SCENE_COLUMNS, "Scenes", notes)
    if scenes is None:
        return
    if "jct_normalised" not in scenes.columns:  # runs from before there were scenes of many jobs
        scenes = scenes.assign(jct_normalised=float("nan"))
    text = (
        "Headroom is what clairvoyant gains over the scheduler, regret what the scheduler lacks of "
        "clairvoyant, on the same scenarios; intervals are paired, over scenarios and policy seeds. "
        "Of many jobs, for which no optimum is known, stands the mean completion time in units of "
        "what each job would need alone."
    )
    whole = text + "\n\n" + _scene_rows(scenes)
    scenes = scenes[scenes["jct_normalised"].isna()]  # many jobs have no regret to draw
    if scenes.empty:
        yield Section("Scenes", whole)
        return
    summaries = record.summary.get("scenes", {}).values()
    learned = {name for one in summaries for name in one.get("paired") or {}}
    drawn = drawn_from(record, "scenes", figures.suite_regrets, scenes, sorted(learned))
    caption = (
        "Regret to clairvoyant of every scheduler in every scene: mean and 95 % interval. Black "
        "diamond: learned. Open square: sees the truth. Circle: rival."
    )
    pictures = (Picture("suite", drawn, caption),)
    yield Section("Scenes", whole, pictures)
    means = record.summary.get("means")  # not in runs of older versions
    if means:
        yield Section("In the mean over the scenes", _mean_rows(means, sorted(learned)))


def _mean_rows(means: dict[str, dict], learned: list[str]) -> str:
    """Regret, and what each policy gains over the others."""
    policies = [name for name in learned if name in means]
    header = ["scheduler", "regret [%]", "95 % interval"]
    header += [text for name in policies for text in (f"{name} gains [%]", "95 % interval")]
    body = []
    for name in sorted(means, key=lambda name: means[name]["regret_pct"]):
        row = [name, fixed(means[name]["regret_pct"]), interval(means[name]["regret_ci95_pct"])]
        for policy in policies:
            gain, *bounds = means[policy]["gain_over_pct"].get(name, (None, None, None))
            row += [fixed(gain, 2), interval(bounds, 2)]
        body.append(row)
    text = "Scenes weigh alike; those with hardly anything to gain are left out."
    return text + "\n\n" + table(header, body)


def _scene_rows(scenes: pd.DataFrame) -> str:
    header = ["scene", "scheduler", "headroom [%]", "regret [%]", "95 % interval", "to bound [%]"]
    body = []
    for scene, rows in scenes.groupby("scene", sort=False):
        for row in rows.sort_values(["regret_pct", "jct_normalised"]).itertuples(index=False):
            body.append(
                [
                    str(scene),
                    row.scheduler,
                    fixed(row.headroom_pct),
                    fixed(row.regret_pct),
                    interval([row.regret_lo_pct, row.regret_hi_pct]),
                    fixed(row.bound_pct),
                    fixed(row.jct_normalised, 2),
                ]
            )
    return table([*header, "completion [x alone]"], body, text_columns=2)
