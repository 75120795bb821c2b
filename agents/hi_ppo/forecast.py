"""Rates as they are expected to be: every row of a table on the network that a model foresees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from agents.foresight import Outlook
from agents.hi_ppo.features import AHEAD
from agents.protocol import Setup, score_rows
from jaxsim.step_time import NetworkView


def forecast(
    setup: Setup, outlook: Outlook, view: NetworkView, choice: Int[Array, " P"]
) -> Float[Array, "A P"]:
    """[A, P] rates AHEAD of now, as of `Statistics.ahead`: `choice` [P] is every row's lower choice and
    `view` the last measurement, which `outlook` holds already."""
    coming = outlook.ahead(setup, view, AHEAD)
    rates, _ = score_rows(setup, setup.table.plans, choice, coming)
    return jnp.where(setup.table.mask, rates, 0.0)


def forecasts_along(
    setup: Setup, views: NetworkView, choice: Int[Array, "T P"]
) -> Float[Array, "T A P"]:
    """[T, A, P] the same after each of the measurements `views` [T, ...]."""

    def body(outlook, x):
        view, choice = x
        outlook = outlook.measured(setup, view)
        return outlook, forecast(setup, outlook, view, choice)

    return jax.lax.scan(body, Outlook.of(setup), (views, choice))[1]
