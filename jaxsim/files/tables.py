"""CSV tables as this project reads them: text first, and every fault names file, line and column."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jaxsim.files.errors import InputError

if TYPE_CHECKING:  # loaded when a table is read: a command line is refused without them
    import numpy as np
    import pandas as pd


def read_text_table(path: str | Path) -> pd.DataFrame:
    """Read a CSV file (compressed or not), every cell as stripped text, index = line in the file.

    Text, because a region may be called NA, and because only the reader of a column knows what
    a good value is. Raises InputError where the file is not a CSV table with at least one row.
    """
    import pandas as pd

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # a row longer than the header
            frame = pd.read_csv(
                path,
                dtype=str,
                keep_default_na=False,
                skip_blank_lines=False,  # or the line numbers would drift
                index_col=False,
                encoding="utf-8-sig",
            )
    except (OSError, EOFError, ValueError, zlib.error, pd.errors.ParserWarning) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path}: cannot be read as a CSV table: {why}") from None
    frame = frame.fillna("").apply(lambda column: column.str.strip())
    frame.index = frame.index + 2
    frame = frame[(frame != "").any(axis=1)]
    if frame.empty:
        raise InputError(f"{path}: holds no row below its header")
    return frame


def require_columns(frame: pd.DataFrame, columns: Sequence[str], path: str | Path) -> None:
    """Raise InputError that names the columns of `columns` that `frame` lacks."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise InputError(
            f"{path}: missing column {', '.join(missing)}; needed: {', '.join(columns)}; "
            f"the file has: {', '.join(frame.columns)}"
        )


def numbers(text: pd.Series, path: str | Path, above: float | None = None) -> np.ndarray:
    """Return the column as finite floats that are >= 0, or > `above` where it is given.

    Raises InputError that names the file, the line and the column of the first bad value.
    """
    import numpy as np
    import pandas as pd

    values = pd.to_numeric(text, errors="coerce").to_numpy(float)
    good = np.isfinite(values) & (values >= 0 if above is None else values > above)
    if not good.all():
        first = int(np.argmin(good))
        allowed = ">= 0" if above is None else f"> {above:g}"
        raise InputError(
            f"{path}: line {text.index[first]}: {text.name}: expected a number {allowed}, "
            f"got {text.iloc[first]!r}"
        )
    return values
