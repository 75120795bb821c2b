"""A plan on the map: domains as far apart as their round trips, pipelines, ring and loads of links; and
the trade-off between speed and price."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch

from analysis.figures.style import luminance, shades, styled

SMALLEST, LARGEST = 500.0, 1800.0  # [points^2] of a domain's disc
BUSIEST = 5.0  # [points] width of a link that is busy all the time
NARROWEST = 0.8
BOW = 0.14  # how far a link's arrow leaves the straight line
MOST_WRITTEN = 5  # domains whose plan stands beside them; of more, their names alone
MOST_NUMBERED = 8  # links whose load stands beside them


def positions(rtt_ms: np.ndarray) -> np.ndarray:
    """[K, 2] places in the plane whose distances are the round trips as nearly as can be: classical
    scaling (Torgerson 1952); the larger spread lies across."""
    rtt = 0.5 * (rtt_ms + rtt_ms.T)
    k = len(rtt)
    centre = np.eye(k) - 1.0 / k
    gram = -0.5 * centre @ (rtt**2) @ centre
    values, vectors = np.linalg.eigh(gram)
    top = np.argsort(-values)[:2]
    places = vectors[:, top] * np.sqrt(np.maximum(values[top], 0.0))
    if places.shape[1] < 2:
        places = np.pad(places, ((0, 0), (0, 2 - places.shape[1])))
    # The same picture wherever eigenvectors point.
    signs = np.where(places[np.abs(places).argmax(axis=0), [0, 1]] < 0, -1.0, 1.0)
    return _apart(places * signs)


def _apart(places: np.ndarray, least: float = 0.17) -> np.ndarray:
    """Push places apart that lie on top of each other; `least` of the picture's width."""
    width = max(np.ptp(places, axis=0).max(initial=0.0), 1e-9)
    places = places / width
    if len(places) == 1:
        return places
    for _ in range(200):
        gap = places[:, None] - places[None]
        distance = np.linalg.norm(gap, axis=-1) + 10.0 * np.eye(len(places))
        if distance.min() >= least:
            break
        # Those that coincide part along directions of their own.
        angle = np.arange(len(places)) * 2.399963
        tiny = 1e-3 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        push = np.where(distance[..., None] < least, gap + tiny[:, None] - tiny[None], 0.0)
        places = places + 0.3 * push.sum(axis=1)
    return places


@styled
def plan_map(result: Mapping[str, Any]) -> Figure:
    """The best plan of `hippo plan` on the map. `result` is what the command writes as JSON; of it
    `allow`, `alternatives` and `asked` are read."""
    one, asked = result["alternatives"][result["allow"]], result["asked"]
    names = list(asked["domains"])
    at = dict(zip(names, positions(np.asarray(asked["rtt_ms"], float)), strict=True))
    places = np.array(list(at.values()))
    wide, high = np.ptp(places, axis=0) + np.array([0.5, 0.45])
    figure = Figure(
        figsize=(9.0, min(max(9.0 * high / wide, 3.5), 9.0) + 0.8), layout="constrained"
    )
    axes = figure.add_subplot()
    groups = one["plan"]["groups"]
    colours = shades(len(groups))
    member = {d["domain"]: (g, d) for g, group in enumerate(groups) for d in group["domains"]}
    _links(axes, one["wan"], at)
    largest = max(asked["domains"].values())
    for name in names:
        _domain(axes, name, at[name], asked, member.get(name), groups, colours, largest)
    axes.set_title(_title(result, one))
    _frame(axes, places)
    axes.legend(handles=_legend(one["wan"]), loc="upper left", bbox_to_anchor=(0.0, -0.02), ncols=3)
    return figure


def _title(result: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    asked = result["asked"]
    low, high = one["step_s_band"]
    return (
        f"{asked['model']} on {asked['cluster']}: step {one['step_s']:.2f} s ({low:.2f} to "
        f"{high:.2f}), {one['effective_tokens_per_s']:,.0f} effective tokens/s\n{one['talks']}; "
        "distance = round trip"
    )


def _domain(axes: Axes, name, place, asked, found, groups, colours, largest) -> None:
    gpus = asked["domains"][name]
    size = SMALLEST + (LARGEST - SMALLEST) * gpus / largest
    if found is None:
        axes.scatter(*place, s=size, facecolor="white", edgecolor="0.6", linestyle="--", zorder=3)
        text, number = f"{name}\n{gpus} GPUs idle", ""
    else:
        g, held = found
        group = groups[g]
        axes.scatter(*place, s=size, facecolor=colours[g], edgecolor="0.15", zorder=3)
        number = str(g + 1)
        text = f"{name}, {gpus} GPUs\n{held['layers']} layers, tp {held['tp']} pp {held['pp']} "
        text += (
            f"dp {group['dp']}\n{group['micro_batches']} x {group['micro_batch']} x dp sequences"
        )
    if len(asked["domains"]) > MOST_WRITTEN:
        text = name
    dark = found is not None and luminance((*colours[found[0]], 1.0)) < 0.35
    axes.annotate(
        number,
        place,
        ha="center",
        va="center",
        color="white" if dark else "black",
        zorder=4,
        fontweight="bold",
    )
    drop = 4 + 0.5 * np.sqrt(size)
    axes.annotate(
        text,
        place,
        xytext=(0, -drop),
        textcoords="offset points",
        ha="center",
        va="top",
        fontsize=7.5,
        zorder=5,
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5},
    )


def _links(axes: Axes, wan, at) -> None:
    """An arrow for every link that carries something, as wide as it is busy."""
    for link in wan:
        ring = link["kind"] == "ring"
        start, end = at[link["src"]], at[link["dst"]]
        arrow = FancyArrowPatch(
            tuple(start),
            tuple(end),
            connectionstyle=f"arc3,rad={BOW}",
            arrowstyle="-|>",
            mutation_scale=12,
            shrinkA=17,
            shrinkB=17,
            linewidth=NARROWEST + (BUSIEST - NARROWEST) * min(link["busy"], 1.0),
            linestyle=(0, (4, 2)) if ring else "-",
            color="0.35" if ring else "0.05",
            zorder=2,
        )
        axes.add_patch(arrow)
        if len(wan) <= MOST_NUMBERED:
            # On the bow: a quadratic curve passes half as far out as its control point lies.
            middle, way = 0.5 * (start + end), end - start
            side = 0.5 * BOW * np.array([way[1], -way[0]])
            axes.annotate(
                f"{link['gb_per_step']:.2g} GB, {100 * link['busy']:.0f} %",
                middle + side,
                ha="center",
                va="center",
                fontsize=7.0,
                zorder=5,
                bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 0.4},
            )


def _legend(wan) -> list[Line2D]:
    kinds = {link["kind"] for link in wan}
    handles = []
    if "pipeline" in kinds:
        handles.append(Line2D([], [], color="0.05", label="activations of a pipeline"))
    if "ring" in kinds:
        label = "sync between groups"
        handles.append(Line2D([], [], color="0.35", linestyle=(0, (4, 2)), label=label))
    if kinds:
        handles.append(Line2D([], [], linestyle="", label="width, %: share of the step it is busy"))
    return handles


def _frame(axes: Axes, places: np.ndarray) -> None:
    low, high = places.min(axis=0), places.max(axis=0)
    axes.set_xlim(low[0] - 0.25, high[0] + 0.25)
    axes.set_ylim(low[1] - 0.27, high[1] + 0.18)
    axes.set_aspect("equal", adjustable="box")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)


@styled
def plan_front(result: Mapping[str, Any]) -> Figure:
    """Speed against price of the plans that none beats in both. `result` as of `plan_map`; of it
    `pareto` and `asked` are read."""
    front = result["pareto"]
    shown = front[:12]
    figure = Figure(figsize=(7.5, 4.0 + 0.16 * len(shown)), layout="constrained")
    axes, below = figure.subplots(2, 1, height_ratios=(4.0, 0.16 * len(shown)))
    speed = [one["effective_tokens_per_s_lo"] for one in front]
    usd = [one["usd_per_effective_mtoken_hi"] for one in front]
    axes.plot(speed, usd, color="0.4", marker="o", markerfacecolor="white", drawstyle="steps-post")
    for n, (x, y) in enumerate(zip(speed, usd, strict=True), start=1):
        axes.annotate(str(n), (x, y), xytext=(5, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("effective tokens/s, lower end")
    axes.set_ylabel("USD per million effective tokens, upper end")
    lines = [
        f"{n}. {_shortened(one['plan'])}, {one['talks']}" for n, one in enumerate(shown, start=1)
    ]
    axes.set_title(
        f"{result['asked']['model']} on {result['asked']['cluster']}: speed against price"
    )
    below.axis("off")
    below.text(0.0, 1.0, "\n".join(lines), va="top", fontsize=7.5)
    return figure


def _shortened(label: str, most: int = 70) -> str:
    return label if len(label) <= most else f"{label.count(' | ') + 1} groups"
