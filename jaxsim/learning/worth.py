"""The setting `efficiency`: what the tokens of a plan are worth, with its band."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from jaxsim.files import InputError, is_file, read_text_table, require_columns, shown
from jaxsim.learning.published import (
    ACTIVATION_BITS,
    GRADIENT_BITS,
    OUTER_BITS,
    TWO_SIDED_95,
    Parameter,
    Published,
    bits_factor,
    extrapolates,
    overlap_factor,
)
from jaxsim.pytree import Pytree

FITTED = ("c0", "c1", "c2", "c3", "b")
SCATTER, BATCH = "residual_sd_eta", "batch_price"
IGNORED = ("PHI",)  # published beside them; inside the intervals of the others
WORDS = ("published", "none")
# Best batch [sequences of 2048 tokens]: A N^alpha for data-parallel training, A N^alpha M^beta for
# local SGD (arXiv 2503.09799, Tables 9 and 10; the unit is not printed, this one fits its figures).
BATCH_TOKENS, BEST_BATCH, BEST_LOCAL_BATCH = 2048.0, (0.22592, 0.281), (0.00709, 0.4695, 0.3399)


class Communication(Pytree):
    """How the replicas of a plan talk; float32, any shape that broadcasts."""

    gparams: Float[Array, "*batch"]  # [1e9 parameters]
    replicas: Float[Array, "*batch"]  # M, groups that synchronise over the WAN
    period: Float[Array, "*batch"]  # H
    sync_bits: Float[Array, "*batch"]  # per value between replicas
    activation_bits: Float[Array, "*batch"]  # per value between stages; 16 where none cross
    overlap: Float[Array, "*batch"]  # tau [inner steps]
    batch_tokens: Float[Array, "*batch"]  # of all replicas in one step


class Band(Pytree):
    """What a token is worth: 95 % ends, the centre, and whether no published run is near."""

    low: Float[Array, "*batch"]
    centre: Float[Array, "*batch"]
    high: Float[Array, "*batch"]
    extrapolated: Bool[Array, "*batch"]

    def at(self, deviate: Float[Array, "..."]) -> Float[Array, "*batch"]:
        """The value at a standard normal deviate: -1.96 is the lower end, 0 the centre, 1.96 the
        upper end, straight lines between and nothing beyond."""
        share = jnp.clip(deviate / TWO_SIDED_95, -1.0, 1.0)
        below = self.centre + share * (self.centre - self.low)
        above = self.centre + share * (self.high - self.centre)
        return jnp.where(share < 0.0, below, above)


class TokenEfficiency(Pytree):
    """What tokens are worth; every number is a leaf.

    `given` replaces the band of all plans whose replicas talk seldom, late or in fewer than 16 bits;
    NaN = the published model. `deviate` says where in the band a world lies (`Band.at`).
    """

    model: Published
    given: Float[Array, "*batch"]  # NaN: `model`
    # Exponent p of the price (batch / best batch)^-p of a batch above the best one; 0 = no price
    batch_price: Float[Array, "*batch"]
    deviate: Float[Array, "*batch"]

    def band(self, how: Communication) -> Band:
        """The band of a way to communicate, 1 for synchronous 16-bit training."""
        local = (how.replicas > 1.0) & (how.period > 1.0)
        several = how.replicas > 1.0
        model = self.model.ends(how.gparams, how.replicas, how.period)
        outer, gradients = (bits_factor(t, how.sync_bits) for t in (OUTER_BITS, GRADIENT_BITS))
        stages = bits_factor(ACTIVATION_BITS, how.activation_bits)
        late = overlap_factor(how.overlap, how.period)

        def end(i):
            factor = jnp.where(local, jnp.minimum(model[i], 1.0) * outer[i] * late[i], gradients[i])
            return jnp.minimum(jnp.where(several, factor, 1.0) * stages[i], 1.0)

        low, centre, high = (end(i) for i in range(3))
        lossy = (how.sync_bits < 16.0) & several | (how.activation_bits < 16.0)
        changed = local | lossy
        fixed = ~jnp.isnan(self.given)
        worth = jnp.where(changed, jnp.where(fixed, self.given, 1.0), 1.0)
        price = self._batch(how)
        between = local & (how.overlap > 1.0) & (how.overlap < how.period)
        few = several & ~local & (how.sync_bits < 4.0) | (how.activation_bits < 4.0)
        beyond = local & extrapolates(how.gparams, how.replicas, how.period) | between | few
        return Band(
            low=jnp.where(fixed, worth, low) * price,
            centre=jnp.where(fixed, worth, centre) * price,
            high=jnp.where(fixed, worth, high) * price,
            extrapolated=beyond & ~fixed,
        )

    def of(self, how: Communication) -> Float[Array, "*batch"]:
        """What a token is worth in the world that `deviate` names."""
        return self.band(how).at(jnp.asarray(self.deviate))

    def _batch(self, how: Communication) -> Array:
        local = (how.replicas > 1.0) & (how.period > 1.0)
        best = best_batch_tokens(how.gparams, jnp.where(local, how.replicas, 1.0), local)
        return jnp.maximum(how.batch_tokens / best, 1.0) ** -self.batch_price


def best_batch_tokens(
    gparams: Float[Array, "..."], replicas: Float[Array, "..."], local: Bool[Array, "..."]
) -> Float[Array, "..."]:
    """[tokens] of the best global batch, of local SGD over `replicas` or of data-parallel training."""
    size = jnp.maximum(gparams, 1e-3) * 1e9
    whole = BEST_BATCH[0] * size ** BEST_BATCH[1]
    apart = BEST_LOCAL_BATCH[0] * size ** BEST_LOCAL_BATCH[1] * replicas ** BEST_LOCAL_BATCH[2]
    return BATCH_TOKENS * jnp.where(local, apart, whole)


def published_efficiency() -> TokenEfficiency:
    """The published model at the lower end of its band, where plans are chosen."""
    return TokenEfficiency(
        Published.default(), jnp.float32(np.nan), jnp.float32(0.0), jnp.float32(-TWO_SIDED_95)
    )


def lower_end(efficiency: TokenEfficiency) -> TokenEfficiency:
    """The same at the lower end of its band."""
    return efficiency.replace(deviate=jnp.full_like(efficiency.deviate, -TWO_SIDED_95))


def read_efficiency(said: str | float) -> TokenEfficiency:
    """What a user says: `published`, `none` (every token counts), a number from 0 to 1 for all plans
    that are not synchronous in 16 bits, or a CSV file `parameter,value,lo95,hi95` with parameters of
    the published model (what is missing keeps its value) and, if wanted, `batch_price`.

    Raises InputError for anything else.
    """
    plain, text = published_efficiency(), str(said).strip()
    if text == "published":
        return plain
    if text == "none":
        return plain.replace(given=jnp.float32(1.0))
    try:
        value = float(text)
    except ValueError:
        value = None
    if value is not None:
        if not 0.0 < value <= 1.0:
            raise InputError(f"efficiency: expected a number > 0 and at most 1, got {shown(text)}")
        return plain.replace(given=jnp.float32(value))
    if not is_file(text):
        allowed = f"{', '.join(WORDS)}, a number > 0 and at most 1, or a CSV file"
        raise InputError(f"efficiency: expected {allowed}, got {shown(text)}")
    return _from_file(text, plain)


def _from_file(path: str, plain: TokenEfficiency) -> TokenEfficiency:
    table = read_text_table(path, "a CSV table of parameters", "parameter")
    require_columns(table, ("parameter", "value", "lo95", "hi95"), path)
    known = (*FITTED, SCATTER, BATCH, *IGNORED)
    changes: dict[str, Parameter | Array] = {}
    price = plain.batch_price
    for line, row in zip(table.index, table.to_dict("records"), strict=True):
        name, where = row["parameter"], f"{path}: line {line}"
        if name not in known:
            raise InputError(f"{where}: unknown parameter {shown(name)}; known: {', '.join(known)}")
        value = _number(row["value"], f"{where}: value")
        if name in FITTED:
            low, high = (
                _number(row[key] or row["value"], f"{where}: {key}") for key in ("lo95", "hi95")
            )
            if not low <= value <= high:
                raise InputError(
                    f"{where}: expected lo95 <= value <= hi95, got {low}, {value}, {high}"
                )
            changes[name] = Parameter.of(value, low, high)
        elif name == SCATTER:
            changes[name] = jnp.float32(max(value, 0.0))
        elif name == BATCH:
            price = jnp.float32(max(value, 0.0))
    return plain.replace(model=plain.model.replace(**changes), batch_price=price)


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not abs(value) <= 1e3:
        raise InputError(f"{where}: expected a number from -1000 to 1000, got {shown(text)}")
    return value
