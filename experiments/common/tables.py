"""Tables for the terminal."""

from __future__ import annotations

import shutil

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
    columns = (
        "scheduler",
        "headroom\n%",
        "progress\n% of clairvoyant",
        "95 % interval",
        "step\ns",
        "utilisation\n%",
        "WAN\nGB/step",
        "USD per\nM tokens",
        "re-plans",
        "decision\nms",
    )
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    rows = summary["schedulers"]
    regret = {n: row["regret_pct"] for n, row in rows.items()}
    for name in sorted(rows, key=lambda n: _last(regret[n])):
        table.add_row(name, *_cells(rows[name]))
    return as_text(table)


def suite_table(summary: dict) -> str:
    """The schedulers of every scene of a suite, best first, as text."""
    table = Table(title=f"suite {summary['suite']}: {summary['wall_s'] / 60:.1f} minutes")
    columns = ("scene", "scheduler", "headroom\n%", "regret\n%", "95 % interval", "to bound\n%")
    for i, name in enumerate((*columns, "completion\nx alone")):  # the last is of many jobs
        table.add_column(name, justify="left" if i < 2 else "right")
    for scene, result in summary["scenes"].items():
        rows = result["schedulers"]
        table.add_section()

        def rank(name, rows=rows):
            return _last(rows[name]["regret_pct"]), _last(_completion(rows[name]))

        for i, name in enumerate(sorted(rows, key=rank)):
            table.add_row("" if i else scene, name, *_scene_cells(rows[name]))
    return as_text(table)


def _last(value: float | None) -> float:
    """A sort key that puts missing values last."""
    return np.inf if value is None else value


def _scene_cells(row: dict) -> list[str]:
    low, high = row["regret_ci95_pct"] or (None, None)
    return [
        _cell(row["headroom_pct"], "{:.1f}"),
        _cell(row["regret_pct"], "{:.1f}"),
        _cell(None if low is None else (low, high), "{0[0]:.1f} to {0[1]:.1f}"),
        _cell(row["bound_pct"], "{:.1f}"),
        _cell(_completion(row), "{:.2f}"),
    ]


def _completion(row: dict) -> float | None:
    return row.get("jobs", {}).get("jct_normalised_mean")


def as_text(table: Table) -> str:
    """A table as wide as the terminal, without colours."""
    console = Console(width=max(144, shutil.get_terminal_size().columns), color_system=None)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


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


def _cells(row: dict) -> list[str]:
    low, high = row["regret_ci95_pct"]
    values = [
        (row["headroom_pct"], "{:.1f}"),
        (None if row["regret_pct"] is None else 100 - row["regret_pct"], "{:.1f}"),
        (None if low is None else (100 - high, 100 - low), "{0[0]:.1f} to {0[1]:.1f}"),
        (row["step_s"], "{:.1f}"),
        (None if row["utilisation"] is None else 100 * row["utilisation"], "{:.1f}"),
        (row["wan_gb_per_step"], "{:.1f}"),
        (row["usd_per_mtoken"], "{:.3f}"),
        (row["replans"], "{:.1f}"),
        (row["decision_ms_p50"], "{:.2f}"),
    ]
    return [_cell(value, form) for value, form in values]


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
    return as_text(table)


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
