"""Traffic of sharded weights and gradients: ZeRO-3 and FSDP, unit by unit."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxsim.cluster import Calibration
from jaxsim.plan import Plan
from jaxsim.step_time.stages import Stages
from jaxsim.workload import RESHARD, Workload

WIRE_BYTES = 2.0  # of a gathered weight
ALWAYS, UNLESS_PIPELINED = RESHARD.index("always"), RESHARD.index("unless-pipelined")


def is_sharded(work: Workload, plan: Plan) -> Array:
    """[K] bool: gradients are scattered unit by unit. ZeRO-3, and ZeRO-2 as FSDP runs it
    (SHARD_GRAD_OP: gathered once a micro-batch, kept until its backward pass is over)."""
    return (plan.zero_stage == 3) | ((plan.zero_stage == 2) & work.scatter_each)


def is_resharded(work: Workload, plan: Plan) -> Array:
    """[K] bool: gathered weights are dropped after the forward pass and gathered again."""
    policy = jnp.where(plan.reshard >= 0, plan.reshard, work.reshard)
    always = policy == ALWAYS
    alone = (policy == UNLESS_PIPELINED) & (plan.pp == 1)
    return (plan.zero_stage == 3) & (always | alone)


def hidden_in_part(compute_s: Array, traffic_s: Array, overlap: Array) -> Array:
    """What `traffic_s` adds to `compute_s`: prefetch hides a share `overlap` of the lesser of both.

    max(c, m) + (1 - overlap) min(c, m) - c: collectives take compute units and memory bandwidth from
    the kernels that they run beside, so even a long pass does not hide a short gather for nothing.
    """
    over = jnp.maximum(traffic_s - compute_s, 0.0)
    return over + (1.0 - overlap) * jnp.minimum(compute_s, traffic_s)


def exposed_s(
    work: Workload,
    calibration: Calibration,
    plan: Plan,
    st: Stages,
    bytes_s: Array,
    start_s: Array,
) -> Array:
    """[K] [s] per step that gathering weights and scattering gradients adds, where `is_sharded`.

    bytes_s, start_s [K] [s]: one pass over the replicas at the rate of the gradient ring, and the
    latency of one collective; every layer is a unit with collectives of its own. Weights are gathered
    for every forward pass and, resharded, for every backward pass; where they are kept (ZeRO-3
    without resharding) once a step. Gradients are scattered after every micro-batch
    (`scatter_each`) or after the last.
    """
    start_s = start_s * jnp.maximum(st.layers, 1.0)
    gather_s = bytes_s / calibration.gather_efficiency + start_s
    wide = work.reduce_bytes / WIRE_BYTES
    scatter_s = wide * bytes_s / calibration.gather_efficiency + start_s
    again_s = jnp.where(is_resharded(work, plan), gather_s, 0.0)
    kept = (plan.zero_stage == 3) & ~is_resharded(work, plan)
    gathers = jnp.where(kept, 1.0, st.micro_batches)
    scatters = jnp.where(work.scatter_each & ~kept, st.micro_batches, 1.0)

    def adds(compute_s, traffic_s):
        return hidden_in_part(compute_s, traffic_s, calibration.shard_overlap)

    forward_s = gathers * adds(st.forward_s, gather_s)
    last_s = scatters * adds(st.backward_s, again_s + scatter_s)
    others_s = (st.micro_batches - scatters) * adds(st.backward_s, again_s)
    # The first unit's weights and the last one's gradients have nothing to hide behind.
    ends_s = (gather_s + scatter_s) / jnp.maximum(st.layers, 1.0)
    return forward_s + last_s + others_s + ends_s


def wan_passes(work: Workload, plan: Plan, st: Stages) -> Array:
    """[K] times that ZeRO-3 sends all weights or gradients of a domain around the groups that share
    them, in one step and beyond the two of every all-reduce; 0 where each group holds the model."""
    resharded = is_resharded(work, plan)
    gathers = jnp.where(resharded, 2.0 * st.micro_batches, 1.0)
    scatters = jnp.where(work.scatter_each & resharded, st.micro_batches, 1.0)
    shares = plan.used & (plan.zero_stage == 3) & (plan.shard_groups > 1)
    return jnp.where(shares, gathers + scatters - 2.0, 0.0)


def wan_exposed_s(
    calibration: Calibration, st: Stages, passes: Array, pass_s: Array, latency_s: Array
) -> Array:
    """[K] [s] per step that these passes add: `pass_s` [K] for the bytes of one, `latency_s` [K] for
    the hops of one collective; every layer has its own, and prefetch hides a part."""
    traffic_s = passes * (pass_s + latency_s * jnp.maximum(st.layers, 1.0))
    compute_s = st.micro_batches * (st.forward_s + st.backward_s)
    return hidden_in_part(compute_s, traffic_s, calibration.shard_overlap)
