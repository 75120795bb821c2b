"""What a report says about an evaluation: headroom, schedulers, gains, episode, traffic, reward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis import figures
from analysis.figures import (
    COMPARISON_COLUMNS,
    LINK_COLUMNS,
    ORACLES,
    REWARD_PLOT_COLUMNS,
    TIMELINE_COLUMNS,
    TRAFFIC_COLUMNS,
)
from analysis.records import RecordError, RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.markdown import fixed, interval, number, table
from analysis.statistics import with_headroom

SCENARIO_COLUMNS = tuple(dict.fromkeys(["headroom_pct", *COMPARISON_COLUMNS, *REWARD_PLOT_COLUMNS]))
# Whose numbers differ by more than this [points] were not made from the same rows.
_SAME_PCT = 0.01
_CHOSEN = 4  # schedulers in the timeline and the traffic maps; more would not be readable


def evaluation_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Headroom and headline, gains, one episode, traffic, reward."""
    missing = [key for key in ("schedulers", "headroom") if not record.summary.get(key)]
    if missing:
        path, status = record.dir / "summary.json", record.run["status"]
        raise RecordError(f"{path}: lacks the keys {missing} (the run's status is {status!r})")
    what = "Schedulers compared, reward parts"
    scenarios = optional_table(record, "scenarios", SCENARIO_COLUMNS, what, notes)
    if scenarios is not None:
        scenarios = with_headroom(scenarios, record.summary["headroom"].get("threshold_pct"))
        if scenarios.empty:
            raise RecordError(f"{record.dir / 'scenarios.csv'}: no scenario has the headroom")
    yield _headline(record, scenarios)
    yield from _gains(record)
    yield from _episode(record, notes)
    yield from _traffic(record, notes)
    if scenarios is not None:
        yield _reward(record, scenarios)


def ranking(record: RunRecord) -> list[str]:
    """Schedulers of an evaluation by regret, the best first; those without a regret last."""
    regret = {name: row.get("regret_pct") for name, row in record.summary["schedulers"].items()}
    return sorted(regret, key=lambda name: float("inf") if regret[name] is None else regret[name])


def learned_names(record: RunRecord) -> list[str]:
    """The learned schedulers of an evaluation: those whose paired gains were recorded."""
    return [name for name in ranking(record) if name in (record.summary.get("paired") or {})]


def chosen_schedulers(record: RunRecord, present: Sequence[str]) -> list[str]:
    """The few that a picture can hold: clairvoyant, the learned, the best rival, best static."""
    ranked = [name for name in ranking(record) if name in present]
    learned = [name for name in ranked if name in learned_names(record)]
    rivals = [name for name in ranked if name not in learned and name not in ORACLES]
    wanted = ["clairvoyant", *learned[:1], *rivals[:1], "best_static", *learned[1:], *rivals[1:]]
    first = [name for name in dict.fromkeys(wanted) if name in ranked][:_CHOSEN]
    return [name for name in ranked if name in first]


def headroom_sentence(headroom: dict) -> str:
    """What there is to gain, before anybody gains it."""
    threshold = headroom.get("threshold_pct") or 0.0
    return (
        f"**Headroom.** In {number(headroom.get('n_kept'))} of "
        f"{number(headroom.get('n_scenarios'))} scenarios "
        f"({fixed(_percent(headroom.get('share_of_scenarios')))} %) clairvoyant gains at least "
        f"{threshold:g} % over the best static plan. Schedulers are "
        "compared on these; in the others there is next to nothing to decide."
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _progress(row: dict) -> tuple[str, str]:
    """Progress [% of clairvoyant's] and its interval, from regret and its interval."""
    regret, bounds = row.get("regret_pct"), row.get("regret_ci95_pct")
    progress = fixed(None if regret is None else 100 - regret)
    usable = bounds is not None and None not in bounds
    return progress, interval([100 - bounds[1], 100 - bounds[0]] if usable else None)


def _headline(record: RunRecord, scenarios: pd.DataFrame | None) -> Section:
    """The headroom, what the learned schedulers reach, the tables and the comparison."""
    further = "More measures, means over the same scenarios:\n\n" + _further_table(record)
    text = [headroom_sentence(record.summary["headroom"]), *_same_trace(record), *_claims(record)]
    text.append(_main_table(record))
    pictures = ()
    if scenarios is not None:
        text += _disagreements(record, scenarios)
        learned = learned_names(record)
        drawn = drawn_from(record, "scenarios", figures.schedulers_compared, scenarios, learned)
        caption = (
            "How far each scheduler got, in per cent of what clairvoyant got on the same scenario "
            "(dotted line). Marker: mean. Bar: 95 % bootstrap interval over scenarios and policy "
            "seeds. Ticks under it: single scenarios. These intervals include the differences "
            "between scenarios; the paired table shows whether one scheduler beats another."
        )
        pictures = (Picture("schedulers", drawn, caption),)
    return Section("Schedulers", "\n\n".join([*text, further]), pictures)


def _name(record: RunRecord, scheduler: str) -> str:
    return f"**{scheduler}**" if scheduler in learned_names(record) else scheduler


def _main_table(record: RunRecord) -> str:
    """The headline numbers of every scheduler, least regret first."""
    header = [
        "scheduler",
        "headroom [%]",
        "progress / clairvoyant's [%]",
        "95 % interval",
        "regret [%]",
        "to bound [%]",
        "step time [s]",
        "utilisation [%]",
        "WAN [GB/step]",
        "USD / million tokens",
        "decision p50 [ms]",
        "decision p99 [ms]",
        "replans",
    ]
    rows = []
    for name in ranking(record):
        row = record.summary["schedulers"][name]
        rows.append(
            [
                _name(record, name),
                fixed(row.get("headroom_pct")),
                *_progress(row),
                fixed(row.get("regret_pct")),
                fixed(row.get("bound_pct")),
                number(row.get("step_s")),
                fixed(_percent(row.get("utilisation"))),
                number(row.get("wan_gb_per_step")),
                number(row.get("usd_per_mtoken")),
                number(row.get("decision_ms_p50")),
                number(row.get("decision_ms_p99")),
                fixed(row.get("replans")),
            ]
        )
    return table(header, rows)


def _further_table(record: RunRecord) -> str:
    """What lies behind the headline numbers: speed, memory, links, overlap."""
    columns = {
        "tokens_per_s": ("tokens/s", number),
        "effective_tokens_per_s": ("effective tokens/s", number),
        "usd_per_effective_mtoken": ("USD / effective million tokens", number),
        "step_s_std": ("step time std [s]", number),
        "memory_utilisation": ("memory used [%]", lambda share: fixed(_percent(share))),
        "bandwidth_utilisation": ("WAN bandwidth used [%]", lambda share: fixed(_percent(share))),
        "comm_to_compute": ("communication / compute", number),
        "overlap": ("communication overlapped [%]", lambda share: fixed(_percent(share))),
    }
    rows = [
        [
            _name(record, name),
            *(
                show(record.summary["schedulers"][name].get(key))
                for key, (_, show) in columns.items()
            ),
        ]
        for name in ranking(record)
    ]
    return table(["scheduler", *(title for title, _ in columns.values())], rows)


def _same_trace(record: RunRecord) -> Iterator[str]:
    """What rivals were tuned on, where a recorded trace made the links move."""
    if (record.summary.get("scenario") or {}).get("trace"):
        yield (
            "**Trace.** The tunable rivals were tuned on the trace file that the schedulers are "
            "compared on, from other starting points: they have seen its kind of weather before."
        )


def _claims(record: RunRecord) -> Iterator[str]:
    """One sentence for each learned scheduler."""
    for name in learned_names(record):
        progress, bounds = _progress(record.summary["schedulers"][name])
        gains = record.summary["paired"][name].values()
        above = sum(verdict(gain["ci95"]) == "better" for gain in gains)
        yield (
            f"**{name}** reaches {progress} % of clairvoyant's progress (95 % interval {bounds}); "
            f"its paired gain is above zero, interval included, against {above} of the "
            f"{len(gains)} others."
        )


def _disagreements(record: RunRecord, scenarios: pd.DataFrame) -> Iterator[str]:
    """A warning for each scheduler whose mean in scenarios.csv is not the one in the summary."""
    means = 100 * (1 - scenarios.groupby("scheduler")["progress_rel"].mean())
    for name, row in record.summary["schedulers"].items():
        said, found = row.get("regret_pct"), means.get(name)
        if said is None or found is None or abs(said - found) > _SAME_PCT:
            yield (
                f"**Warning.** `summary.json` gives {name} a regret of {fixed(said, 2)} %, "
                f"`scenarios.csv` {fixed(found, 2)} %; the table shows the former, the figure the "
                "latter."
            )


def verdict(bounds: Sequence[float | None]) -> str:
    """What a paired interval says about the sign of a gain."""
    lo, hi = bounds
    if lo is None or hi is None:
        return "not measured"
    return "better" if lo > 0 else "worse" if hi < 0 else "not told apart"


def _gains(record: RunRecord) -> Iterator[Section]:
    header = ["against", "gain [points]", "95 % interval", "verdict"]
    for name in learned_names(record):
        gains = record.summary["paired"][name]
        rows = [
            [
                other,
                fixed(gains[other]["gain_pct"], 2),
                interval(gains[other]["ci95"], 2),
                verdict(gains[other]["ci95"]),
            ]
            for other in ranking(record)
            if other in gains
        ]
        text = (
            "Difference of progress on the same scenario (and policy seed), in points of "
            "clairvoyant's progress there, averaged over scenarios. An interval above zero means "
            f"that {name} is better.\n\n" + table(header, rows)
        )
        yield Section(f"Paired gains of {name}", text)


def _episode(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    what = "Timeline of one episode"
    timeline = optional_table(record, "timeline", TIMELINE_COLUMNS, what, notes)
    links = optional_table(record, "links", LINK_COLUMNS, what, notes)
    if timeline is None or links is None:
        return
    chosen = chosen_schedulers(record, list(timeline["scheduler"].unique()))
    drawn = drawn_from(record, "timeline", figures.episode_timeline, timeline, links, chosen)
    caption = (
        "One scenario on one time axis. Top: bandwidth of the links that move most (the others in "
        "pale grey). Middle: the plan each scheduler had in force; in a plan `a>b | c`, `a` and "
        "`b` form a pipeline and `c` is its data-parallel replica; hatched on white: moving to a "
        "new plan, no progress. Bottom: step time, with gaps while moving. A good scheduler "
        "changes its plan only where the gain below outweighs the hatched time."
    )
    yield Section("One episode", "", (Picture("timeline", drawn, caption),))


def _traffic(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    traffic = optional_table(record, "traffic", TRAFFIC_COLUMNS, "WAN traffic by link", notes)
    if traffic is None:
        return
    chosen = chosen_schedulers(record, list(traffic["scheduler"].unique()))
    drawn = drawn_from(record, "traffic", figures.traffic_map, traffic, chosen)
    caption = (
        "GB that one training step sends from the row's domain to the column's, mean over "
        "scenarios; all panels share one scale. Hatched: no such link. Compare which links a "
        "scheduler avoids."
    )
    yield Section("WAN traffic by link", "", (Picture("traffic", drawn, caption),))


def find_weights(tree: Any) -> list[float] | None:
    """The first four numbers found under a key `weights`, however deep in a configuration."""
    if not isinstance(tree, dict):
        return None
    found = tree.get("weights")
    if isinstance(found, str):
        found = found.split(",")
    if isinstance(found, list) and len(found) == 4:
        try:
            return [float(weight) for weight in found]
        except (TypeError, ValueError):
            return None
    return next((w for w in map(find_weights, tree.values()) if w is not None), None)


def _reward(record: RunRecord, scenarios: pd.DataFrame) -> Section:
    weights = find_weights(record.summary.get("scenario")) or find_weights(record.run["config"])
    learned = learned_names(record)
    drawn = drawn_from(record, "scenarios", figures.reward_parts, scenarios, weights, learned)
    said = "not recorded" if weights is None else ", ".join(f"{weight:g}" for weight in weights)
    caption = (
        "R = w1 R_eff + w2 R_util - w3 R_cost - w4 R_fair with weights (w1, w2, w3, w4) = "
        f"({said}). Left: the total (marker) and, as bars, what each part adds or takes where the "
        "weights account for it. Right: the parts before weighting, each on its own scale. Means "
        "with 95 % intervals."
    )
    return Section("The reward and its parts", "", (Picture("reward", drawn, caption),))
