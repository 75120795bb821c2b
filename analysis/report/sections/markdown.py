"""Numbers and tables as Markdown text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

MISSING = "–"


def number(value: Any, digits: int = 3) -> str:
    """A number with `digits` significant digits, never in exponent form; a dash when missing."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING
    if isinstance(value, int) or value == 0:
        return f"{value:,}" if abs(value) >= 10_000 else f"{value:.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}" if abs(value) >= 10_000 else f"{value:.{decimals}f}"


def fixed(value: Any, decimals: int = 1) -> str:
    """A number with a fixed number of decimals, for columns that are compared by eye."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def whole(value: float | None) -> str:
    """A count of a table that may be missing."""
    return MISSING if value is None or math.isnan(value) else f"{value:,.0f}"


def interval(bounds: Sequence[float | None] | None, decimals: int = 1) -> str:
    """[lo, hi]; a dash when there is none."""
    if bounds is None or any(b is None or not math.isfinite(b) for b in bounds):
        return MISSING
    lo, hi = bounds
    return f"[{fixed(lo, decimals)}, {fixed(hi, decimals)}]"


def cell(value: Any) -> str:
    """Any value of a record as one table cell."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return MISSING if value is None else str(value).replace("|", "\\|").replace("\n", " ")
    return number(value)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A Markdown table; the columns after the first `text_columns` are right-aligned."""
    rule = [":--"] * text_columns + ["--:"] * (len(header) - text_columns)
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
