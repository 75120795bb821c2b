"""Communication inside a domain: tensor, context and pipeline parallelism, data-parallel sync."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.cluster import Calibration, Cluster
from jaxsim.plan import PLACEMENT_DP_INNER, Plan
from jaxsim.workload import SENT_GRADIENT_BYTES, Workload


def ring_gb_per_s(cluster: Cluster, calibration: Calibration, stride: Array, ranks: Array) -> Array:
    """[K] [GB/s] that each rank of a ring reaches, given the distance between neighbouring ranks.

    A ring of n ranks `stride` apart stays inside a node while stride x n fits it and then runs over
    NVLink; otherwise the `stride` parallel rings of a node share its network.
    """
    inside = stride * ranks <= cluster.gpus_per_node
    sharing = jnp.minimum(stride, cluster.gpus_per_node).astype(jnp.float32)
    network = cluster.intra_gb_per_s * calibration.intra_efficiency / sharing
    nvlink = cluster.gpu.nvlink_gb_per_s * calibration.nvlink_efficiency
    return jnp.where(inside, nvlink, network)


def latency_s(cluster: Cluster, calibration: Calibration, stride: Array, ranks: Array) -> Array:
    """[K] [s] before the first byte of a collective arrives: software per doubling of the ranks, and
    half a round trip per doubling of the nodes that they span."""
    n = jnp.maximum(ranks, 1).astype(jnp.float32)
    inside = stride * ranks <= cluster.gpus_per_node
    per_node = jnp.maximum(cluster.gpus_per_node, 1).astype(jnp.float32)
    nodes = jnp.minimum(jnp.maximum(n * stride.astype(jnp.float32) / per_node, 1.0), n)
    wire_s = jnp.where(inside, 0.0, 0.5 * cluster.intra_rtt_s * jnp.log2(nodes))
    return calibration.collective_alpha_s * jnp.log2(n) + wire_s


def tensor_reduce_s(
    work: Workload,
    cluster: Cluster,
    calibration: Calibration,
    micro_batch: Int[Array, " K"],
    tp: Int[Array, " K"],
    cp: Int[Array, " K"],
) -> Float[Array, " K"]:
    """[K] [s] of one all-reduce of a layer's output over the tensor-parallel group.

    A layer needs two in each direction (Shoeybi et al. 2019, Megatron-LM, sec. 3); sequence
    parallelism splits each into an all-gather and a reduce-scatter of the same bytes.
    """
    n = tp.astype(jnp.float32)
    volume = work.boundary_gb * micro_batch.astype(jnp.float32) / cp.astype(jnp.float32)
    rate = ring_gb_per_s(cluster, calibration, jnp.ones_like(tp), tp)
    start_s = latency_s(cluster, calibration, jnp.ones_like(tp), tp)
    return start_s + 2.0 * (n - 1.0) * volume / (n * rate)


def context_parallel_s(
    work: Workload,
    cluster: Cluster,
    calibration: Calibration,
    micro_batch: Array,
    room_s: tuple[Array, Array],
    tp: Array,
    cp: Array,
) -> tuple[Array, Array, Array]:
    """[K] [s] per layer and micro-batch of a ring over keys and values: exposed, and what of it hides
    in the forward and in the backward pass.

    Liu et al. 2023 (ring attention): c - 1 hops of one chunk forward, twice that backward. `room_s`
    [K] [s] is what the passes leave for them, a c-th for the hops beside each of the c chunk pairs.
    It ends where another operator needs the GPU: a faster GPU never costs the ring more than it
    saves the pass.
    """
    n = cp.astype(jnp.float32)
    chunk_gb = work.kv_gb * micro_batch.astype(jnp.float32) / (n * tp.astype(jnp.float32))
    hop_s = chunk_gb / ring_gb_per_s(cluster, calibration, tp, cp)
    hop_s = hop_s + calibration.hop_alpha_s + _wire_s(cluster, tp, cp)
    there_s, share = (n - 1.0) * hop_s, (n - 1.0) / n
    back_s = 2.0 * there_s
    forward_s = jnp.minimum(there_s, share * room_s[0])
    backward_s = jnp.minimum(back_s, share * room_s[1])
    return (there_s - forward_s) + (back_s - backward_s), forward_s, backward_s


def stage_hop_s(
    work: Workload,
    cluster: Cluster,
    calibration: Calibration,
    plan: Plan,
    dp: Array,
    micro_batch: Array,
) -> Array:
    """[K] [s] to hand one micro-batch to the next stage inside the domain (scatter-gather by tp)."""
    inner = jnp.where(plan.placement == PLACEMENT_DP_INNER, jnp.maximum(dp, 1), 1)
    shard = (plan.tp * plan.cp).astype(jnp.float32)
    volume = work.boundary_gb * micro_batch.astype(jnp.float32) / shard
    pair = jnp.full_like(plan.tp, 2)
    stride = plan.tp * plan.cp * inner
    hop = volume / ring_gb_per_s(cluster, calibration, stride, pair)
    hop = hop + _wire_s(cluster, stride, pair)
    return jnp.where(plan.pp > 1, hop + calibration.hop_alpha_s, 0.0)


def _wire_s(cluster: Cluster, stride: Array, ranks: Array) -> Array:
    """[K] [s] that one hop of a ring waits for the wire: nothing inside a node."""
    return jnp.where(stride * ranks <= cluster.gpus_per_node, 0.0, 0.5 * cluster.intra_rtt_s)


def data_parallel_pass_s(
    cluster: Cluster,
    calibration: Calibration,
    plan: Plan,
    dp: Array,
    params_per_gpu: Array,
) -> tuple[Array, Array]:
    """[K] [s] each of one pass (reduce-scatter or all-gather) over the replicas in the domain, 16-bit:
    its bytes, and the latency of one collective.

    A step takes two passes for ZeRO 0-2, three for ZeRO-3 (Rajbhandari et al. 2020, sec. 7).
    Context-parallel ranks hold the same weights, so they are replicas here; `params_per_gpu` is [K]
    in 1e9.
    """
    ranks = dp * plan.cp
    n = jnp.maximum(ranks, 1).astype(jnp.float32)  # unused domains have none
    inner = jnp.where(plan.placement == PLACEMENT_DP_INNER, 1, plan.pp).astype(jnp.int32)
    rate = ring_gb_per_s(cluster, calibration, plan.tp * inner, ranks)
    rate = rate * calibration.data_parallel_efficiency
    volume_s = (n - 1.0) * SENT_GRADIENT_BYTES * params_per_gpu / (n * rate)
    start_s = latency_s(cluster, calibration, plan.tp * inner, ranks)
    return jnp.where(ranks > 1, volume_s, 0.0), jnp.where(ranks > 1, start_s, 0.0)
