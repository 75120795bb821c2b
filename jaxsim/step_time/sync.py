"""Gradient synchronisation between the groups of a plan, over the WAN."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxsim.cluster import GBIT_PER_GBYTE, Calibration
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
    inside a group reduce first, so they add no bytes (hierarchical all-reduce).
    """
    n = n_groups(plan)
    start, end = layer_range(plan)
    # Unused domains get sentinels (-2, -1) that match no group.
    number = jnp.where(plan.used & (n > 1), plan.group, -2).astype(jnp.float32)
    successor = jnp.where(plan.used, jnp.where(plan.group == n - 1, 0, plan.group + 1), -1)
    ring = number[None, :] == successor.astype(jnp.float32)[:, None]
    gparams = layer_overlap(start, end, start, end) * work.layer_gparams
    ends = (topo.first.astype(jnp.float32), topo.last.astype(jnp.float32))
    tables = sum(end[:, None] * end[None, :] for end in ends)
    gparams = gparams + tables * work.embedding_gparams
    groups = jnp.maximum(n, 1).astype(jnp.float32)
    precision = plan.wire_bits.astype(jnp.float32) / FULL_PRECISION_BITS
    volume = 2.0 * (groups - 1.0) / groups * SENT_GRADIENT_BYTES * precision
    return jnp.where(ring, volume * gparams, 0.0)


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
    """[] [s] of one all-reduce: 2 (n - 1) phases, each as slow as its slowest link."""
    n = n_groups(plan).astype(jnp.float32)
    on_link = bytes_gb > 0
    transfer = jnp.where(on_link, bytes_gb / jnp.maximum(ring_gb_per_s, 1e-9), 0.0).max()
    return transfer + 2.0 * (n - 1.0) * jnp.where(on_link, latency_s, 0.0).max()


def statistical_efficiency(
    gparams: Float[Array, "..."],
    sync_period: Int[Array | np.ndarray | np.generic, "..."],
    wire_bits: Int[Array | np.ndarray | np.generic, "..."],
) -> Float[Array, "..."]:
    """[] progress per step relative to synchronous 16-bit training, an explicit assumption.

    Local SGD: 1 - 0.08 log10(H) / (1 + log10(P / 1e9) / 5), a heuristic for DiLoCo's published loss
    curves (Douillard et al. 2023); P below 1e8 counts as 1e8. WAN values below 16 bits cost 1 %
    per halving, a placeholder until a table is fitted.
    """
    size = jnp.log10(jnp.maximum(gparams, 0.1)) / 5.0
    local = 1.0 - 0.08 * jnp.log10(sync_period.astype(jnp.float32)) / (1.0 + size)
    halvings = jnp.log2(FULL_PRECISION_BITS / wire_bits.astype(jnp.float32))
    return local * (1.0 - 0.01 * jnp.maximum(halvings, 0.0))
