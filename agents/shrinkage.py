"""How far an average says what comes: later rates regressed on it, as one goes.

Where links drift, an average of what was measured says most of the hours after a move; where
they forget within minutes it says little, and what was to be expected before says more. What a row
brings over the coming h intervals is taken to be

    expected + weight_h (average - expected)

and weight_h is found by least squares over all intervals so far and all rows, which share their links.
It is pulled toward WEIGHT, as if KNOWN intervals of rates that are SPREAD apart had shown that (ridge
regression: Hoerl and Kennedy, Technometrics 12(1), 1970). The future is weighed geometrically, 1/h for
the next interval and less for later ones: so one trace of the past for each row will do, that of
TD(lambda) (Sutton, Machine Learning 3, 1988). Rows are seen against their mean: what all of them gain
or lose together is no reason to move.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from jaxsim.pytree import Pytree

HORIZONS = (3.0, 8.0, 20.0, 60.0)  # intervals
WEIGHT, KNOWN, SPREAD = 0.7, 10.0, 0.05


class Shrinkage(Pytree):
    """What was seen so far, for each of H horizons; rates are in units of `unit`."""

    horizons: Float[Array, "*batch H"]  # [intervals]
    expected: Float[Array, "*batch P"]  # in the rates' own unit, before anything was measured
    unit: Float[Array, "*batch"]
    trace: Float[Array, "*batch H P"]  # of the averages that say something of the next interval
    power: Float[Array, "*batch H"]  # their mean square, weighed alike
    product: Float[Array, "*batch H"]  # sum over intervals, mean over rows: averages and what came
    square: Float[Array, "*batch H"]  # and of averages squared


def init_shrinkage(
    expected: Float[Array, " P"],
    unit: Float[Array, ""],
    horizons: Sequence[float] | Float[Array, " H"] = HORIZONS,
) -> Shrinkage:
    """Nothing was seen. `unit` > 0; `horizons` >= 1."""
    horizons = jnp.asarray(horizons, jnp.float32)
    none = jnp.zeros_like(horizons)
    trace = jnp.zeros((horizons.size, expected.size), jnp.float32)
    return Shrinkage(horizons, expected, unit, trace, none, none, none)


def update_shrinkage(
    seen: Shrinkage,
    average: Float[Array, " P"],
    ran: Bool[Array, " P"],
    rate: Float[Array, " P"],
) -> Shrinkage:
    """Take in what is measured, `rate`, after `average` was believed of the rows that `ran` then. A row
    that cannot run now has a rate of 0 and says nothing."""
    keep = 1.0 - 1.0 / seen.horizons
    runs = rate != 0
    believed = _apart(average - seen.expected, ran) / seen.unit
    came = _apart(rate - seen.expected, runs) / seen.unit
    trace = keep[:, None] * seen.trace + (1.0 - keep)[:, None] * believed[None]
    power = keep * seen.power + (1.0 - keep) * _mean(believed**2, ran)
    return seen.replace(
        trace=trace,
        power=power,
        product=seen.product + jax.vmap(_mean, (0, None))(trace * came[None], runs),
        square=seen.square + power,
    )


def weights(seen: Shrinkage) -> Float[Array, "*batch H"]:
    """How far the average is believed, by horizon."""
    known = KNOWN * SPREAD**2
    return (known * WEIGHT + seen.product) / (known + seen.square)


def shrunk(seen: Shrinkage, average: Float[Array, " P"]) -> Float[Array, "H P"]:
    """[H, P] what rows bring over each of the coming horizons, given the average."""
    return seen.expected[None] + weights(seen)[:, None] * (average - seen.expected)[None]


def _mean(x: Float[Array, " P"], of: Bool[Array, " P"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(of, x, 0.0)) / jnp.maximum(jnp.sum(of), 1).astype(x.dtype)


def _apart(x: Float[Array, " P"], of: Bool[Array, " P"]) -> Float[Array, " P"]:
    """`x` against its mean, 0 elsewhere."""
    return jnp.where(of, x - _mean(x, of), 0.0)
