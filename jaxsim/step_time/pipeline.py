"""One training step of a pipeline over the WAN, closed form."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.plan import ALL_SCHEDULES, INTERLEAVED_CHUNKS, Schedule, masked_sums
from jaxsim.pytree import Pytree
from jaxsim.step_time.paths import (
    Ends,
    StageParts,
    Way,
    between,
    domain_ends,
    largest_in,
    ordered_s,
    rough_s,
    stage_parts,
    strictly,
)
from jaxsim.step_time.pipeline_inputs import PipelineInputs
from jaxsim.step_time.topology import (
    Topology,
    crossing,
    largest,
    transfers_per_micro_batch,
)


def in_flight_limit(
    schedule: Array,
    depth: Array,
    micro_batches: Array,
    total: Array | None = None,
    cover: Array | None = None,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> Array:
    """[K] float32 micro-batches that a stage may hold, never more than there are.

    `depth` [K]: stages from it to the end, itself included; `total` [K]: stages of its pipeline
    (None: it is the first); `cover` [K]: micro-batches that fill the stage's round trip, for the
    greedy order (None: as many as there are). Interleaved chunks count as parts of a micro-batch.
    `schedules` (static) are those that occur; what only others need is not compiled.
    """
    total = depth if total is None else total
    cover = micro_batches if cover is None else cover
    limit = jnp.where(schedule == Schedule.EAGER_1F1B, 2.0 * depth - 1.0, depth)
    if Schedule.INTERLEAVED in schedules:
        chunks = float(INTERLEAVED_CHUNKS)
        interleaved = (2.0 * (depth - 1.0) + (chunks - 1.0) * total + 1.0) / chunks
        limit = jnp.where(schedule == Schedule.INTERLEAVED, interleaved, limit)
    if Schedule.ZERO_BUBBLE in schedules:
        # ZB-H1 stores activations until the weight gradients are done: all stages hold as the first.
        limit = jnp.where(schedule == Schedule.ZERO_BUBBLE, total, limit)
    if Schedule.GREEDY in schedules:
        limit = jnp.where(schedule == Schedule.GREEDY, jnp.maximum(jnp.ceil(cover), depth), limit)
    return jnp.where(schedule == Schedule.GPIPE, micro_batches, jnp.minimum(limit, micro_batches))


class PipelineTime(Pytree):
    """[K] each, the same number for all domains of a group."""

    total_s: Float[Array, "*batch K"]  # [s] from the first forward to the last backward
    ideal_s: Float[Array, "*batch K"]  # [s] the same over a WAN of no cost
    # micro-batches held by the domain's first stage (its own number)
    in_flight: Float[Array, "*batch K"]
    period_s: Float[Array, "*batch K"]  # [s] between micro-batches in steady state


# Traced once for all its callers, see `stages`.
@functools.partial(jax.jit, inline=True, static_argnames="schedules")
def pipeline_time(
    inputs: PipelineInputs, schedules: tuple[int, ...] = ALL_SCHEDULES
) -> PipelineTime:
    """The longest of a few paths through the step: a lower bound of every fixed order's time.

    For equal stages and no wire they are the bubbles of Narayanan et al. 2021 and, for ZB-H1, of Qi
    et al. 2024. A stage starts forward m + n only after backward m came back, so over the WAN a round
    trip passes at most n micro-batches and latency is paid O(M / n) times (the effect that CrossPipe,
    2025, describes). `ordered_s` says which paths; GPipe is exact. ZB-H1 comes out up
    to 4 % too fast, and what is said of interleaved and greedy orders is a rough bound:
    `jaxsim.step_time.event_cost` plays them.

    `schedules` (static) are those that occur; what only others need is not compiled.
    """
    topo, schedule, micro_batches = inputs.topo, inputs.schedule, inputs.micro_batches
    parts = stage_parts(inputs, schedules)
    together = topo.together
    own_s = parts.critical_s + 2.0 * (parts.stages - 1.0) * inputs.hop_s
    wired, inside = _ways(inputs, parts, own_s, schedules)
    depth, total = (masked_sums(x, parts.stages[None])[0] for x in (topo.after, together))

    def busiest(way):
        link_s = jnp.maximum(way.forward_link_s, way.backward_link_s)
        if way.again_s is None:
            return link_s
        # Every chunk crosses the links; between chunks lies the way from the last domain to the first.
        sent_s = inputs.send_s if way is wired else 0.0
        sent_s = transfers_per_micro_batch(topo, schedule, schedules) * sent_s
        return jnp.maximum(parts.chunks * link_s, largest(sent_s.T))

    beat_s = largest_in(together, jnp.maximum(parts.busy_s, busiest(wired)))
    cover = (wired.fill_s - wired.before_s) / jnp.maximum(beat_s, 1e-9)
    counts = (depth, micro_batches, total, cover)
    holds, limits = run_ahead(schedule, parts, *counts, schedules)
    rough = _is_rough(schedule, schedules)

    ends = domain_ends(inputs, parts, depth, total)

    def longest(way):
        paths = ordered_s(inputs, parts, way, ends, schedules, way is wired)
        if rough is None:
            return paths
        return jnp.where(rough, rough_s(inputs, parts, way, limits, total, busiest(way)), paths)

    throttled_s = _throttled_s(inputs, wired, ends, limits[0], rough)
    if Schedule.GPIPE in schedules:
        throttled_s = jnp.where(
            schedule == Schedule.GPIPE, _apart_s(topo, wired, ends), throttled_s
        )
    return PipelineTime(
        total_s=longest(wired),
        ideal_s=longest(inside),
        in_flight=holds,
        period_s=largest_in(together, jnp.maximum(beat_s, throttled_s)),
    )


def _is_rough(schedule: Array, schedules: tuple[int, ...]) -> Array | None:
    """[K] bool: an order that keeps to none of the paths of `ordered_s`; None where none occurs."""
    rough = [schedule == k for k in (Schedule.INTERLEAVED, Schedule.GREEDY) if k in schedules]
    return functools.reduce(jnp.logical_or, rough) if rough else None


def _apart_s(topo: Topology, way: Way, ends: Ends) -> Array:
    """[K] [s] per micro-batch of GPipe, whose passes never overlap: no loop and no round trip holds it
    up, and the slowest stage or link forward and the slowest one backward need not be the same."""
    forward_s = jnp.maximum(ends.forward_s.max(axis=0), way.forward_link_s)
    backward_s = jnp.maximum(ends.backward_s.max(axis=0), way.backward_link_s)
    return largest_in(topo.together, forward_s) + largest_in(topo.together, backward_s)


def _throttled_s(
    inputs: PipelineInputs, way: Way, ends: Ends, ahead: Array, rough: Array | None
) -> Array:
    """[K] [s] per micro-batch that loops and round trips let pass."""
    loop_s, passed = between(ends, way.before_s[None] + ends.reach_s)
    loops = strictly(inputs.topo.after)
    loops = loops if rough is None else loops & ~rough[None, :]
    throttled_s = largest(jnp.where(loops, loop_s / passed, 0.0))
    return jnp.maximum(throttled_s, (way.fill_s - way.before_s) / jnp.maximum(ahead, 1.0))


def _ways(
    inputs: PipelineInputs, parts: StageParts, own_s: Array, schedules: tuple[int, ...]
) -> tuple[Way, Way]:
    """Over the WAN, and as if it cost nothing."""
    topo, send_s, latency_s = inputs.topo, inputs.send_s, inputs.latency_s
    # A domain has one neighbour each way: the largest equals the sum and is quicker.
    sent_s, there_s = (largest(jnp.where(topo.to_next, x, 0.0).T) for x in (send_s, latency_s))
    back_s, return_s = (largest(jnp.where(topo.to_previous, x, 0.0)) for x in (send_s, latency_s))
    out_s = sent_s + back_s + there_s + return_s
    inner_s = jnp.where(parts.stages > 1.0, inputs.hop_s, 0.0)
    sums = [own_s + out_s, own_s]
    zero_bubble, chunked = (k in schedules for k in (Schedule.ZERO_BUBBLE, Schedule.INTERLEAVED))
    if zero_bubble:
        backwards_s = parts.stages * parts.stage_backward_s + (parts.stages - 1.0) * inputs.hop_s
        sums += [backwards_s + back_s + return_s, backwards_s]
    if chunked:
        # Other chunks pass without logits; their wire leads from the last stage to the first and back.
        one_way_s = send_s + latency_s
        around_s = jnp.where(crossing(topo), one_way_s + one_way_s.T, 0.0).sum(axis=0)
        sums += [(parts.chunks - 1.0) * (x - parts.head_s) for x in (around_s, 0.0)]
    after = masked_sums(topo.after, jnp.stack(sums))
    whole = masked_sums(topo.together, jnp.stack(sums))

    def way(i, out_s, forward_s, back_s):
        return Way(
            fill_s=whole[i],
            before_s=whole[i] - after[i],
            own_s=own_s,
            out_s=out_s,
            forward_link_s=jnp.maximum(forward_s, inner_s),
            backward_link_s=jnp.maximum(back_s, inner_s),
            back_before_s=whole[2 + i] - after[2 + i] if zero_bubble else None,
            again_s=whole[i - 2] if chunked else None,
        )

    zero = jnp.zeros_like(own_s)
    return way(0, out_s, sent_s, back_s), way(1, zero, zero, zero)


def run_ahead(
    schedule: Int[Array, " K"],
    parts: StageParts,
    depth: Float[Array, " K"],
    micro_batches: Float[Array, " K"],
    total: Float[Array, " K"],
    cover: Float[Array, " K"],
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> tuple[Float[Array, " K"], tuple[Float[Array, " K"], Float[Array, " K"]]]:
    """[K] each: micro-batches that the first stage of a domain holds, and by how many forwards the
    first and the last stage run ahead of their backwards.

    ZB-H1 holds more than 1F1B, but runs ahead as far. The greedy order's limit is the domain's.
    """
    holds = in_flight_limit(schedule, depth, micro_batches, total, cover, schedules)
    order, first = schedule, holds
    if Schedule.ZERO_BUBBLE in schedules:
        order = jnp.where(schedule == Schedule.ZERO_BUBBLE, Schedule.ONE_F_ONE_B, schedule)
        first = in_flight_limit(order, depth, micro_batches, total, cover, schedules)
    of_last = depth - parts.stages + 1.0
    last = in_flight_limit(order, of_last, micro_batches, total, None, schedules)
    if Schedule.GREEDY in schedules:
        last = jnp.where(schedule == Schedule.GREEDY, first, last)
    return holds, (first, last)
