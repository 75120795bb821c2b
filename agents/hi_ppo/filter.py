"""Links and GPUs as they will probably be: averages whose memory follows what each of them does.

Batch shares that suit the last measurement chase its noise; an average lags behind a link that
drifts. Each link and each domain takes, of several exponential averages, the one that has forecast
its next measurement best of late (following the best expert: Cesa-Bianchi and Lugosi, Prediction,
Learning, and Games, 2006, section 4.2; Herbster and Warmuth, 1998, on forgetting).
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView

WEIGHTS = (1.0, 0.6, 0.35, 0.2, 0.1, 0.05)  # of the last measurement; 1 = nothing else counts
KEPT = 0.97  # of an error in the next interval
SMALLEST = 1e-9  # [GB/s] of a link that carries nothing, for its logarithm


class ViewFilter(Pytree):
    """Every average of log bandwidths [log GB/s] and of free GPUs, with the discounted sum of its
    squared errors as a forecast of the next measurement."""

    links: Float[Array, "*batch E K K"]
    links_error: Float[Array, "*batch E K K"]
    gpus: Float[Array, "*batch E K"]
    gpus_error: Float[Array, "*batch E K"]


def init_filter(prior: NetworkView) -> ViewFilter:
    """Before the first measurement: all averages are what the cluster file says."""
    links, gpus = _logs(prior)
    count = len(WEIGHTS)
    links = jnp.broadcast_to(links, (count, *links.shape))
    gpus = jnp.broadcast_to(gpus, (count, *gpus.shape))
    return ViewFilter(links, jnp.zeros_like(links), gpus, jnp.zeros_like(gpus))


def update_filter(before: ViewFilter, measured: NetworkView) -> ViewFilter:
    """Take in one measurement."""
    links, gpus = _logs(measured)
    links, links_error = _step(before.links, before.links_error, links)
    gpus, gpus_error = _step(before.gpus, before.gpus_error, gpus)
    return ViewFilter(links, links_error, gpus, gpus_error)


def expected_view(filtered: ViewFilter, measured: NetworkView) -> NetworkView:
    """The view that batch shares are balanced on, given the last measurement, which is in `filtered`
    already. Where nothing was carried, nothing is expected; GPUs are whole."""
    bandwidth = jnp.exp(_best(filtered.links, filtered.links_error))
    gpus = jnp.round(_best(filtered.gpus, filtered.gpus_error))
    return measured.replace(
        bandwidth_gb_per_s=jnp.where(measured.bandwidth_gb_per_s > 0, bandwidth, 0.0),
        gpus_available=gpus.astype(measured.gpus_available.dtype),
    )


def _logs(view: NetworkView) -> tuple[Array, Array]:
    links = jnp.log(jnp.maximum(view.bandwidth_gb_per_s, SMALLEST))
    return links, view.gpus_available.astype(jnp.float32)


def _step(mean: Array, error: Array, value: Array) -> tuple[Array, Array]:
    weight = jnp.asarray(WEIGHTS, jnp.float32).reshape(-1, *(1,) * value.ndim)
    surprise = value[None] - mean
    return mean + weight * surprise, KEPT * error + jnp.square(surprise)


def _best(mean: Array, error: Array) -> Array:
    """Of equals the first, which forgets most."""
    best = jnp.argmin(error, axis=0)
    return jnp.take_along_axis(mean, best[None], axis=0)[0]
