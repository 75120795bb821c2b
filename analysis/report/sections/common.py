"""What the sections of every kind of run are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from analysis.records import RecordError, RunRecord


@dataclasses.dataclass(frozen=True)
class Picture:
    """A figure, the stem of its file, and how to read it."""

    name: str
    figure: Figure
    caption: str


@dataclasses.dataclass(frozen=True)
class Section:
    """A titled piece of the report."""

    title: str
    text: str
    pictures: tuple[Picture, ...] = ()
    joint: bool = False  # about several runs, not the one that it stands with


def optional_table(
    record: RunRecord, name: str, columns: Sequence[str], what: str, notes: list[str]
) -> pd.DataFrame | None:
    """A table, or None and a note that `what` was left out."""
    if name not in record.tables():
        notes.append(f"{what}: {record.dir} has no `{name}.csv`.")
        return None
    frame = record.table(name, columns)
    if frame.empty:
        notes.append(f"{what}: `{name}.csv` of {record.dir} has no rows.")
        return None
    return frame


def drawn_from(record: RunRecord, name: str, draw: Callable[..., Figure], *args: Any) -> Figure:
    """The figure, or an error that names the table it was drawn from."""
    try:
        return draw(*args)
    except ValueError as error:
        raise RecordError(f"{record.dir / name}.csv: {error}") from None
