"""What measured runs say about each parameter: prior and fit side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from analysis.figures.style import styled

PARAMETER_COLUMNS = (
    "gpu",
    "parameter",
    "prior",
    "prior_lo",
    "prior_hi",
    "value",
    "lo",
    "hi",
    "identified",
)
IDENTIFIED = 0.5  # from here on the data, not the prior, hold most of what is known
_PRIOR = {"facecolor": "0.85", "edgecolor": "0.6", "linewidth": 0.5, "hatch": "////"}
_FIT = {"color": "black", "linestyle": "none", "marker": "o", "markersize": 5}


def by_identification(parameters: pd.DataFrame) -> list[str]:
    """Names of parameters, best identified first, by the GPU type that identifies each best."""
    best = parameters.groupby("parameter", sort=False)["identified"].max()
    return list(best.sort_values(ascending=False, kind="stable").index)


def _checked(parameters: pd.DataFrame) -> pd.DataFrame:
    """The table, if every parameter of a GPU type stands there once and above zero.

    Raises:
        ValueError: naming the parameter.
    """
    twice = parameters[parameters.duplicated(["gpu", "parameter"])]
    if not twice.empty:
        row = twice.iloc[0]
        raise ValueError(f"parameter {row['parameter']} of {row['gpu']} stands there twice")
    numbers = parameters[["prior", "prior_lo", "prior_hi", "value", "lo", "hi"]]
    bad = parameters[(numbers <= 0).any(axis=1) | parameters[["prior", "value"]].isna().any(axis=1)]
    if not bad.empty:
        row = bad.iloc[0]
        raise ValueError(
            f"parameter {row['parameter']} of {row['gpu']}: prior and value are needed, and all "
            "figures have to be above 0"
        )
    return parameters


def _draw_gpu(axes: Axes, parameters: pd.DataFrame, names: Sequence[str]) -> None:
    """One GPU type: the prior's interval as a bar, the fit's as a line with a marker."""
    table = parameters.set_index("parameter")
    for row, name in enumerate(names):
        if name not in table.index:
            continue
        one = table.loc[name]
        lo, hi, value, low, high = (
            one[key] / one["prior"] for key in ("prior_lo", "prior_hi", "value", "lo", "hi")
        )
        axes.barh(row, hi - lo, left=lo, height=0.62, zorder=1, **_PRIOR)
        error = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
        face = "black" if one["identified"] > IDENTIFIED else "white"
        style = {**_FIT, "markerfacecolor": face, "elinewidth": 1.4, "zorder": 3}
        axes.errorbar(value, row, xerr=None if np.isnan(error).any() else error, **style)
    axes.axvline(1.0, color="0.3", linewidth=1.0, linestyle=(0, (1, 2)), zorder=2)


@styled
def parameters_fitted(parameters: pd.DataFrame) -> Figure:
    """Parameters as multiples of their priors, best identified on top, one panel per GPU type.

    Every parameter is divided by the value of its prior for that GPU type, so that shares,
    seconds and bytes stand on one logarithmic axis.

    Args:
        parameters: PARAMETER_COLUMNS; bounds are of 95 % intervals and may be missing.

    Raises:
        ValueError: when a parameter of a GPU type stands there twice or is not above zero.
    """
    parameters = _checked(parameters)
    gpus, names = list(parameters["gpu"].unique()), by_identification(parameters)
    size = (2.3 + 2.9 * len(gpus), 1.3 + 0.21 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, len(gpus), sharex=True, sharey=True, squeeze=False)[0]
    for axes, gpu in zip(panels, gpus, strict=True):
        mine = parameters[parameters["gpu"] == gpu]
        axes.set_xscale("log")
        _draw_gpu(axes, mine, names)
        identified = (mine["identified"] > IDENTIFIED).sum()
        axes.set_title(f"{gpu}\n{identified} of {len(mine)} identified")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="x", rotation=90)
        axes.set_xlabel("value / its prior's (dimensionless)")
    ratios = parameters[["value", "prior_lo", "prior_hi", "lo", "hi"]].div(
        parameters["prior"], axis=0
    )
    panels[0].set_xlim(0.85 * ratios.min(axis=None), ratios.max(axis=None) / 0.85)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    fit = {**_FIT, "linestyle": "-"}
    handles = [
        Patch(label="prior, 95 %", **_PRIOR),
        Line2D([], [], label=f"fit, 95 %, identified > {IDENTIFIED:g}", **fit),
        Line2D([], [], label="fit, 95 %, mostly prior", markerfacecolor="white", **fit),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure
