"""The tables of a data-parallel run as Markdown, in two languages."""

from __future__ import annotations

import numpy as np
import pandas as pd

from analysis.records import RunRecord
from analysis.report.ddp.findings import RIVAL, Findings

LANGUAGES = ("en", "zh")
HEADERS = {
    "arm": ("arm", "方法"),
    "mean": ("mean [ms]", "均值 [ms]"),
    "p95": ("P95 [ms]", "P95 [ms]"),
    "mean_change": ("change of mean [%]", "均值变化 [%]"),
    "p95_change": ("change of P95 [%]", "P95 变化 [%]"),
    "imbalance": ("max / mean of ranks", "各卡最大/平均"),
    "waste": ("padding [%]", "填充占比 [%]"),
    "step": ("wall step [ms]", "墙钟步长 [ms]"),
    "spread": ("standard deviation", "标准差"),
    "iqr": ("interquartile range", "四分位距"),
    "samples": ("samples/s", "样本/s"),
    "measure": ("measure", "量"),
    "average": ("mean", "均值"),
    "low": ("P5", "P5"),
    "high": ("P95", "P95"),
    "tokens": ("real tokens/s", "有效词元/s"),
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


def wall_table(found: Findings, language: str) -> str:
    """Wall time of a step and throughput over all ranks, with their spread over steps."""
    measures = (("step_time_ms", "step"), ("samples_per_s", "samples"))
    rows = [
        [
            HEADERS[head][LANGUAGES.index(language)],
            f"`{row['arm']}`",
            *(number(row[f"{name}_{key}"]) for key in ("mean", "p5", "p95", "std", "iqr")),
        ]
        for name, head in (*measures, ("real_tokens_per_s", "tokens"))
        for _, row in found.summary.iterrows()
    ]
    return markdown(["measure", "arm", "average", "low", "high", "spread", "iqr"], rows, language)


def overhead_table(found: Findings, language: str) -> str:
    """What scheduling costs, and memory."""
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
    checked = [
        (arm, errors)
        for run in found.runs
        for arm, errors in (run.summary.get("gradient_check") or {}).items()
    ]
    if not checked:
        return ABSENT[language]
    rows = []
    for arm, errors in checked:
        f64 = max(value for key, value in errors.items() if key.startswith("float64"))
        f32 = max(value for key, value in errors.items() if key.startswith("float32"))
        rows.append([f"`{arm}`", f"{f64:.1e}", f"{f32:.1e}"])
    return markdown(["arm", "f64", "f32"], rows, language)


def setup_section(found: Findings, language: str) -> str:
    """What ran, on what; a column for each run."""
    columns = [_setup(run) for run in found.runs]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    if found.other is not None:
        rows.insert(0, ["run", *(f"`{run.run['run_id']}`" for run in found.runs)])
    return markdown(["setting", *["value"] * len(columns)], rows, language)


def _setup(record: RunRecord) -> dict[str, str]:
    """What one run used and was set to, as text."""
    setup, run = record.summary.get("setup", {}), record.run
    config, machine = run["config"], run.get("machine") or {}
    names = ("model", "parameters", "data_source", "train_rows", "held_out_rows", "mean_length")
    names += ("p95_length", "ranks", "backend", "device", "precision", "b_max")
    rows = {name: number(setup.get(name), 1 if "length" in name else 0) for name in names}
    chosen = ("global_batch", "steps", "max_length", "pad_to_multiple_of", "cost", "solver")
    rows |= {name: number(config.get(name), 0) for name in (*chosen, "sync", "seed")}
    rows["machine"] = f"{machine.get('processor')}, {machine.get('cores')} cores"
    rows["accelerator"] = number(machine.get("accelerator"))
    rows["commit"] = f"{number(run.get('git_commit'))}"
    return rows
