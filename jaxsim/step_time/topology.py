"""Who talks to whom in a plan, and how often."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.plan import ALL_SCHEDULES, INTERLEAVED_CHUNKS, Plan, Schedule, steps_ahead
from jaxsim.pytree import Pytree


class Topology(Pytree):
    """Who talks to whom in a plan; [K, K] bool are row = source, column = destination."""

    together: Bool[Array, "*batch K K"]  # both used and in one group
    to_next: Bool[Array, "*batch K K"]  # destination is the source's successor in its pipeline
    # the transpose: read straight, a loop over it vectorises
    to_previous: Bool[Array, "*batch K K"]
    after: Bool[Array, "*batch K K"]  # destination stands at or after the source in its pipeline
    before: Bool[Array, "*batch K K"]  # the transpose: at or before it
    first: Bool[Array, "*batch K"]  # head of a pipeline
    last: Bool[Array, "*batch K"]  # tail of a pipeline


def topology(plan: Plan) -> Topology:
    """Derive the pipeline's neighbours from groups and positions."""
    ahead, n_domains = steps_ahead(plan), plan.group.shape[-1]
    to_next = ahead == 1.0
    return Topology(
        together=jnp.abs(ahead) < n_domains,
        to_next=to_next,
        to_previous=ahead == -1.0,
        after=(ahead >= 0.0) & (ahead < n_domains),
        before=(ahead <= 0.0) & (ahead > -n_domains),
        first=plan.used & (plan.position == 0),  # pyright: ignore[reportArgumentType]
        last=plan.used & ~jnp.any(to_next, axis=1),  # pyright: ignore[reportArgumentType]
    )


def crossing(topo: Topology) -> Array:
    """[K, K] bool: the way from the last domain of a pipeline back to its first."""
    return topo.together & topo.last[:, None] & topo.first[None, :] & ~topo.first[:, None]


def transfers_per_micro_batch(
    topo: Topology, schedule: Int[Array, " K"], schedules: tuple[int, ...] = ALL_SCHEDULES
) -> Float[Array, "K K"]:
    """[K, K] float32 activations and gradients of a micro-batch over each link, `schedule` [K]:
    one of every chunk each way, and between chunks from the last domain to the first and back."""
    if Schedule.INTERLEAVED not in schedules:
        return (topo.to_next | topo.to_previous).astype(jnp.float32)
    interleaved = schedule == Schedule.INTERLEAVED
    chunks = jnp.where(interleaved, float(INTERLEAVED_CHUNKS), 1.0)[:, None]
    wrap = crossing(topo)
    between = jnp.where(wrap | wrap.T, chunks - 1.0, 0.0)
    return jnp.where(topo.to_next | topo.to_previous, chunks, 0.0) + between


@jax.custom_jvp
def largest(values: Array) -> Array:
    """[...] the largest of [R, ...] over the first axis. Its slope is that of the first largest: JAX's
    own divides by the number of equals, which is 0 where a compiler computes the values again and
    rounds them otherwise."""
    return values.max(axis=0)


@largest.defjvp
def _slope_of_largest(primals, tangents):
    (values,), (moved,) = primals, tangents
    row = jnp.arange(values.shape[0], dtype=jnp.int32).reshape(-1, *[1] * (values.ndim - 1))
    first = row == jnp.argmax(values, axis=0)[None].astype(jnp.int32)
    return values.max(axis=0), jnp.where(first, moved, 0.0).sum(axis=0)
