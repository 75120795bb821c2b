"""The points of a design, and what is known of each."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
from scipy.stats import qmc

from experiments.sweep.config import CATEGORIES, FACTORS, RANGES, SweepConfig


@dataclasses.dataclass(frozen=True)
class Point:
    """One combination of the factors' values; None where a factor is left to its default."""

    cluster: str
    domains: int | None
    model: str
    weights: str
    jitter: str
    jobs: int | None
    strength: float | None
    load: float

    def row(self) -> dict[str, Any]:
        """Its columns in the tables of a sweep."""
        return dataclasses.asdict(self)


def design_points(config: SweepConfig) -> list[Point]:
    """All points, in an order that depends on the design alone."""
    lists = {name: list(getattr(config, name)) or [None] for name in FACTORS}
    if config.design == "grid":
        return [Point(*values) for values in itertools.product(*lists.values())]
    cube = _unit_cube(config, len(FACTORS))
    columns = {name: _scaled(name, lists[name], cube[:, i]) for i, name in enumerate(FACTORS)}
    return [Point(**{name: columns[name][i] for name in FACTORS}) for i in range(len(cube))]


def _unit_cube(config: SweepConfig, dimensions: int) -> np.ndarray:
    """[points, dimensions] in [0, 1). Latin hypercube: McKay, Beckman and Conover 1979."""
    rng = np.random.default_rng([config.seed, 17])
    if config.design == "random":
        return rng.uniform(size=(config.points, dimensions))
    return qmc.LatinHypercube(dimensions, rng=rng).random(config.points)


def _scaled(name: str, values: list[Any], unit: np.ndarray) -> list[Any]:
    """One factor's values at the points."""
    if name in RANGES and values != [None]:
        least, most = min(values), max(values)
        return [float(least + (most - least) * x) for x in unit]
    return [values[int(x * len(values))] for x in unit]


def varied(points: list[Point]) -> list[str]:
    """The factors of which there is more than one value."""
    return [name for name in FACTORS if len({getattr(point, name) for point in points}) > 1]


__all__ = ["CATEGORIES", "Point", "design_points", "varied"]
