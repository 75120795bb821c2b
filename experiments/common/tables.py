"""Tables for the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table


def scheduler_table(summary: dict) -> str:
    """The schedulers of an evaluation, best first, as text."""
    head = summary["headroom"]
    title = (
        f"{head['n_kept']} of {head['n_scenarios']} scenarios "
        f"({100 * head['share_of_scenarios']:.0f} %) have >= {head['threshold_pct']:g} % headroom"
    )
    table = Table(title=title, caption=_coverage(summary))
    rows = summary["schedulers"]
    worths = [row.get("efficiency") for row in rows.values()]
    differ = any(worth is not None and worth < 0.9999 for worth in worths)
    columns = (
        "scheduler",
        "headroom\n%",
        "progress\n% of clairvoyant",
        "95 % interval",
        "step\ns",
        *(("tokens/s", "a token is worth\n(95 % band)", "effective\ntokens/s") if differ else ()),
        "utilisation\n%",
        "WAN\nGB/step",
        "USD per M\neffective" if differ else "USD per\nM tokens",
        "re-plans",
        "decision\nms",
    )
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    regret = {n: row["regret_pct"] for n, row in rows.items()}
    for name in sorted(rows, key=lambda n: _last(regret[n])):
        table.add_row(name, *_cells(rows[name], differ))
    same = _nothing_to_decide(rows, lambda row: row.get("tokens_per_s"))
    dear = _beyond_budget(rows, summary.get("scenario", {}).get("budget"))
    return as_text(table, WIDTH + 48 if differ else WIDTH) + (f"{NOTHING}\n" if same else "") + dear


def best_plan_text(plan: dict | None) -> str:
    """The best plan of an evaluation, whole."""
    if plan is None:
        return "best plan on the links as the cluster file states them: none can run\n"
    lines = [
        f"best plan on the links as the cluster file states them, {plan['tokens_per_s']:,.0f} tokens/s:"
    ]
    if "tokens_per_s_lo" in plan:
        ends = f"{plan['tokens_per_s_lo']:,.0f} to {plan['tokens_per_s_hi']:,.0f} tokens/s"
        lines.append(f"  90 % band {ends}")
        memory = f"{plan['memory_gb']:.0f} GB, 90 % band up to {plan['memory_gb_hi']:.0f} GB"
        lines.append(f"  the fullest GPU holds {memory}")
        lines += [f"  note: {doubt}" for doubt in plan["doubts"]]
    for number, pipeline in enumerate(plan["pipelines"], start=1):
        stages = (
            f"{d['domain']} ({d['layers']} layers, tp {d['tp']}, pp {d['pp']})"
            for d in pipeline["domains"]
        )
        lines += [
            f"  pipeline {number}: {' > '.join(stages)}",
            f"    dp {pipeline['dp']}, {pipeline['micro_batches']} micro-batches of "
            f"{pipeline['micro_batch']} each, recompute {pipeline['recompute']}, schedule "
            f"{pipeline['schedule']}",
        ]
    if "probability_best" in plan:
        lines.append(f"  best with probability {plan['probability_best']:.2f}, as far as bands say")
    for tie in plan.get("near_ties", ()):
        where = "; ".join(_places(pipeline) for pipeline in tie["pipelines"])
        lines.append(
            f"  near tie: {tie['tokens_per_s']:,.0f} tokens/s, best with probability "
            f"{tie['probability_best']:.2f}: {where}"
        )
    return "\n".join(lines) + "\n"


def _beyond_budget(rows: dict[str, dict], budget: float | None) -> str:
    """Who spends more than the budget in the mean while training: what they gain by that is none."""
    if budget is None:
        return ""
    usd_per_hour = {
        name: 3600e-6 * row["tokens_per_s"] * row["usd_per_mtoken"]
        for name, row in rows.items()
        if row.get("tokens_per_s") is not None and row.get("usd_per_mtoken") is not None
    }
    beyond = [f"{name} ({usd:.2f})" for name, usd in usd_per_hour.items() if usd > 1.01 * budget]
    if not beyond:
        return ""
    return (
        f"beyond the budget of {budget:g} USD/h, so that their regret is of another question: "
        f"{', '.join(beyond)}\n"
    )


def _places(pipeline: dict) -> str:
    return " > ".join(stage["domain"] for stage in pipeline["domains"])


def _nothing_to_decide(rows: dict[str, dict], value: Callable[[dict], float | None]) -> bool:
    """Do several schedulers all come to the same?"""
    values = [value(row) for row in rows.values()]
    known = [x for x in values if x is not None]
    same = len(known) == len(values) and np.ptp(known) <= 1e-4 * max(1e-9, abs(known[0]))
    return len(values) > 1 and bool(same)


CONTROL_PCT = 1.0  # headroom below which a scene is a control
NOTHING = "nothing to decide here: all schedulers come to the same"


def suite_table(summary: dict) -> str:
    """The schedulers of every scene of a suite, best first, as text."""
    table = Table(title=f"suite {summary['suite']}: {summary['wall_s'] / 60:.1f} minutes")
    columns = ("scene", "scheduler", "headroom\n%", "regret\n%", "95 % interval", "to bound\n%")
    for i, name in enumerate((*columns, "completion\nx alone")):  # the last is of many jobs
        table.add_column(name, justify="left" if i < 2 else "right")
    worth, controls = by_headroom(summary["scenes"])
    for scene in (*worth, *controls):
        rows = summary["scenes"][scene]["schedulers"]
        table.add_section()

        def rank(name, rows=rows):
            return _last(rows[name]["regret_pct"]), _last(_completion(rows[name]))

        for i, name in enumerate(sorted(rows, key=rank)):
            said = f"{scene} (control)" if scene in controls else scene
            table.add_row("" if i else said, name, *_scene_cells(rows[name]))
    same = [
        scene
        for scene, result in summary["scenes"].items()
        if _nothing_to_decide(
            result["schedulers"], lambda row: _completion(row) or row.get("tokens_per_s")
        )
    ]
    text = as_text(table) + "".join(f"{scene}: {NOTHING}\n" for scene in same)
    if controls:
        text += (
            f"controls, with less than {CONTROL_PCT:g} % to gain over the best static plan: "
            f"{', '.join(controls)}\n"
        )
    return text + _means_text(summary.get("means", {}), summary["scenes"], len(worth))


def _means_text(means: dict[str, dict], scenes: dict[str, dict], n: int) -> str:
    """The schedulers in the mean over the scenes worth deciding in; what the first of those that
    learn gains over the others."""
    if not means:
        return ""
    learned = {name for result in scenes.values() for name in result.get("paired", ())}
    policy = next((name for name in means if name in learned), None)
    table = Table(title=f"in the mean over {n} scenes, which weigh alike")
    for i, name in enumerate(("scheduler", "regret\n%", "95 % interval")):
        table.add_column(name, justify="left" if i == 0 else "right")
    for name in (f"{policy} gains\npoints", "95 % interval") if policy else ():
        table.add_column(name, justify="right")
    for name in sorted(means, key=lambda name: means[name]["regret_pct"]):
        row = means[name]
        cells = [f"{row['regret_pct']:.1f}", _interval(*row["regret_ci95_pct"])]
        if policy is not None and name != policy:
            gain, low, high = means[policy]["gain_over_pct"][name]
            cells += [f"{gain:.2f}", _interval(low, high, "{:.2f}")]
        table.add_row(name, *cells)
    return as_text(table)


def by_headroom(scenes: dict[str, dict]) -> tuple[list[str], list[str]]:
    """The scenes worth deciding in, and the controls: those with hardly anything to gain."""
    gains = {}
    for scene, result in scenes.items():
        row = result["schedulers"].get("best_static") or {}
        gains[scene] = row.get("headroom_pct")
    controls = [s for s, gain in gains.items() if gain is not None and gain < CONTROL_PCT]
    return [s for s in scenes if s not in controls], controls


def _last(value: float | None) -> float:
    """A sort key that puts missing values last."""
    return np.inf if value is None else value


def _scene_cells(row: dict) -> list[str]:
    low, high = row["regret_ci95_pct"] or (None, None)
    return [
        _cell(row["headroom_pct"], "{:.1f}"),
        _cell(row["regret_pct"], "{:.1f}"),
        _interval(low, high),
        _cell(row["bound_pct"], "{:.1f}"),
        _cell(_completion(row), "{:.2f}"),
    ]


def _completion(row: dict) -> float | None:
    return row.get("jobs", {}).get("jct_normalised_mean")


WIDTH = 144


def as_text(table: Table, width: int = WIDTH) -> str:
    """A table as wide as the terminal, or `width` where that is more, without colours."""
    console = Console(width=max(width, shutil.get_terminal_size().columns), color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def _interval(low: float | None, high: float | None, form: str = "{:.1f}") -> str:
    """One scenario has no interval."""
    known = low is not None and high is not None and np.isfinite([low, high]).all()
    return f"{form.format(low)} to {form.format(high)}" if known else "-"


def _cell(value, form: str) -> str:
    return "-" if value is None else form.format(value)


def _coverage(summary: dict) -> str | None:
    """What clairvoyant and replan_oracle are exact over, where the summary says it."""
    info = summary.get("scenario", {}).get("table")
    if info is None:
        return None
    table, scored, whole = (info[f"plans_{n}"] for n in ("in_table", "scored", "in_family"))
    return (
        f"oracles: exact over a table of {table:,} plans; the bound is over the best "
        f"{info['bound_over']:,} plans with lower choices of the {scored:,} scored, of {whole:.4g} "
        "in the family"
    )


def _cells(row: dict, differ: bool) -> list[str]:
    """The cells of a scheduler; `differ`: is a token worth less to some?"""
    low, high = row["regret_ci95_pct"]
    worth, price = [], "usd_per_mtoken"
    if differ:
        price = "usd_per_effective_mtoken"
        worth = [
            (row["tokens_per_s"], "{:,.0f}"),
            (_worth(row), "{}"),
            (row["effective_tokens_per_s"], "{:,.0f}"),
        ]
    values = [
        (row["headroom_pct"], "{:.1f}"),
        (None if row["regret_pct"] is None else 100 - row["regret_pct"], "{:.1f}"),
        (None if low is None else _interval(100 - high, 100 - low), "{}"),
        (row["step_s"], "{:.1f}"),
        *worth,
        (None if row["utilisation"] is None else 100 * row["utilisation"], "{:.1f}"),
        (row["wan_gb_per_step"], "{:.1f}"),
        (row[price], "{:.3f}"),
        (row["replans"], "{:.1f}"),
        (row["decision_ms_p50"], "{:.2f}"),
    ]
    return [_cell(value, form) for value, form in values]


def tie_text(tie: float, first: float) -> str:
    """Where two plans tie, the first's tokens being worth `first` of those of the best training."""
    beside = "of one of the first" if first == 1.0 else f"(one of the first is worth {first:.2f})"
    return f"tie where a token of the second is worth {tie:.2f} {beside}"


def _worth(row: dict) -> str | None:
    """What a token is worth, with the band that scenarios drew from."""
    if row["efficiency"] is None:
        return None
    low, high = row["efficiency_band"]
    return f"{row['efficiency']:.2f} ({low:.2f} to {high:.2f})"


def jobs_table(summary: dict) -> str:
    """The schedulers of an evaluation with many jobs, shortest completion first, as text."""
    scenario = summary["scenario"]
    title = f"{scenario['n_counted']} of {scenario['n_jobs']} jobs arrive in time"
    title = f"{title}, links shared {scenario['sharing']}"
    rows = summary["schedulers"]
    most = max(row["jobs"]["overcommitted"] for row in rows.values())
    caption = (
        f"behind: completion less that of {summary['best']}, paired over scenarios; GPUs held beyond "
        f"the available ones: {most} at most"
    )
    table = Table(title=f"{title}, {scenario['seeds']} scenarios", caption=caption)
    columns = (
        "scheduler",
        "completion\nx alone",
        "behind the best\n(95 % interval)",
        "completion\nh",
        "queueing\nh",
        "makespan\nh",
        "unfinished\njobs",
        "utilised\n%",
        "fairness\n(Jain)",
        "re-plans\nper job",
    )
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    for name in sorted(rows, key=lambda n: rows[n]["jobs"]["jct_normalised_mean"]):
        table.add_row(name, *_jobs_cells(rows[name]))
    same = _nothing_to_decide(rows, _completion)
    return as_text(table) + (f"{NOTHING}\n" if same else "")


def _jobs_cells(row: dict) -> list[str]:
    jobs = row["jobs"]
    low, high = jobs["behind_best_ci95"]
    behind = f"{jobs['behind_best']:.2f}"
    if low is not None and np.isfinite(low):  # one scenario has no interval
        behind += f" ({low:.2f} to {high:.2f})"
    hours = (jobs[key] for key in ("jct_mean_s", "queueing_mean_s", "makespan_s"))
    return [
        f"{jobs['jct_normalised_mean']:.2f}",
        behind,
        *("-" if seconds is None else f"{seconds / 3600:.2f}" for seconds in hours),
        f"{jobs['unfinished']:.1f}",
        f"{100 * row['utilisation']:.1f}",
        f"{jobs['fairness']:.2f}",
        f"{row['replans']:.1f}",
    ]
