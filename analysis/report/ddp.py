"""The report of a data-parallel run: templates in two languages, filled from what was measured."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources

import numpy as np
import pandas as pd

from analysis.records import RecordError, RunRecord

LANGUAGES = ("en", "zh")
FILES = {"en": "report.md", "zh": "report.zh.md"}
RIVAL = "hf_batch_rebalance"  # the split that Transformers ships
_HOLE = re.compile(r"\[\[([a-z_]+)\]\]")

HEADERS = {
    "arm": ("arm", "方法"),
    "mean": ("mean [ms]", "均值 [ms]"),
    "p95": ("P95 [ms]", "P95 [ms]"),
    "mean_change": ("change of mean [%]", "均值变化 [%]"),
    "p95_change": ("change of P95 [%]", "P95 变化 [%]"),
    "imbalance": ("max / mean of ranks", "各卡最大/平均"),
    "waste": ("padding [%]", "填充占比 [%]"),
    "step": ("wall step [ms]", "墙钟步长 [ms]"),
    "schedule": ("scheduling [ms]", "调度耗时 [ms]"),
    "share": ("of step [%]", "占步长 [%]"),
    "memory": ("peak memory [MB]", "峰值显存 [MB]"),
    "accuracy": ("accuracy [%]", "准确率 [%]"),
    "difference": ("difference [points]", "差值 [百分点]"),
    "measured": ("measured gain [%]", "实测收益 [%]"),
    "predicted": ("predicted gain [%]", "预测收益 [%]"),
    "error": ("error [points]", "误差 [百分点]"),
    "noise": ("noise in the maximum [%]", "最大值中的噪声 [%]"),
    "cost": ("cost", "代价模型"),
    "mape": ("mean abs. error [%]", "平均绝对误差 [%]"),
    "lengths": ("lengths", "长度分布"),
    "batch": ("B", "B"),
    "against": ("mean, change [%]", "均值变化 [%]"),
    "setting": ("setting", "设置"),
    "value": ("value", "取值"),
    "f64": ("float64", "float64"),
    "f32": ("float32", "float32"),
}
# Absent results are said to be absent, never shown as zero.
ABSENT = {"en": "*Not part of this run.*", "zh": "*本次运行未包含此项。*"}


@dataclass(frozen=True)
class Findings:
    """Everything the report says; tables as `ddp_tables` makes them."""

    run: RunRecord
    base: str
    paired: bool
    summary: pd.DataFrame
    against_rival: pd.DataFrame | None  # the summary with RIVAL as its baseline
    gains: pd.DataFrame
    quality: dict
    ceiling: dict | None
    accuracy: pd.DataFrame | None
    modelled: pd.DataFrame | None


def number(value: object, digits: int = 1) -> str:
    """A number for a table; a missing one is a dash."""
    if value is None or (isinstance(value, float) and not np.isfinite(value)):
        return "–"
    return f"{value:,.{digits}f}" if isinstance(value, int | float | np.number) else str(value)


def with_interval(row: pd.Series, name: str, digits: int = 1) -> str:
    """`estimate [lo, hi]`."""
    lo, hi = row[f"{name}_lo"], row[f"{name}_hi"]
    if not np.isfinite(lo):
        return f"{row[name]:+.{digits}f}"
    return f"{row[name]:+.{digits}f} [{lo:+.{digits}f}, {hi:+.{digits}f}]"


def markdown(columns: list[str], rows: list[list[str]], language: str) -> str:
    """A Markdown table; `columns` are keys of HEADERS, numbers are right-aligned."""
    at = LANGUAGES.index(language)
    heads = [HEADERS[column][at] for column in columns]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def time_table(found: Findings, language: str) -> str:
    """Slowest-rank compute time per arm."""
    rows = []
    for _, row in found.summary.sort_values("max_compute_ms_mean", ascending=False).iterrows():
        same = row["arm"] == found.base
        rows.append(
            [
                f"`{row['arm']}`",
                number(row["max_compute_ms_mean"]),
                number(row["max_compute_ms_p95"]),
                "0" if same else with_interval(row, "mean_change_pct"),
                "0" if same else with_interval(row, "p95_change_pct"),
                number(row["imbalance"], 2),
                number(100 * row["padding_waste"], 0),
            ]
        )
    columns = ["arm", "mean", "p95", "mean_change", "p95_change", "imbalance", "waste"]
    return markdown(columns, rows, language)


def rival_section(found: Findings, language: str) -> str:
    """Every arm against the rival, and which are behind it by more than chance allows."""
    if found.against_rival is None:
        return ABSENT[language]
    arms = found.against_rival[found.against_rival["arm"] != RIVAL]
    rows = [
        [
            f"`{row['arm']}`",
            with_interval(row, "mean_change_pct"),
            with_interval(row, "p95_change_pct"),
        ]
        for _, row in arms.sort_values("mean_change_pct").iterrows()
    ]
    lost = {
        key: ", ".join(f"`{arm}`" for arm in arms.loc[arms[f"{key}_change_pct_lo"] > 0, "arm"])
        for key in ("mean", "p95")
    }
    none, text = {
        "en": ("none", "Slower than it beyond the interval: by the mean {mean}; by P95 {p95}."),
        "zh": ("无", "慢于它且超出区间的方法：按均值 {mean}；按 P95 {p95}。"),
    }[language]
    verdict = text.format(**{key: names or none for key, names in lost.items()})
    return f"{markdown(['arm', 'mean_change', 'p95_change'], rows, language)}\n\n{verdict}"


def overhead_table(found: Findings, language: str) -> str:
    """What scheduling costs, wall time, memory."""
    rows = [
        [
            f"`{row['arm']}`",
            number(row["step_time_ms_mean"], 0),
            number(row["schedule_ms_median"], 2),
            number(row["schedule_share_pct"], 2),
            number(row["peak_mem_mb"], 0),
        ]
        for _, row in found.summary.iterrows()
    ]
    return markdown(["arm", "step", "schedule", "share", "memory"], rows, language)


def accuracy_section(found: Findings, language: str) -> str:
    """Held-out accuracy with intervals."""
    if found.accuracy is None:
        return ABSENT[language]
    rows = []
    for _, row in found.accuracy.iterrows():
        text = f"{row['accuracy_pct']:.1f} [{row['accuracy_lo']:.1f}, {row['accuracy_hi']:.1f}]"
        same = row["arm"] == found.base
        rows.append([f"`{row['arm']}`", text, "0" if same else _difference(row)])
    return markdown(["arm", "accuracy", "difference"], rows, language)


def _difference(row: pd.Series) -> str:
    lo, hi = row["difference_lo"], row["difference_hi"]
    return f"{row['difference_points']:+.1f} [{lo:+.1f}, {hi:+.1f}]"


def gain_table(found: Findings, language: str) -> str:
    """Measured against predicted gain."""
    rows = [
        [
            f"`{row['arm']}`",
            number(row["measured_gain_pct"]),
            number(row["predicted_gain_pct"]),
            number(row["error_points"]),
            number(row["noise_pct"]),
        ]
        for _, row in found.gains.iterrows()
        if row["arm"] != found.base
    ]
    return markdown(["arm", "measured", "predicted", "error", "noise"], rows, language)


def quality_table(found: Findings, language: str) -> str:
    """Errors of the fitted cost and of the two proxies, on steps not fitted."""
    rows = []
    for name, values in found.quality.items():
        a, b, c = values["coefficients_ms"]
        fitted = f"`fitted` ({name}): {a:.2f} + {b:.4f} kL + {c:.6f} kL²"
        rows.append([fitted, number(values["mape_pct"])])
        for proxy in ("tokens", "tokens_sq"):
            rows.append([f"`{proxy}` ({name})", number(values[f"mape_{proxy}_pct"])])
    return markdown(["cost", "mape"], rows, language)


def modelled_section(found: Findings, language: str, variants: bool) -> str:
    """Modelled slowest-rank times: rules by batch and lengths, or cost types and solvers."""
    if found.modelled is None:
        return ABSENT[language]
    table = found.modelled.copy()
    keys = ["lengths", "global_batch"]
    static = table[table["arm"] == "static"].set_index(keys)["max_compute_ms_mean"]
    base = table.set_index(keys).index.map(static).to_numpy()
    table["change"] = 100 * (table["max_compute_ms_mean"].to_numpy() / base - 1)
    named = table["arm"].str.contains("@")
    if variants:
        batch = table["global_batch"].min()
        keep = (named | table["arm"].isin(["static", "dynamic", "pooled"])) & (
            table["global_batch"] == batch
        )
        table = table[keep].sort_values(["lengths", "arm"], kind="stable")
    else:
        table = table[~named]
    rows = [
        [
            str(row["lengths"]),
            str(row["global_batch"]),
            f"`{row['arm']}`",
            number(row["max_compute_ms_mean"], 2),
            number(row["max_compute_ms_p95"], 2),
            number(row["change"]),
        ]
        for _, row in table.iterrows()
    ]
    return markdown(["lengths", "batch", "arm", "mean", "p95", "against"], rows, language)


def gradient_section(found: Findings, language: str) -> str:
    """Relative errors of the gradient check."""
    checked = found.run.summary.get("gradient_check")
    if not checked:
        return ABSENT[language]
    rows = []
    for arm, errors in checked.items():
        f64 = max(value for key, value in errors.items() if key.startswith("float64"))
        f32 = max(value for key, value in errors.items() if key.startswith("float32"))
        rows.append([f"`{arm}`", f"{f64:.1e}", f"{f32:.1e}"])
    return markdown(["arm", "f64", "f32"], rows, language)


def setup_section(found: Findings, language: str) -> str:
    """What ran, on what."""
    setup, run = found.run.summary.get("setup", {}), found.run.run
    config, machine = run["config"], run.get("machine") or {}
    names = ("model", "parameters", "data_source", "train_rows", "held_out_rows", "mean_length")
    names += ("p95_length", "ranks", "backend", "device", "precision", "b_max")
    rows = [[name, number(setup.get(name), 1 if "length" in name else 0)] for name in names]
    chosen = ("global_batch", "steps", "max_length", "pad_to_multiple_of", "cost", "solver")
    rows += [[name, number(config.get(name), 0)] for name in (*chosen, "sync", "seed")]
    rows += [["machine", f"{machine.get('processor')}, {machine.get('cores')} cores"]]
    rows += [["accelerator", number(machine.get("accelerator"))]]
    rows += [["commit", f"{number(run.get('git_commit'))}"]]
    return markdown(["setting", "value"], rows, language)


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
    said = [*found.run.summary.get("setup", {}).get("notes", [])]
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
        "overhead": overhead_table(found, language),
        "accuracy": accuracy_section(found, language),
        "gradients": gradient_section(found, language),
        "gains": gain_table(found, language),
        "quality": quality_table(found, language),
        "ceiling": _ceiling(found, language),
        "batches": modelled_section(found, language, variants=False),
        "variants": modelled_section(found, language, variants=True),
        "conclusion": conclusion(found, language),
        "run_id": found.run.run["run_id"],
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
        f"# {found.run.run['run_id']}, against `{found.base}`",
        _notes(found, "en"),
        "Compute time of the slowest rank, 95 % intervals of paired bootstrap over steps:",
        time_table(found, "en"),
        f"Against `{RIVAL}`:" if found.against_rival is not None else "",
        rival_section(found, "en") if found.against_rival is not None else "",
        overhead_table(found, "en"),
        accuracy_section(found, "en"),
        gain_table(found, "en"),
        quality_table(found, "en"),
        _ceiling(found, "en"),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
