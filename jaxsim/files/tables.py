"""CSV tables as this project reads them: text first, and every fault names file, line and column."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsim.files.errors import InputError
from jaxsim.files.reading import read_text
from jaxsim.files.shown import listed, shown
from jaxsim.files.values import LARGEST, LONGEST_NAME

if TYPE_CHECKING:  # loaded when a table is read: a command line is refused without them
    import numpy as np
    import pandas as pd
    from jaxtyping import Float

LONGEST_CELL = 10_000  # characters
LONGEST_HEADER = 100_000


def read_text_table(
    path: str | Path,
    kind: str = "a CSV table",
    row: str | None = "row",
    columns: Sequence[Sequence[str]] = (),
) -> pd.DataFrame:
    """Read a CSV file (compressed or not), every cell as stripped text, index = line in the file.

    Text, because a region may be called NA, and because only the reader of a column knows what
    a good value is. `row` is what a row holds, None where a table may have none; `columns` are the
    headers that are allowed, empty for any. Raises InputError where the file is no such table.
    """
    import pandas as pd

    text = read_text(path, kind)
    _check_header(text, path, kind)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row longer than the header
            frame = pd.read_csv(
                io.StringIO(text),
                dtype=str,
                keep_default_na=False,
                skip_blank_lines=False,  # or the line numbers would drift
                index_col=False,
            )
    except (ValueError, OverflowError, pd.errors.ParserWarning) as error:
        why = _longer_row(text) or str(error)
        raise InputError(f"{path}: cannot be read as {kind}: {why}") from None
    frame = frame.fillna("").apply(lambda column: column.str.strip())
    frame.columns = frame.columns.str.strip()
    frame.index = frame.index + 2
    frame = frame[(frame != "").any(axis=1)] if len(frame.columns) else frame
    if columns and tuple(frame.columns) not in {tuple(names) for names in columns}:
        allowed = " or ".join(",".join(names) for names in columns)
        raise InputError(f"{path}: expected the columns {allowed}; it has {listed(frame.columns)}")
    if frame.empty and row is not None:
        raise InputError(f"{path}: holds no {row} below its header")
    for column in frame.columns:
        long = frame.index[frame[column].str.len() > LONGEST_CELL]
        if len(long):
            where = f"{path}: line {long[0]}: {column}"
            raise InputError(f"{where}: a cell of more than {LONGEST_CELL} characters")
    return frame


def read_header(path: str | Path) -> list[str]:
    """The names in the first line of a file, whatever the file is; to tell tables apart.

    Raises InputError where it cannot be opened.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace") as lines:
            return [name.strip() for name in lines.readline(LONGEST_HEADER).split(",")]
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{path}: cannot be read as a CSV table: {why}") from None


def _longer_row(text: str) -> str:
    """Names the first row with more cells than the header, if there is one."""
    try:
        rows = csv.reader(io.StringIO(text))
        width = len(next(rows, []))
        for cells in rows:
            if len(cells) > width:
                return f"line {rows.line_num}: more cells ({len(cells)}) than columns ({width})"
    except csv.Error:
        pass
    return ""


def _check_header(text: str, path: str | Path, kind: str) -> None:
    """pandas renames the second of two equal columns and says nothing."""
    try:
        header = [name.strip() for name in next(csv.reader(io.StringIO(text)), [])]
    except csv.Error as error:
        raise InputError(f"{path}: cannot be read as {kind}: {error}") from None
    twice = [name for i, name in enumerate(header) if name in header[:i]]
    if twice:
        raise InputError(f"{path}: line 1: the column {shown(twice[0])} stands twice")


def require_columns(frame: pd.DataFrame, columns: Sequence[str], path: str | Path) -> None:
    """Raise InputError that names the columns of `columns` that `frame` lacks."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(
            f"{path}: missing column {listed(missing)}; needed: {listed(columns)}; "
            f"the file has: {listed(frame.columns)}"
        )


def numbers(
    text: pd.Series, path: str | Path, above: float | None = None, most: float = LARGEST
) -> Float[np.ndarray, " N"]:
    """Return the column as finite floats from 0 to `most`, or > `above` where it is given.

    Raises InputError that names the file, the line and the column of the first bad value.
    """
    import numpy as np
    import pandas as pd

    values = pd.to_numeric(text, errors="coerce").to_numpy(float)
    good = (values >= 0 if above is None else values > above) & (values <= most)
    if not good.all():
        first = int(np.argmin(good))
        allowed = ">= 0" if above is None else f"> {above:g}"
        raise InputError(
            f"{path}: line {text.index[first]}: {text.name}: expected a number {allowed} and at "
            f"most {most:g}, got {shown(text.iloc[first])}"
        )
    return values


def check_names(text: pd.Series, path: str | Path) -> None:
    """Raise InputError for the first cell that is no name: empty, long or not to be printed."""
    bad = (text == "") | (text.str.len() > LONGEST_NAME) | ~text.map(str.isprintable)
    if bad.any():
        first = bad.idxmax()
        raise InputError(
            f"{path}: line {first}: {text.name}: expected the name of a {text.name}, of at most "
            f"{LONGEST_NAME} characters, got {shown(text[first])}"
        )


def known_names(text: pd.Series, path: str | Path, known: Sequence[str]) -> None:
    """Raise InputError for the first cell of a column that is not among the known names."""
    unknown = text.index[~text.isin(known)]
    if len(unknown):
        raise InputError(
            f"{path}: line {unknown[0]}: {text.name} {shown(text[unknown[0]])} is unknown; "
            f"known: {listed(known)}"
        )
