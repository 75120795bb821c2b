"""The report of a data-parallel run: templates in two languages, filled from what was measured."""

from __future__ import annotations

import re
from importlib import resources

from analysis.records import RecordError
from analysis.report.ddp.findings import RIVAL, Findings
from analysis.report.ddp.tables import (
    ABSENT,
    LANGUAGES,
    accuracy_section,
    gain_table,
    gradient_section,
    modelled_section,
    overhead_table,
    quality_table,
    rival_section,
    setup_section,
    time_table,
    wall_table,
    with_interval,
)

FILES = {"en": "report.md", "zh": "report.zh.md"}
_HOLE = re.compile(r"\[\[([a-z_]+)\]\]")


def headline(found: Findings, language: str) -> str:
    """One sentence per arm: change of mean and P95 against the baseline."""
    lines = []
    for _, row in found.summary.sort_values("max_compute_ms_mean").iterrows():
        if row["arm"] == found.base:
            continue
        mean, tail = with_interval(row, "mean_change_pct"), with_interval(row, "p95_change_pct")
        if language == "en":
            lines.append(f"- `{row['arm']}`: mean {mean} %, P95 {tail} %")
        else:
            lines.append(f"- `{row['arm']}`：均值 {mean} %，P95 {tail} %")
    return "\n".join(lines)


CONCLUSIONS = {
    "fastest": (
        "Fastest was `{best}`: {mean:.1f} ms for the slowest rank on average, against "
        "{other:.1f} ms under `{base}`.",
        "最快的是 `{best}`：最慢卡平均 {mean:.1f} ms，而 `{base}` 为 {other:.1f} ms。",
    ),
    "padding": (
        "Deciding counts alone (`dynamic`) took {counts:.0f} % off; deciding membership too "
        "(`pooled`) took {members:.0f} % off: most of what could be saved was padding, not "
        "imbalance.",
        "只决定样本数（`dynamic`）节省 {counts:.0f} %，同时决定归属（`pooled`）节省 "
        "{members:.0f} %：可节省的大部分是填充，而非不均衡。",
    ),
    "balance": (
        "Deciding counts alone (`dynamic`) took {counts:.0f} % off, deciding membership too "
        "(`pooled`) {members:.0f} %: here balance mattered as much as padding.",
        "只决定样本数（`dynamic`）节省 {counts:.0f} %，同时决定归属（`pooled`）节省 "
        "{members:.0f} %：此处均衡与填充同样重要。",
    ),
}


def conclusion(found: Findings, language: str) -> str:
    """Which arm was fastest, and whether counts or membership mattered, in words."""
    at = LANGUAGES.index(language)
    times = found.summary.set_index("arm")["max_compute_ms_mean"]
    best = times.idxmin()
    said = [
        CONCLUSIONS["fastest"][at].format(
            best=best, mean=times[best], other=times[found.base], base=found.base
        )
    ]
    if {"dynamic", "pooled"} <= set(times.index):
        saved = 100 * (1 - times / times[found.base])
        counts, members = saved["dynamic"], saved["pooled"]
        which = "padding" if members > 1.5 * counts else "balance"
        said.append(CONCLUSIONS[which][at].format(counts=counts, members=members))
    return " ".join(said) if language == "en" else "".join(said)


def _notes(found: Findings, language: str) -> str:
    """What was replaced or repaired, and how differences are paired."""
    said = [note for run in found.runs for note in run.summary.get("setup", {}).get("notes", [])]
    said = [*dict.fromkeys(said), *found.missing]
    if not found.paired:
        said.append(
            {
                "en": "The two runs did not draw the same samples: differences are not paired.",
                "zh": "两次运行的样本流不同，差值未配对。",
            }[language]
        )
    return "\n".join(f"> {line}" for line in said)


def _ceiling(found: Findings, language: str) -> str:
    if found.ceiling is None:
        return ABSENT[language]
    text = {
        "en": "Fixed cost per micro-batch: {fixed_ms:.1f} ms, {fixed_share_pct:.0f} % of the "
        "slowest rank's predicted time under `{base}`. Perfect balance without padding would gain "
        "{gain_pct:.1f} %: no schedule of the same samples can gain more under the fitted cost.",
        "zh": "每个微批的固定开销为 {fixed_ms:.1f} ms，占 `{base}` 下最慢卡预测时间的 "
        "{fixed_share_pct:.0f} %。在完全均衡且没有填充时的收益为 {gain_pct:.1f} %，"
        "在该拟合代价下，对同一批样本的任何调度都不可能超过它。",
    }[language]
    return text.format(base=found.base, **found.ceiling)


def render(found: Findings, language: str) -> str:
    """The report in one language.

    Raises:
        RecordError: when the template names something that is not filled in.
    """
    values = {
        "base": f"`{found.base}`",
        "notes": _notes(found, language),
        "headline": headline(found, language),
        "setup": setup_section(found, language),
        "times": time_table(found, language),
        "rival": rival_section(found, language),
        "wall": wall_table(found, language),
        "overhead": overhead_table(found, language),
        "accuracy": accuracy_section(found, language),
        "gradients": gradient_section(found, language),
        "gains": gain_table(found, language),
        "quality": quality_table(found, language),
        "ceiling": _ceiling(found, language),
        "batches": modelled_section(found, language, variants=False),
        "variants": modelled_section(found, language, variants=True),
        "conclusion": conclusion(found, language),
        "run_id": ", ".join(run.run["run_id"] for run in found.runs),
    }
    name = f"ddp_report.{language}.md"
    template = (resources.files("analysis.report") / "templates" / name).read_text(encoding="utf-8")
    missing = set(_HOLE.findall(template)) - set(values)
    if missing:
        raise RecordError(f"{name}: unknown holes {sorted(missing)}; allowed {sorted(values)}")
    return _HOLE.sub(lambda match: values[match[1]], template)


def summary_page(found: Findings) -> str:
    """summary.md: the tables alone."""
    parts = [
        f"# {', '.join(run.run['run_id'] for run in found.runs)}, against `{found.base}`",
        _notes(found, "en"),
        "Compute time of the slowest rank, 95 % intervals of paired bootstrap over steps:",
        time_table(found, "en"),
        f"Against `{RIVAL}`:" if found.against_rival is not None else "",
        rival_section(found, "en") if found.against_rival is not None else "",
        "Wall time of a step, and throughput of all ranks together:",
        wall_table(found, "en"),
        overhead_table(found, "en"),
        accuracy_section(found, "en"),
        gain_table(found, "en"),
        quality_table(found, "en"),
        _ceiling(found, "en"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
