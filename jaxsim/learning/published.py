"""The published model of what a token is worth under local SGD, and factors on top.

Losses of DiLoCo's scaling laws (arXiv 2503.09799), Streaming DiLoCo (2501.18512) and MuLoCo
(2505.23725), AdamW inside, Nesterov outside, about 20 tokens per parameter, against data-parallel
training at its own best batch. With N9 = parameters / 1e9, M replicas and H inner steps:

    z   = c0 + sqrt(M - 1) (c1 + c2 log10(H / 30) + c3 log10(min(N9, 1)))
    eta = (1 + b z)^(-1 / b)

z is the debt in ln(tokens) to first order. A gain above 1 is the outer momentum's, which synchronous
training may have as well: eta is capped at 1.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from jaxsim.pytree import Pytree

# The formula is never used below: H = 1 with M > 1 was the worst of the scaling-law study.
LEAST_PERIOD = 10
TWO_SIDED_95 = 1.96
# Correlations of (c0, c1) and (c1, c2). The published bands come from draws of all of them together;
# with these two numbers the lower ends here are within 0.03 of them inside the data, 0.04 up to 1e10.
OFFSET_WITH_REPLICAS, REPLICAS_WITH_PERIOD = -0.5, 0.3
# Above 1e10 parameters a loss with size is as open as the gain; as wide as the published bands are.
LARGE_MODEL_LOSS = 1.5
LARGE, VERY_LARGE = 1.0, 10.0  # [1e9 parameters] beyond which c3, then nothing, was measured


class Parameter(Pytree):
    """A fitted number and its 95 % interval; [] float32 each."""

    value: Float[Array, "*batch"]
    low: Float[Array, "*batch"]
    high: Float[Array, "*batch"]

    @staticmethod
    def of(value: float, low: float, high: float) -> Parameter:
        return Parameter(*(jnp.float32(x) for x in (value, low, high)))

    @property
    def sd(self) -> Array:
        return (self.high - self.low) / (2.0 * TWO_SIDED_95)


class Published(Pytree):
    """The parameters of the model. The seventh published one, the data's share of the compute-optimal
    slope, is inside the intervals of the others."""

    c0: Parameter
    c1: Parameter
    c2: Parameter
    c3: Parameter
    b: Parameter
    residual_sd_eta: Float[Array, "*batch"]

    @staticmethod
    def default() -> Published:
        return Published(
            c0=Parameter.of(-0.1636, -0.2580, -0.1113),
            c1=Parameter.of(0.1594, 0.1212, 0.2232),
            c2=Parameter.of(0.1976, 0.1367, 0.3091),
            c3=Parameter.of(-0.0848, -0.1302, -0.0278),
            b=Parameter.of(0.32, 0.2, 0.44),
            residual_sd_eta=jnp.float32(0.0462),
        )

    def ends(
        self,
        gparams: Float[Array, "..."],
        replicas: Float[Array, "..."],
        period: Float[Array, "..."],
    ) -> tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]:
        """(low, centre, high) of eta, not capped; arguments broadcast. Replicas >= 2."""
        root = jnp.sqrt(jnp.maximum(replicas - 1.0, 0.0))
        decades = jnp.log10(jnp.maximum(period, LEAST_PERIOD) / 30.0)
        size = jnp.log10(jnp.clip(gparams, 1e-3, LARGE))
        debt = self.c0.value + root * (
            self.c1.value + self.c2.value * decades + self.c3.value * size
        )
        parts = (
            self.c0.sd,
            root * self.c1.sd,
            root * decades * self.c2.sd,
            root * size * self.c3.sd,
        )
        variance = sum(x * x for x in parts)
        variance = variance + 2.0 * OFFSET_WITH_REPLICAS * parts[0] * parts[1]
        variance = variance + 2.0 * REPLICAS_WITH_PERIOD * parts[1] * parts[2]
        # Beyond 1e9 a further gain with size may enter or not, beyond 1e10 a loss: uniform shares.
        per_decade = -self.c3.value * root
        gain = per_decade * jnp.log10(jnp.maximum(gparams / LARGE, 1.0))
        loss = LARGE_MODEL_LOSS * per_decade * jnp.log10(jnp.maximum(gparams / VERY_LARGE, 1.0))
        middle = debt + 0.5 * (loss - gain)
        variance = variance + (gain * gain + loss * loss) / 12.0
        half = TWO_SIDED_95 * jnp.sqrt(jnp.maximum(variance, 0.0))
        centre, eta = self.eta(debt), self.eta(middle)
        scatter = TWO_SIDED_95 * self.residual_sd_eta
        low = eta - jnp.hypot(eta - self.eta(middle + half), scatter)
        high = eta + jnp.hypot(self.eta(middle - half) - eta, scatter)
        return jnp.clip(jnp.minimum(low, centre), 0.0, None), centre, jnp.maximum(high, centre)

    def eta(self, debt: Float[Array, "..."]) -> Float[Array, "..."]:
        """Tokens of data-parallel training that one token is worth, given the debt."""
        b = jnp.maximum(self.b.value, 1e-3)
        return jnp.maximum(1.0 + b * debt, 1e-3) ** (-1.0 / b)


def extrapolates(gparams: Array, replicas: Array, period: Array) -> Array:
    """bool: no published run is near. Two to 16 replicas of 35M to 10B parameters; H from 30 (at 30
    alone for more than 8 replicas, to 100 for larger models, to 200 below 3e9), and from 15 for eight
    replicas of less than 1e9, of which one size was run so."""
    longest = jnp.where(gparams < 3.0, 200.0, 100.0)
    longest = jnp.where((replicas > 4.0) & (gparams >= 3.0), 50.0, longest)
    longest = jnp.where(((replicas > 4.0) & (gparams >= 7.0)) | (replicas > 8.0), 30.0, longest)
    often = (replicas > 4.0) & (replicas <= 8.0) & (gparams < LARGE)
    shortest = jnp.where(often, 15.0, 30.0)
    inside = (replicas <= 16.0) & (period >= shortest) & (period <= longest)
    inside = inside & (gparams >= 0.035) & (gparams <= jnp.where(replicas > 8.0, 15.0, 10.0))
    return (replicas > 1.0) & ~inside


# Factors at 16, 8, 4 and 2 bits: (bits, low, centre, high).
# Outer deltas: MuLoCo's quantisation figures (416M, M = 8, H = 30; 4 bit linear or statistical, 2 bit
# statistical with error feedback), six fp4 rows of Streaming DiLoCo.
OUTER_BITS = ((16, 1.0, 1.0, 1.0), (8, 0.98, 1.0, 1.0), (4, 0.95, 0.98, 1.0), (2, 0.86, 0.88, 0.90))
# Gradients in every step: SDP4Bit (arXiv 2410.15526, to 6.7B); below 4 bits nothing is known.
GRADIENT_BITS = ((16, 1.0, 1.0, 1.0), (8, 0.98, 1.0, 1.0), (4, 0.96, 0.99, 1.0), (2, 0.0, 0.8, 1.0))
# Activations between stages: SWARM (2301.11913) 8 bit, TAH-Quant (2506.01352) 3-4 bit.
ACTIVATION_BITS = (
    (16, 1.0, 1.0, 1.0),
    (8, 0.98, 1.0, 1.0),
    (4, 0.97, 0.99, 1.0),
    (2, 0.0, 0.8, 1.0),
)
# An overlap of one inner step, and of a whole outer step (eager updates, 2502.12996, H = 30, 0.1-1B).
ONE_STEP_LATE, OUTER_STEP_LATE = (0.96, 1.0, 1.0), (0.73, 0.76, 0.87)


def bits_factor(table: tuple, bits: Array) -> tuple[Array, Array, Array]:
    """(low, centre, high) at `bits`, between the table's rows by the logarithm of bits."""
    at = jnp.log2(jnp.maximum(bits, 1.0))
    rows = sorted(table)
    known = jnp.asarray(np.log2([row[0] for row in rows]), jnp.float32)
    ends = (jnp.asarray([row[i] for row in rows], jnp.float32) for i in (1, 2, 3))
    return tuple(jnp.interp(at, known, values) for values in ends)  # pyright: ignore[reportReturnType]


def overlap_factor(overlap: Array, period: Array) -> tuple[Array, Array, Array]:
    """(low, centre, high) for deltas that arrive `overlap` inner steps late: between one step and a
    whole outer step nothing was measured, the line between the two is taken."""
    span = jnp.maximum(period - 1.0, 1.0)
    share = jnp.clip((overlap - 1.0) / span, 0.0, 1.0)
    late = overlap > 0.0
    return tuple(  # pyright: ignore[reportReturnType]
        jnp.where(late, one + (whole - one) * share, 1.0)
        for one, whole in zip(ONE_STEP_LATE, OUTER_STEP_LATE, strict=True)
    )
