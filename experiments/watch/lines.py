"""Measurements from text: a JSON object a line, or CSV with a header line."""

from __future__ import annotations

import csv
import json
from typing import Any

from experiments.common import one_line

LONGEST = 65_536  # bytes of a line
COLUMNS = ("time", "t_s", "src", "dst", "bandwidth_gbps", "rtt_ms", "domain", "gpus_available")
FIGURES = ("bandwidth_gbps", "rtt_ms", "gpus_available")


class Unreadable(ValueError):
    """A line that is no measurement: why."""


class LineReader:
    """The lines of one stream, its CSV header included."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._rest = b""
        self._dropping = False  # the rest of a line that is too long
        self._columns: list[str] | None = None

    def feed(self, data: bytes, ended: bool = False) -> list[dict[str, Any] | Unreadable]:
        """What the lines that are complete now say, one each; blank lines and headers say nothing."""
        *lines, rest = (self._rest + data).split(b"\n")
        if ended:
            lines, rest = [*lines, rest], b""
        found = [self._one(line) for line in lines]
        if len(rest) > LONGEST:
            if not self._dropping:
                found.append(_too_long())
            self._dropping, rest = True, b""
        self._rest = rest
        return [x for x in found if x is not None]

    def _one(self, line: bytes) -> dict[str, Any] | Unreadable | None:
        if self._dropping:
            self._dropping = False
            return None
        if len(line) > LONGEST:
            return _too_long()
        text = line.decode(errors="replace").strip()
        if not text:
            return None
        try:
            return _json(text) if text[0] in "{[" else self._csv(text)
        except Unreadable as error:
            return error.with_traceback(None)  # which would hold the frames, and they the text

    def _csv(self, text: str) -> dict[str, Any] | None:
        """A row under the last header; None for a header."""
        try:
            cells = [cell.strip() for cell in next(csv.reader([text]), [])]
        except csv.Error as error:  # a carriage return inside the line
            raise Unreadable(one_line(f"not CSV: {error}")) from None
        if cells and set(cells) <= set(COLUMNS):
            self._columns = cells
            return None
        if self._columns is None:
            raise Unreadable(
                one_line(f"neither a JSON object nor CSV under a header: {text[:80]!r}")
            )
        if len(cells) != len(self._columns):
            raise Unreadable(f"{len(cells)} cells under {len(self._columns)} columns")
        body: dict[str, Any] = {}
        for name, cell in zip(self._columns, cells, strict=True):
            if cell:
                body["time" if name == "t_s" else name] = _figure(name, cell)
        return body


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(one_line(f"not JSON: {error}")) from None


def _figure(name: str, cell: str) -> float | str:
    if name not in FIGURES:
        return cell
    try:
        return float(cell)
    except ValueError:
        raise Unreadable(one_line(f"{name}: expected a number, got {cell[:80]!r}")) from None


def _too_long() -> Unreadable:
    return Unreadable(f"longer than {LONGEST:,} bytes")
