"""When a move pays: what a row brings over a horizon, the time and the price of the move taken off."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from agents.protocol import EvaluatedTable
from jaxsim.planning import NEVER


def amortised_gain(
    seen: EvaluatedTable,
    rate: Float[Array, " P"],
    interval_s: Float[Array, ""],
    horizon: Float[Array, ""],
) -> Float[Array, " P"]:
    """[P] training steps (or reward) over `horizon` intervals if each row were switched to now and
    never left.

    `rate` [P] is what the scheduler believes of the future; time spent moving is lost. Where nothing
    would be done within the horizon, because the plan in force cannot run and every move takes longer,
    the horizon ends one interval after the quickest move: to wait would be to stand still for ever.
    """
    span = amortised_span(rate, seen.switch_s, horizon * interval_s, interval_s)
    return after_move(rate, jnp.maximum(span - seen.switch_s, 0.0), seen.switch_worth)


def amortised_span(
    rate: Float[Array, " P"],
    switch_s: Float[Array, " P"],
    span_s: Float[Array, ""],
    interval_s: Float[Array, ""],
) -> Float[Array, ""]:
    """[] [s] the horizon, or longer where nothing would be done within it: see `amortised_gain`."""
    quickest = jnp.min(jnp.where(rate > 0, switch_s, jnp.inf))
    return jnp.where((quickest >= span_s) & jnp.isfinite(quickest), quickest + interval_s, span_s)


def after_move(
    rate: Float[Array, " P"], left_s: Float[Array, " P"], switch_worth: Float[Array, " P"] | None
) -> Float[Array, " P"]:
    """[P] what each row brings in the time that its move leaves, the move paid where it has a price."""
    if switch_worth is None:
        return rate * left_s
    return jnp.where(rate > 0.5 * NEVER, rate * left_s - switch_worth, NEVER)
