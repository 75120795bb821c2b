"""One page of what came out, in English and in Chinese, with the same numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ddp_bench.comparative.frameworks import RANKS
from ddp_bench.comparative.settings import ComparativeSettings

TEMPLATES = Path(__file__).parent / "templates"
FILES = {"en": "comparative.md", "zh": "comparative.zh.md"}
WORDS = {  # English -> Chinese
    "framework": "框架",
    "equal": "相等",
    "largest relative error": "最大相对误差",
    "yes": "是",
    "no": "否",
    "not run": "未运行",
    "not timed": "未计时",
    "steps/s": "步/秒",
    "95 %": "95 %",
    "peak RSS [MB]": "峰值内存 [MB]",
    "before the model [MB]": "建立模型之前 [MB]",
    "lines": "行数",
    "restart [s]": "重启 [s]",
    "from": "从",
    "to": "到",
    "save [s]": "保存 [s]",
    "load [s]": "读取 [s]",
    "size [MB]": "大小 [MB]",
}
_PLACE = re.compile(r"\[\[(\w+)\]\]")


def write_pages(folder: Path, settings: ComparativeSettings, result: Mapping[str, Any]) -> None:
    """Both pages, into a run folder."""
    for language, file in FILES.items():
        folder.joinpath(file).write_text(page(settings, result, language), encoding="utf-8")


def page(settings: ComparativeSettings, result: Mapping[str, Any], language: str) -> str:
    """The page in a language of FILES."""
    rows = result["frameworks"]
    many = torch.cuda.device_count()
    parts = {
        **{name: getattr(settings, name) for name in ("model", "rows", "length", "steps")},
        **{name: getattr(settings, name) for name in ("timed_steps", "repeats", "starts")},
        "tolerance": f"{settings.tolerance:g}",
        "ranks": RANKS,
        "device": "NCCL" if many >= RANKS else "CPU (gloo)",
        "losses": _table(_losses(rows), language),
        "speed": _table(_speed(rows), language),
        "moves": _table(_moves(rows), language),
    }
    text = TEMPLATES.joinpath(f"page.{language}.md").read_text(encoding="utf-8")
    return _PLACE.sub(lambda place: str(parts[place[1]]), text)


def _losses(rows: Mapping[str, Any]) -> list[list[str]]:
    out = [["framework", "equal", "largest relative error"]]
    for name, row in rows.items():
        equal = {True: "yes", False: "no", None: "not run"}[row["losses_equal"]]
        error = "" if row["loss_error"] is None else f"{row['loss_error']:.1e}"
        out.append([name, equal, error or row["why_not"] or ""])
    return out


def _speed(rows: Mapping[str, Any]) -> list[list[str]]:
    head = ["framework", "steps/s", "95 %", "peak RSS [MB]", "before the model [MB]"]
    out = [[*head, "lines", "restart [s]"]]
    for name, row in rows.items():
        if row["steps_per_s"] is None:
            out.append([name, "not timed" if row["ran"] else "not run", *[""] * 5])
            continue
        low, high = row["ci95"]
        memory = [
            f"{max(row[key] or [0]) / 1e6:.0f}" for key in ("peak_rss_bytes", "imported_rss_bytes")
        ]
        rest = [str(row["config_lines"]), f"{row['restart_s']:.1f}"]
        out.append([name, f"{row['steps_per_s']:.2f}", f"{low:.2f} - {high:.2f}", *memory, *rest])
    return out


def _moves(rows: Mapping[str, Any]) -> list[list[str]]:
    out = [["from", "to", "save [s]", "load [s]", "size [MB]"]]
    for name, row in rows.items():
        move = row["relayout"]
        if move["why_not"]:
            out.append([name, move.get("to", ""), "not run", move["why_not"], ""])
        else:
            took = [f"{move[key]:.2f}" for key in ("save_s", "load_s")]
            out.append([name, move["to"], *took, f"{move['bytes'] / 1e6:.2f}"])
    return out


def _table(rows: Sequence[Sequence[str]], language: str) -> str:
    def said(cell: str) -> str:
        word = WORDS.get(cell, cell) if language == "zh" else cell
        return word.replace("|", "\\|")

    lines = ["| " + " | ".join(map(said, row)) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
