"""What a report says about real runs over an emulated network and their predictions."""

from __future__ import annotations

from collections.abc import Iterator

from analysis import figures
from analysis.figures import EFFICIENCY_COLUMNS, PROGRESS_COLUMNS, WAN_COLUMNS
from analysis.records import RunRecord
from analysis.report.sections.common import Picture, Section, drawn_from, optional_table
from analysis.report.sections.markdown import fixed, number, table

_FAMILIES = ("family", "runs", "median error [%]", "90th centile [%]", "bias [%]")
_CHOICES = ("condition", "predicted best", "measured best", "loss [%]", "Kendall's tau")
_WORST = ("condition", "plan", "measured [s]", "predicted [s]", "error [%]")


def wan_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Errors by family and condition, choices, changes of plan."""
    what = "Sim-to-real over an emulated network"
    runs = optional_table(record, "runs", WAN_COLUMNS, what, notes)
    if runs is None:
        return
    drawn = drawn_from(record, "runs", figures.wan_predictions, runs)
    caption = (
        "Step times that the simulator predicted and that real training over emulated links took, "
        "left against each other, right as errors by condition. Filled marks were predicted before "
        "they were measured; hollow ones are of conditions that the calibration has seen. Bars are one "
        "standard deviation over steps."
    )
    summary = record.summary
    text = (
        "Rows are step times on conditions that the calibration has not seen. Errors are of the "
        "prediction, in per cent of the measured time."
    )
    rows = [
        [
            name.replace("_", " "),
            number(x["n"]),
            *(fixed(x[key]) for key in ("median_ape_pct", "p90_ape_pct", "bias_pct")),
        ]
        for name, x in {**summary.get("families", {}), "all": summary["all"]}.items()
    ]
    chosen = [
        [name, x["chosen"], x["best"], fixed(x["loss_pct"]), fixed(x["kendall_tau"], 2)]
        for name, x in summary.get("choices", {}).items()
    ]
    worst = [
        [
            x["condition"],
            x["plan"],
            *(fixed(x[key], 3) for key in ("measured_s", "predicted_s")),
            fixed(x["error_pct"]),
        ]
        for x in summary.get("largest_errors", [])
    ]
    moves = summary["moves"]
    ends = (
        f"The synchronous plan predicted to be the fastest is within 5 % of the fastest in "
        f"{fixed(summary['choices_near_best_pct'], 0)} % of the conditions. {number(moves['n'])} "
        f"changes of plan stopped training for {fixed(moves['lost_s_median'], 2)} s in the median; "
        f"the median error of their prediction is {fixed(moves['median_ape_pct'])} %."
    )
    parts = [
        text,
        table(_FAMILIES, rows, 1),
        "Choices among synchronous plans, whose steps learn the same; Kendall's tau is of all plans:",
        table(_CHOICES, chosen, 3),
    ]
    parts += ["The largest errors:", table(_WORST, worst, 2), ends]
    yield Section(what, "\n\n".join(parts), (Picture("sim-to-real", drawn, caption),))


def efficiency_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Token efficiency at a small scale, beside the published fit."""
    what = "Token efficiency at this scale"
    losses = optional_table(record, "losses", ("arm", "seed", "tokens", "loss"), what, notes)
    arms = optional_table(record, "efficiency", EFFICIENCY_COLUMNS, what, notes)
    if losses is None or arms is None:
        return
    drawn = drawn_from(record, "efficiency", figures.wan_efficiency, losses, arms)
    text = (
        "An arm's token efficiency is the share of its tokens with which synchronous training in 32 "
        "bits reaches the same loss of held-out text. It may be 1 or more. The published fit is of "
        "models hundreds of times as large, trained for longer, and never exceeds 1: it is shown for "
        "scale."
    )
    rows = [
        [
            row.arm,
            f"{row.efficiency:.2f} ± {row.efficiency_half:.2f}",
            f"{row.published:.3f} ({row.published_low:.3f} to {row.published_high:.3f})",
            "yes" if row.extrapolated else "no",
        ]
        for row in arms.itertuples()
    ]
    head = ("arm", "measured, 95 % interval", "published, 95 % band", "beyond its data")
    caption = (
        "Left: loss of held-out text over tokens, mean and range of the seeds. Right: token efficiency "
        "with 95 % intervals, measured and by the published fit."
    )
    picture = Picture("token-efficiency", drawn, caption)
    yield Section(what, "\n\n".join([text, table(head, rows, 1)]), (picture,))


def end_to_end_sections(record: RunRecord, notes: list[str]) -> Iterator[Section]:
    """Real training steered by schedulers, beside what was foreseen."""
    what = "End to end: schedulers that steer real training"
    progress = optional_table(record, "progress", PROGRESS_COLUMNS, what, notes)
    if progress is None:
        return
    drawn = drawn_from(record, "progress", figures.wan_progress, progress)
    rows = [
        [
            x["scheduler"],
            *(fixed(x[k]) for k in ("measured_steps", "foreseen_steps", "along_steps")),
            *(number(x[k]) for k in ("replans", "foreseen_decisions")),
        ]
        for x in record.summary.get("schedulers", [])
    ]
    head = ("scheduler", "steps done", "foreseen", "along decisions taken")
    head += ("changes of plan", "foreseen changes")
    caption = (
        "Training steps done while a recorded trace moves the links; one run of each scheduler. "
        "Foreseen: by the simulator, before anything was trained."
    )
    yield Section(what, table(head, rows, 1), (Picture("end-to-end", drawn, caption),))
