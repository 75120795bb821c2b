"""Local jobs take or return GPUs while a plan stays in force: what each domain does about it.

A domain whose replicas grow or shrink in number is laid out anew by itself: it restarts, and its GPUs
fetch their new shards over its own fabric. No layer crosses the WAN. Groups that sync in every step all
wait for it; groups that train on their own for several steps go on. One of these that had lost all of
its GPUs fetches the state from the others when they return, over the WAN, and trains again after that.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.plan import Problem
from jaxsim.pytree import Pytree
from jaxsim.step_time import LayerSpan, layer_overlap, shard_fetch_s


class Resizing(Pytree):
    """What it comes to in one interval."""

    lost_s: Float[Array, "*batch"]  # [s] of training that the job loses
    moved_gb: Float[Array, "*batch K K"]  # [GB] of state that groups which came back fetched
    behind_gb: Float[Array, "*batch K K"] | None  # [GB] that they and the absent ones still lack


def resize(
    span: LayerSpan,
    problem: Problem,
    before: Int[Array, " K"],
    now: Int[Array, " K"],
    rate_gb_per_s: Float[Array, "K K"],
    interval_s: Float[Array, ""],
    behind_gb: Float[Array, "K K"] | None = None,
) -> Resizing:
    """One job whose plan, of which `span` tells, used `before` [K] GPUs in the last interval and uses
    `now` [K] in this one.

    `behind_gb` [K, K] [GB] is what groups lacked at the end of the last interval, None where no plan
    syncs less than every step. Links are those of this interval; the slowest decides.
    """
    _, tp, pp, cp, zero = span.shards
    replicas = now // jnp.maximum(tp * pp * cp, 1)
    layers = jnp.where(span.used, span.end - span.start, 0.0)
    present = span.used & (now > 0)
    changed = present & (now != before)
    restart_s = jnp.where(changed, problem.calibration.restart_s, 0.0)
    shards_s = shard_fetch_s(layers, (replicas, tp, pp, cp, zero), problem)
    shards_s = jnp.where(changed, shards_s, 0.0)
    if behind_gb is None:
        lost_s = jnp.minimum(jnp.max(restart_s + shards_s), interval_s)
        return Resizing(lost_s, jnp.zeros_like(rate_gb_per_s), None)
    apart = span.talk[0] > 1
    lacks_gb = _state_gb(span, present, problem)
    behind_gb = jnp.where((span.used & ~present)[None, :], lacks_gb, behind_gb)
    behind_gb = jnp.where(apart, behind_gb, 0.0)
    fetch_s = (behind_gb / jnp.maximum(rate_gb_per_s, 1e-9)).max(axis=0)
    pause_s = restart_s + jnp.maximum(shards_s, jnp.where(present, fetch_s, 0.0))
    left_s = jnp.maximum(interval_s - restart_s, 0.0)
    moved_gb = jnp.minimum(behind_gb, rate_gb_per_s * left_s[None, :])
    moved_gb = jnp.where(present[None, :], moved_gb, 0.0)
    together_s = jnp.minimum(jnp.max(pause_s), interval_s)
    lost_s = jnp.where(apart, _apart_s(span, present, pause_s, interval_s), together_s)
    return Resizing(lost_s, moved_gb, behind_gb - moved_gb)


def _apart_s(span: LayerSpan, present: Array, pause_s: Array, interval_s: Array) -> Array:
    """[] [s] of training lost where every group pauses for itself: the mean over the batch."""
    together = span.group[:, None] == span.group[None, :]
    of_group = jnp.where(together, pause_s[None, :], 0.0).max(axis=1)
    weight = jnp.where(present, span.sequences, 0.0)
    lost_s = jnp.sum(weight * jnp.minimum(of_group, interval_s))
    return lost_s / jnp.maximum(jnp.sum(weight), 1e-9)


def _state_gb(span: LayerSpan, present: Array, problem: Problem) -> Array:
    """[K, K] [GB] that every domain would fetch: the layers it holds, in equal parts from the domains
    of the other groups that are present."""
    layers = layer_overlap(span.start, span.end, span.start, span.end)
    others = present[:, None] & (span.group[:, None] != span.group[None, :])
    groups = jnp.maximum(jnp.sum(jnp.where(others, layers, 0.0), axis=0), 1e-9)
    held = jnp.where(others, layers, 0.0) / groups[None, :]
    return held * (span.end - span.start)[None, :] * problem.work.state_gb_per_layer
