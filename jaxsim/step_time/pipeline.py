"""One training step of a pipeline over the WAN, closed form."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxsim.plan import SCHEDULE_EAGER_1F1B, SCHEDULE_GPIPE, Plan, masked_sums, same_group


@struct.dataclass
class Topology:
    """Who talks to whom in a plan; [K, K] bool are row = source, column = destination."""

    together: Array  # [K, K] both used and in one group
    to_next: Array  # [K, K] destination is the source's successor in its pipeline
    after: Array  # [K, K] destination stands at or after the source in its pipeline
    first: Array  # [K] bool, head of a pipeline
    last: Array  # [K] bool, tail of a pipeline


def topology(plan: Plan) -> Topology:
    """Derive the pipeline's neighbours from groups and positions."""
    together = same_group(plan)
    step = plan.position[None, :] - plan.position[:, None]
    to_next = together & (step == 1)
    return Topology(
        together=together,
        to_next=to_next,
        after=together & (step >= 0),
        first=plan.used & (plan.position == 0),
        last=plan.used & ~jnp.any(to_next, axis=1),
    )


def in_flight_limit(schedule: Array, depth: Array, micro_batches: Array) -> Array:
    """[K] float32 micro-batches that a stage may hold, `depth` = stages from it to the end, itself
    included; the name says which of 1F1B, eager 1F1B and GPipe."""
    limit = jnp.where(schedule == SCHEDULE_EAGER_1F1B, 2.0 * depth - 1.0, depth)
    return jnp.where(schedule == SCHEDULE_GPIPE, micro_batches, jnp.minimum(limit, micro_batches))


@struct.dataclass
class PipelineTime:
    """[K] each, the same number for all domains of a group."""

    total_s: Array  # [s] from the first forward to the last backward
    ideal_s: Array  # [s] the same over a WAN of no cost
    in_flight: Array  # [K] micro-batches held by the domain's first stage (its own number)
    period_s: Array  # [s] between micro-batches in steady state


def pipeline_time(
    topo: Topology,
    plan_pp: Array,
    schedule: Array,
    micro_batches: Array,
    stage_s: Array,
    extra_last_s: Array,
    inner_hop_s: Array,
    send_s: Array,
    latency_s: Array,
) -> PipelineTime:
    """Fill, then the slowest of: a stage, a link, a stage waiting for its in-flight limit.

    stage_s [K]: forward + backward of one micro-batch on one stage of the domain; extra_last_s [K]:
    the logits, on the last stage; inner_hop_s [K]: one way between stages of the domain; send_s,
    latency_s [K, K]: occupation of a directed WAN link by one micro-batch of all replicas, and its
    one-way latency. Fill and bottleneck: Narayanan et al. 2021 for equal stages, Zheng et al. 2022
    (Alpa, eq. 1) for unequal ones. The third term is the WAN's: stage i starts forward m + n_i only
    after backward m came back, so a round trip R_i passes at most n_i micro-batches and latency is
    paid O(M / n) times (the effect that CrossPipe, 2025, describes).
    """
    stages = plan_pp.astype(jnp.float32)
    last_s = jnp.where(topo.last, extra_last_s, 0.0)
    own_s = stages * stage_s + last_s + 2.0 * (stages - 1.0) * inner_hop_s
    one_way_s = send_s + latency_s
    hop_s = jnp.where(topo.to_next, one_way_s + one_way_s.T, 0.0).sum(axis=1)
    busiest_link = jnp.where(topo.to_next, jnp.maximum(send_s, send_s.T), 0.0).max(axis=1)

    depth, round_trip_s = masked_sums(topo.after, jnp.stack([stages, own_s + hop_s]))
    fill_s, unhindered_fill_s = masked_sums(topo.together, jnp.stack([own_s + hop_s, own_s]))
    limit = in_flight_limit(schedule, depth, micro_batches)

    def over_group(values):
        return jnp.where(topo.together, values[None, :], 0.0).max(axis=1)

    beat_s = over_group(jnp.maximum(stage_s + last_s, busiest_link))
    throttled_s = jnp.maximum(beat_s, round_trip_s / jnp.maximum(limit, 1.0))
    drain_s = (limit - 1.0) * beat_s + (micro_batches - limit) * throttled_s
    # The fill already holds one beat of the slowest stage.
    total_s = fill_s + over_group(drain_s)
    ideal_s = unhindered_fill_s + (micro_batches - 1.0) * over_group(stage_s + last_s)
    return PipelineTime(total_s, ideal_s, limit, over_group(throttled_s))
