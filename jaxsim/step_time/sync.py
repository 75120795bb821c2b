"""Gradient synchronisation between the groups of a plan, over the WAN."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.cluster import GBIT_PER_GBYTE, Calibration
from jaxsim.learning import Communication
from jaxsim.plan import FULL_PRECISION_BITS, Plan, layer_range, n_groups
from jaxsim.step_time.topology import Topology
from jaxsim.workload import SENT_GRADIENT_BYTES, Workload


def layer_overlap(
    start_a: Float[Array, " K"],
    end_a: Float[Array, " K"],
    start_b: Float[Array, " K"],
    end_b: Float[Array, " K"],
) -> Float[Array, "K K"]:
    """[K, K] layers that row (range a) and column (range b) have in common."""
    low = jnp.maximum(start_a[:, None], start_b[None, :])
    return jnp.maximum(jnp.minimum(end_a[:, None], end_b[None, :]) - low, 0.0)


def ring_bytes_gb(work: Workload, plan: Plan, topo: Topology) -> Float[Array, "K K"]:
    """[K, K] [GB] that one gradient all-reduce sends over each link.

    A ring over the groups in the order of their number: each sends 2 (n - 1) / n of its gradient to
    the next (Patarasuk and Yuan 2009), every domain the layers that both ends hold. The replicas
    inside a group reduce first, so they add no bytes (hierarchical all-reduce). Where s groups share
    one copy of the state (`shard_groups`), they scatter and gather around a ring of their own, and
    the n / s sets reduce each shard around another.
    """
    n = jnp.maximum(n_groups(plan), 1).astype(jnp.float32)
    s = jnp.minimum(plan.shard_groups.astype(jnp.float32), n)
    gparams = shared_gparams(work, plan, topo)
    precision = plan.wire_bits.astype(jnp.float32) / FULL_PRECISION_BITS
    inside = 2.0 * (s - 1.0) / s
    between = 2.0 * (n - s) / n / s  # 2 (q - 1) / q of a shard, q = n / s
    inside_ring, between_ring = rings(plan)
    volume = jnp.where(inside_ring, inside, 0.0) + jnp.where(between_ring, between, 0.0)
    return SENT_GRADIENT_BYTES * precision * volume * gparams


def rings(
    plan: Plan,
) -> tuple[Bool[Array | np.ndarray, "K K"], Bool[Array | np.ndarray, "K K"]]:
    """[K, K] bool: from a domain to one of the next group that shares its copy of the state, and of
    the group that holds the same shard in the next copy. With `shard_groups` 1 there is the second
    alone, the ring of all groups."""
    n = n_groups(plan)
    s = jnp.minimum(plan.shard_groups, jnp.maximum(n, 1))
    group = plan.group
    # Floats are exact here and vectorise; integer division does not.
    copy = jnp.floor((group.astype(jnp.float32) + 0.5) / s.astype(jnp.float32)).astype(jnp.int32)
    begin = copy * s
    following = jnp.where(group + 1 == begin + s, begin, group + 1)
    further = jnp.where(group + s >= n, group + s - n, group + s)
    source = plan.used[:, None]

    def to(successor, exists):
        return source & exists & (group[None, :] == successor[:, None])

    return to(following, s > 1), to(further, n > s)


def shared_gparams(work: Workload, plan: Plan, topo: Topology) -> Float[Array, "K K"]:
    """[K, K] [1e9] parameters that two domains both hold, embedding tables included."""
    start, end = layer_range(plan)
    gparams = layer_overlap(start, end, start, end) * work.layer_gparams
    ends = (topo.first.astype(jnp.float32), topo.last.astype(jnp.float32))
    tables = sum(end[:, None] * end[None, :] for end in ends)
    return gparams + tables * work.embedding_gparams


def ring_rate_gb_per_s(
    bandwidth_gb_per_s: Float[Array, "*links"],
    sync_period: Int[Array | np.ndarray | np.generic, "..."],
    cal: Calibration,
) -> Float[Array, "*links"]:
    """[...] [GB/s] that a ring reaches on links of the given bandwidth.

    One large outer sync (H > 1) fills a link better than the buckets of a gradient sync, and slow
    links lose a larger share: both as measured over shaped links.
    """
    filled = jnp.where(
        jnp.asarray(sync_period) > 1, cal.outer_sync_efficiency, cal.wan_ring_efficiency
    )
    lost_gb_per_s = cal.slow_link_gbps / GBIT_PER_GBYTE
    rate = (
        filled * bandwidth_gb_per_s / (1.0 + lost_gb_per_s / jnp.maximum(bandwidth_gb_per_s, 1e-9))
    )
    return jnp.maximum(rate, 1e-9)


def ring_s(
    plan: Plan,
    bytes_gb: Float[Array, "K K"],
    ring_gb_per_s: Float[Array, "K K"],
    latency_s: Float[Array, "K K"],
) -> Float[Array, ""]:
    """[] [s] of one all-reduce: 2 (n - 1) phases, each as slow as its slowest link; where groups share
    the state, those of a set first, then those between the sets."""
    n = n_groups(plan).astype(jnp.float32)
    on_link = bytes_gb > 0
    link_s = jnp.where(on_link, bytes_gb / jnp.maximum(ring_gb_per_s, 1e-9), 0.0)
    inside, _ = rings(plan)
    transfer = jnp.where(inside, link_s, 0.0).max() + jnp.where(inside, 0.0, link_s).max()
    return transfer + 2.0 * (n - 1.0) * jnp.where(on_link, latency_s, 0.0).max()


def outer_exposed_s(
    fragment_s: Float[Array, "..."],
    period: Float[Array, "..."],
    fragments: Float[Array, "..."],
    overlap: Float[Array, "..."],
    free_s: Float[Array, "..."],
    step_s: Float[Array, "..."],
    beside_s: Float[Array, "..."] | float = 0.0,
) -> Float[Array, "..."]:
    """[s] per step that syncing over the WAN adds; arguments broadcast.

    Every `period` / `fragments` steps a fragment travels for `fragment_s`. The last backward pass
    hides `free_s` of the sync inside the domains (`beside_s`) and then of the fragment. With `overlap`
    0 everybody waits for the rest. Otherwise it travels behind the next `overlap` steps of `step_s`
    as well, and never longer than until the next fragment follows (Douillard et al. 2025).
    """
    every = period / fragments
    inside_s = jnp.maximum(beside_s - free_s, 0.0)
    waits_s = jnp.maximum(beside_s + fragment_s - free_s, 0.0) - inside_s
    hides_s = overlap * step_s + jnp.maximum(free_s - beside_s, 0.0)
    late_s = jnp.maximum(fragment_s - jnp.minimum(hides_s, every * step_s), 0.0)
    return jnp.where(overlap > 0.0, late_s, waits_s) / every


def communication(plan: Plan, work: Workload) -> Communication:
    """How the replicas of one job's plan talk, as `jaxsim.learning` asks."""
    groups = n_groups(plan).astype(jnp.float32)
    crosses = jnp.any(plan.used & (plan.position > 0))  # pyright: ignore[reportArgumentType]
    bits = plan.activation_bits.astype(jnp.float32)
    return Communication(
        gparams=work.gparams,
        replicas=groups,
        period=plan.sync_period.astype(jnp.float32),
        sync_bits=plan.wire_bits.astype(jnp.float32),
        activation_bits=jnp.where(crosses, bits, float(FULL_PRECISION_BITS)),
        overlap=plan.overlap.astype(jnp.float32),
        batch_tokens=work.tokens_per_step,
    )
