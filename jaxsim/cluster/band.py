"""How far a prediction may be off: a band of model error that widens outside what was calibrated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jaxsim.files import InputError, values

Z90 = 1.644854
# What places a run in a calibrated domain, in doublings; parallelism counts as sizes do.
FEATURES = ("hidden", "seq", "gpus", "tokens", "tp", "pp", "cp")
WIDEST = 3.0  # of a standard deviation in logarithms: a factor of 20
LARGEST = 1e12  # of a feature


@dataclasses.dataclass(frozen=True)
class Domain:
    """The box of the runs that a fit rests on: feature -> smallest and largest."""

    ranges: Mapping[str, tuple[float, float]]

    def distance(self, features: Mapping[str, float]) -> float:
        """Doublings by which a run lies outside, summed over FEATURES; 0 inside."""
        total = 0.0
        for name, (low, high) in self.ranges.items():
            x = features[name]
            total += max(math.log2(low / x), math.log2(x / high), 0.0)
        return total

    def outside(self, features: Mapping[str, float]) -> list[str]:
        """What lies outside, in words."""
        return [
            f"{name} {features[name]:g} (fitted {low:g} to {high:g})"
            for name, (low, high) in self.ranges.items()
            if not low * (1 - 1e-9) <= features[name] <= high * (1 + 1e-9)
        ]


@dataclasses.dataclass(frozen=True)
class Band:
    """Standard deviations of the logarithm of what a fit predicts, as left-out groups showed them.

    Attributes:
        step: of the step time inside the domain
        memory: of the peak memory; the same
        per_doubling: share of itself by which either widens per doubling outside the domain
    """

    step: float
    memory: float
    per_doubling: float

    def reach(self, distance: float, spread: float = 0.0, memory: bool = False) -> float:
        """Half the 90 % band in logarithms; `spread` is what the parameters add (1 sigma)."""
        own = self.memory if memory else self.step
        return Z90 * math.hypot(own * (1.0 + self.per_doubling * distance), spread)


# Where nobody measured the left-out error: as wide as the priors were off on stacks left out.
UNKNOWN = Band(0.2, 0.2, 0.25)


def read_band(body: Any, where: str) -> Band:
    """A band of a calibration file. Raises InputError that names the key."""
    keys = [field.name for field in dataclasses.fields(Band)]
    body = values.mapping(body, where, keys)
    return Band(*(values.number(body[key], f"{where}.{key}", 0.0, WIDEST) for key in keys))


def read_domain(body: Any, where: str) -> Domain:
    """A domain of a calibration file. Raises InputError that names the key."""
    body = values.mapping(body, where, may=FEATURES)
    ranges = {}
    for key, pair in body.items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise InputError(f"{where}.{key}: expected the smallest and the largest")
        low, high = (values.number(x, f"{where}.{key}", 1e-6, LARGEST) for x in pair)
        ranges[key] = (low, high)
    return Domain(ranges)
