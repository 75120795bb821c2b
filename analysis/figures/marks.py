"""What a drawn figure shows, as a table: every point, bar, interval and cell in its data's units.

The table is read off the figure itself, so that it holds what is drawn and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import Collection, LineCollection, PathCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

COLUMNS = (
    *("axes", "panel", "x_axis", "y_axis", "series", "mark", "x", "y", "x_to", "y_to"),
    *("value", "x_name", "y_name"),
)
_CORNERS = 6  # a closed path of no more vertices is a box


def marks(figure: Figure) -> pd.DataFrame:
    """COLUMNS, one row per mark.

    `mark` is point, bar, interval, box, band or cell. x and y are where it is in units of its axes;
    x_to, y_to the other end of an interval or box; `value` the number of a cell. x_name and y_name
    are the names that an axis of names gives to a place.

    Args:
        figure: any figure of this room, drawn or not.
    """
    rows = []
    shown = [one for one in figure.axes if one.get_visible() and one.get_label() != "<colorbar>"]
    for axes in shown:
        where = {
            "axes": figure.axes.index(axes),
            "panel": axes.get_title(loc="left") or axes.get_title(),
            "x_axis": _axis_label(axes, "x"),
            "y_axis": _axis_label(axes, "y"),
        }
        names = {side: _names(getattr(axes, f"{side}axis")) for side in "xy"}
        for row in _marks_of(axes):
            named = {f"{side}_name": _name(names[side], row.get(side)) for side in "xy"}
            rows.append({**where, **row, **named})
    return pd.DataFrame(rows, columns=list(COLUMNS))


def places(figure: Figure, table: pd.DataFrame) -> np.ndarray:
    """[N, 2] middles of the marks as fractions of the figure's width and height from its lower
    left; the figure has been drawn."""
    out = np.full((len(table), 2), np.nan)
    x = table["x"].to_numpy(float)
    y = table["y"].to_numpy(float)
    x = np.where(table["x_to"].notna(), 0.5 * (x + table["x_to"].to_numpy(float)), x)
    y = np.where(table["y_to"].notna(), 0.5 * (y + table["y_to"].to_numpy(float)), y)
    for index in table["axes"].unique():
        rows = (table["axes"] == index).to_numpy()
        pixels = figure.axes[index].transData.transform(np.column_stack([x[rows], y[rows]]))
        out[rows] = figure.transFigure.inverted().transform(pixels)
    return out


def _axis_label(axes: Axes, side: str) -> str:
    """Its own, or where panels share it that of the figure."""
    own = getattr(axes, f"get_{side}label")()
    return own or getattr(axes.figure, f"get_sup{side}label")()


def _names(axis: Any) -> dict[float, str]:
    """What an axis of names writes at its places; {} for an axis of numbers."""
    if not isinstance(axis.get_major_locator(), FixedLocator):
        return {}
    formatter = axis.get_major_formatter()
    written = {float(at): formatter(at, i) for i, at in enumerate(axis.get_majorticklocs())}
    return written if any(map(_is_word, written.values())) else {}


def _is_word(text: str) -> bool:
    return any(character.isalpha() for character in text) and "$" not in text


def _name(names: dict[float, str], place: float | None) -> str:
    """The name nearest to a place, if one is within half a row."""
    if not names or place is None or not np.isfinite(place):
        return ""
    nearest = min(names, key=lambda tick: abs(tick - place))
    return names[nearest] if abs(nearest - place) <= 0.5 else ""


def _marks_of(axes: Axes) -> Iterator[dict]:
    for line in axes.lines:
        if all(line.get_transform().contains_branch_seperately(axes.transData)):
            for x, y in np.column_stack([line.get_xdata(orig=False), line.get_ydata(orig=False)]):
                yield _row(line, "point", x, y)
    for container in axes.containers:
        for bar in getattr(container, "patches", ()):
            lower, upper = bar.get_bbox().get_points()
            yield _row(bar, "bar", *lower, *upper, series=container.get_label())
    for collection in axes.collections:
        yield from _marks_of_collection(axes, collection)
    for image in axes.images:
        cells = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
        for (row, column), value in np.ndenumerate(cells):
            if np.isfinite(value):
                yield {**_row(image, "cell", column, row), "value": value}


def _marks_of_collection(axes: Axes, collection: Collection) -> Iterator[dict]:
    if isinstance(collection, PathCollection):
        for x, y in np.asarray(collection.get_offsets(), float):
            yield _row(collection, "point", x, y)
        return
    if not all(collection.get_transform().contains_branch_seperately(axes.transData)):
        return
    if isinstance(collection, LineCollection):
        for segment in collection.get_segments():
            if len(segment) >= 2:
                yield _row(collection, "interval", *segment[0], *segment[-1])
    elif isinstance(collection, PolyCollection):
        for path in collection.get_paths():
            if len(path.vertices) <= _CORNERS:
                box = path.get_extents()
                yield _row(collection, "box", box.x0, box.y0, box.x1, box.y1)
            else:
                for x, y in path.vertices:
                    yield _row(collection, "band", x, y)


def _row(artist: Any, mark: str, *at: float, series: str | None = None) -> dict:
    label = str(artist.get_label() if series is None else series)
    ends = dict(zip(("x", "y", "x_to", "y_to"), map(float, at), strict=False))
    return {"series": "" if label.startswith("_") else label, "mark": mark, **ends}
