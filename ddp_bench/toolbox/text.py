"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows under a header, in columns; numbers to the right, what is missing as '-'."""
    cells = [list(map(_cell, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    right = [
        all(row[i] is None or isinstance(row[i], int | float) for row in rows)
        for i in range(len(header))
    ]
    lines = []
    for line in [list(header), *cells]:
        aligned = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)
