"""A sweep: gains over the reference on a map of two factors, over all factors at once, and what each
factor does to them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from analysis.figures.style import line_styles, luminance, styled

POINT_COLUMNS = ("point", "scheduler", "gain_pct", "tokens_per_s", "scenarios")
EFFECT_COLUMNS = (
    *(
        "scheduler",
        "factor",
        "from_level",
        "to_level",
        "effect_pct",
        "effect_lo_pct",
        "effect_hi_pct",
    ),
)
UNITS = {  # of the factors of a sweep, for labels
    "domains": "domains K",
    "load": "mean load [share of GPUs]",
    "strength": "strength of the jitter",
    "weights": "weights w1,w2,w3,w4",
    "jitter": "jitter",
    "cluster": "cluster",
    "model": "model",
}
MOST_CELLS, MOST_WRITTEN, MOST_LINES = 6, 64, 400


def _label(factor: str) -> str:
    return UNITS.get(factor, factor)


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cells(values: pd.Series) -> tuple[np.ndarray, list[str]]:
    """The cell of each value along an axis of the map, and the cells' names: a cell a value, of many
    numbers a cell an interval of equal width."""
    distinct = list(dict.fromkeys(values))
    if not pd.api.types.is_numeric_dtype(values):
        index = {value: i for i, value in enumerate(distinct)}
        return values.map(index).to_numpy(), [_text(value) for value in distinct]
    distinct = sorted(distinct)
    if len(distinct) <= 2 * MOST_CELLS:
        return np.searchsorted(distinct, values), [_text(value) for value in distinct]
    edges = np.linspace(distinct[0], distinct[-1], MOST_CELLS + 1)
    cell = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, MOST_CELLS - 1)
    return cell, [f"{a:.2g} to {b:.2g}" for a, b in itertools.pairwise(edges)]


def _mean_cells(rows: pd.DataFrame, across: np.ndarray, up: np.ndarray, shape) -> np.ndarray:
    """[up, across] mean gains, NaN where no point lies."""
    gain, there = rows["gain_pct"].to_numpy(float), rows["gain_pct"].notna().to_numpy()
    total, count = np.zeros(shape), np.zeros(shape)
    np.add.at(total, (up[there], across[there]), gain[there])
    np.add.at(count, (up[there], across[there]), 1.0)
    return np.where(count > 0, total / np.maximum(count, 1.0), np.nan)


def strongest(effects: pd.DataFrame, factors: Sequence[str]) -> list[str]:
    """The factors, the one with the largest effect on any scheduler first."""
    if effects.empty:
        return list(factors)
    most = effects.assign(size=effects["effect_pct"].abs()).groupby("factor")["size"].max()
    return sorted(factors, key=lambda name: -np.nan_to_num(most.get(name, 0.0)))


@styled
def gain_map(points: pd.DataFrame, factors: Sequence[str], reference: str) -> Figure:
    """Mean gain over the reference by two factors, one panel per scheduler, all on one scale.

    Args:
        points: POINT_COLUMNS and the factors, one row for each point and scheduler.
        factors: one or two; the first across, the second up.
        reference: whom the gains are over; it has no panel.

    Raises:
        ValueError: for no factor, or no scheduler beside the reference.
    """
    names = [name for name in points["scheduler"].unique() if name != reference]
    if not names or not factors:
        raise ValueError("a map needs a factor that varies and a scheduler beside the reference")
    rows = points[points["scheduler"] != reference].reset_index(drop=True)
    across, columns = _cells(rows[factors[0]])
    up, lines = (np.zeros(len(rows), int), [""]) if len(factors) < 2 else _cells(rows[factors[1]])
    shape = (len(lines), len(columns))
    chosen = {name: (rows["scheduler"] == name).to_numpy() for name in names}
    means = {n: _mean_cells(rows[m], across[m], up[m], shape) for n, m in chosen.items()}
    every = np.concatenate([mean.ravel() for mean in means.values()])
    most = float(np.nanmax(every)) if np.isfinite(every).any() else 1.0
    least = float(np.nanmin(every)) if np.isfinite(every).any() else 0.0
    norm = Normalize(least, most if most > least else least + 1.0)
    width = min(1.6 + 0.75 * len(columns), 5.5)
    size = (width * len(names) + 1.2, min(1.6 + 0.45 * len(lines), 6.0))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, (name, mean) in zip(panels, means.items(), strict=True):
        _draw_map(axes, mean, norm)
        axes.set_title(name)
        turned = max(map(len, columns)) > 8
        axes.set_xticks(range(len(columns)), columns, rotation=35 if turned else 0)
        axes.set_xlabel(_label(factors[0]))
    panels[0].set_yticks(range(len(lines)), lines)
    if len(factors) > 1:
        panels[0].set_ylabel(_label(factors[1]))
    colours = ScalarMappable(norm, "cividis")
    figure.colorbar(colours, ax=list(panels), label=f"mean gain over\n{reference} [%]")
    return figure


def _draw_map(axes: Axes, mean: np.ndarray, norm: Normalize) -> None:
    picture = axes.imshow(mean, cmap="cividis", norm=norm, aspect="auto", origin="lower")
    axes.grid(False)
    if mean.size > MOST_WRITTEN:
        return
    for (line, column), value in np.ndenumerate(mean):
        if not np.isfinite(value):
            axes.text(column, line, "–", ha="center", va="center", fontsize=8)
            continue
        dark = luminance(picture.cmap(norm(value))) < 0.3
        colour = "white" if dark else "black"
        axes.text(column, line, f"{value:.1f}", ha="center", va="center", color=colour, fontsize=8)


@styled
def parallel_factors(
    points: pd.DataFrame, factors: Sequence[str], reference: str, scheduler: str
) -> Figure:
    """Every point of the design as a line over its factors and one scheduler's gain.

    The lines of the highest quarter of the gains are dark and solid, the others pale.

    Args:
        points: POINT_COLUMNS and the factors.
        factors: those that vary.
        reference: whom the gain is over.
        scheduler: whose.

    Raises:
        ValueError: for no factor, or where the scheduler gained nothing anywhere.
    """
    rows = points[(points["scheduler"] == scheduler) & points["gain_pct"].notna()]
    if rows.empty or not factors:
        raise ValueError(f"no factor varies, or {scheduler!r} has no gain at any point")
    rows = rows.sort_values("gain_pct").iloc[
        np.linspace(0, len(rows) - 1, min(len(rows), MOST_LINES)).astype(int)
    ]
    axes_of = [*factors, "gain_pct"]
    heights, ticks = zip(*(_height(rows[name]) for name in axes_of), strict=True)
    lines = np.stack(heights, axis=1)
    # Lines of equal values would lie on each other.
    shift = np.linspace(-0.015, 0.015, len(lines))[:, None]
    best = rows["gain_pct"].to_numpy() >= rows["gain_pct"].quantile(0.75)
    figure = Figure(figsize=(1.9 * len(axes_of) + 1.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(axes_of))
    for line, dark in zip(lines + shift * (places < len(factors)), best, strict=True):
        style = {"color": "0.1", "linewidth": 1.1, "zorder": 3} if dark else {"color": "0.75"}
        axes.plot(places, line, **{"linewidth": 0.7, **style})
    for place, marks in zip(places, ticks, strict=True):
        axes.axvline(place, color="0.3", linewidth=0.8)
        for height, text in marks:
            axes.annotate(
                *(text, (place, height)),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
            )
    axes.set_xticks(places, [*map(_label, factors), f"gain of {scheduler}\nover {reference} [%]"])
    axes.set_yticks([])
    axes.set_xlim(-0.1, places[-1] + 0.35)
    axes.spines["left"].set_visible(False)
    axes.grid(False)
    axes.set_title("dark: the quarter of the points with the highest gain")
    return figure


def _height(values: pd.Series) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Values between 0 and 1 along an axis, and its marks."""
    if not pd.api.types.is_numeric_dtype(values):
        names = sorted(set(values))
        place = {name: i / max(len(names) - 1, 1) for i, name in enumerate(names)}
        return values.map(place).to_numpy(float), [(at, name) for name, at in place.items()]
    low, high = float(values.min()), float(values.max())
    span = high - low or 1.0
    marks = np.linspace(low, high, 5) if values.nunique() > 5 else sorted(values.unique())
    return (values.to_numpy(float) - low) / span, [((x - low) / span, f"{x:.3g}") for x in marks]


@styled
def factor_effects(effects: pd.DataFrame, reference: str) -> Figure:
    """How much a factor's level raises the gain over the reference, with 95 % intervals.

    Args:
        effects: EFFECT_COLUMNS.
        reference: whom the gains are over.

    Raises:
        ValueError: where there is no effect.
    """
    there = effects[effects["effect_pct"].notna()]
    if there.empty:
        raise ValueError("no factor varies between points at which something is gained")
    steps = (there[name] for name in ("factor", "from_level", "to_level"))
    kinds = list(dict.fromkeys(zip(*steps, strict=True)))
    names = list(there["scheduler"].unique())
    height = 1.3 + len(kinds) * (0.22 + 0.16 * len(names))
    figure = Figure(figsize=(6.6, min(height, 12.0)), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, style) in enumerate(zip(names, line_styles(len(names)), strict=True)):
        own = there[there["scheduler"] == name].set_index(["factor", "from_level", "to_level"])
        own = own.reindex([kind for kind in kinds if kind in own.index])
        places = [kinds.index(kind) + 0.6 * ((i + 0.5) / len(names) - 0.5) for kind in own.index]
        middle = own["effect_pct"].to_numpy(float)
        ends = own[["effect_lo_pct", "effect_hi_pct"]].to_numpy(float)
        width = np.abs(ends - middle[:, None]).T
        style = {**style, "linestyle": "none"}
        axes.errorbar(middle, places, xerr=width, label=name, elinewidth=1.2, **style)
    axes.axvline(0.0, color="0.3", linewidth=0.8)
    texts = [f"{_label(factor)}\n{base} → {level}" for factor, base, level in kinds]
    axes.set_yticks(range(len(kinds)), texts)
    axes.set_ylim(len(kinds) - 0.4, -0.6)
    axes.set_xlabel(f"change of the mean gain over {reference} [percentage points], 95 % interval")
    if len(names) > 1:
        figure.legend(loc="outside lower center", ncols=min(len(names), 4))
    return figure
