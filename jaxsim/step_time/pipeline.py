"""One training step of a pipeline over the WAN, closed form."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.plan import ALL_SCHEDULES, INTERLEAVED_CHUNKS, Schedule, masked_sums
from jaxsim.pytree import Pytree
from jaxsim.step_time.links import HEAD_FORWARD_SHARE
from jaxsim.step_time.pipeline_inputs import PipelineInputs
from jaxsim.step_time.topology import Topology, crossing, largest, transfers_per_micro_batch

NEVER_S = -1e30  # a loop that does not exist: shorter than every real one


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
    """The longest of a few paths through the step: a lower bound that is tight for equal stages.

    `_longest_path` says which paths. For equal stages and no wire they are the bubbles of Narayanan
    et al. 2021 and, for ZB-H1, of Qi et al. 2024. A stage starts forward m + n only after backward m
    came back, so over the WAN a round trip passes at most n micro-batches and latency is paid
    O(M / n) times (the effect that CrossPipe, 2025, describes).

    `schedules` (static) are those that occur; what only others need is not compiled.
    """
    topo, schedule, micro_batches = inputs.topo, inputs.schedule, inputs.micro_batches
    inner_hop_s = inputs.hop_s
    parts = stage_parts(inputs, schedules)
    together = topo.together
    chunked = Schedule.INTERLEAVED in schedules
    hops_s, links, inner_links = _wire(inputs, parts, chunked)
    link_s = jnp.maximum(*links)
    if chunked:
        # Every chunk crosses the links; between chunks lies the way from the last domain to the first.
        sent_s = transfers_per_micro_batch(topo, schedule, schedules) * inputs.send_s
        link_s = jnp.maximum(parts.chunks * link_s, largest(sent_s.T))
    own_s = parts.critical_s + 2.0 * (parts.stages - 1.0) * inner_hop_s
    sums = [parts.stages, own_s + hops_s[0], own_s]
    if chunked:
        # Other chunks pass without logits; their wire leads from the last stage to the first and back.
        sums += [(parts.chunks - 1.0) * (x - parts.head_s) for x in (hops_s[1], 0.0)]
    depth, round_trip_s, near_s = masked_sums(topo.after, jnp.stack(sums[:3]))
    total, fill_s, near_fill_s, *again_s = masked_sums(together, jnp.stack(sums))

    beat_s = _largest(together, jnp.maximum(parts.busy_s, link_s))
    cover = round_trip_s / jnp.maximum(beat_s, 1e-9)
    counts = (depth, micro_batches, total, cover)
    holds, limits = run_ahead(schedule, parts, *counts, schedules)
    within_s = (parts.stages - 1.0) * (parts.pass_s + 2.0 * inner_hop_s)  # first to last stage
    greedy = schedule == Schedule.GREEDY if Schedule.GREEDY in schedules else None
    loops = _loops(topo, parts, within_s, round_trip_s, greedy, *limits)

    def longest(round_trip, fill, links, loops, again=None):
        times = (within_s, round_trip, fill, total - depth)
        path = _longest_path(topo, parts, times, links, loops, micro_batches, *limits)
        if again is not None:
            trips_s = _chunk_trips_s(parts, fill, again, micro_batches, total)
            if loops is not None:
                trips_s = jnp.maximum(trips_s, micro_batches * _largest(together, link_s))
            path = jnp.where(parts.chunks > 1.0, jnp.maximum(path, trips_s), path)
        if loops is None or Schedule.GPIPE not in schedules:
            return path
        gpipe = fill + (micro_batches - 1.0) * _two_flow_shops_s(together, parts, links)
        return jnp.where(schedule == Schedule.GPIPE, gpipe, path)

    period_s = jnp.maximum(beat_s, _throttled_s(within_s, round_trip_s, loops, *limits))
    return PipelineTime(
        total_s=longest(round_trip_s, fill_s, links, loops, *again_s[:1]),
        ideal_s=longest(near_s, near_fill_s, inner_links, None, *again_s[1:]),
        in_flight=holds,
        period_s=_largest(together, period_s),
    )


def _two_flow_shops_s(together: Array, parts: StageParts, links: tuple[Array, Array]) -> Array:
    """[K] [s] per micro-batch of GPipe: all forwards, then all backwards, each with its own
    bottleneck."""
    forward_s = _largest(together, jnp.maximum(parts.forward_s, links[0]))
    return forward_s + _largest(together, jnp.maximum(parts.backward_s, links[1]))


def _throttled_s(
    within_s: Array, round_trip_s: Array, loops: Loops, ahead: Array, ahead_last: Array
) -> Array:
    """[K] [s] per micro-batch that loops and round trips let pass."""
    throttled_s = largest(loops.loop_s / loops.passed)
    returning_s = (round_trip_s - within_s) / jnp.maximum(ahead_last, 1.0)
    throttled_s = jnp.maximum(throttled_s, returning_s)
    return jnp.maximum(throttled_s, round_trip_s / jnp.maximum(ahead, 1.0))


def _wire(
    inputs: PipelineInputs, parts: StageParts, chunked: bool
) -> tuple[tuple[Array, ...], tuple[Array, Array], tuple[Array, Array]]:
    """[K] [s] each: to the next domain and back, and (chunked) from the last to the first and back;
    the busiest link of a domain's way forward, and back; the same without the WAN."""
    topo, send_s, latency_s = inputs.topo, inputs.send_s, inputs.latency_s
    # A domain has one neighbour each way: the largest equals the sum and is quicker.
    sent_s, there_s = (largest(jnp.where(topo.to_next, x, 0.0).T) for x in (send_s, latency_s))
    back_s, return_s = (largest(jnp.where(topo.to_previous, x, 0.0)) for x in (send_s, latency_s))
    hops_s = (sent_s + back_s + there_s + return_s,)
    if chunked:
        one_way_s = send_s + latency_s
        around = jnp.where(crossing(topo), one_way_s + one_way_s.T, 0.0)
        hops_s += (around.sum(axis=0),)
    inner_s = jnp.where(parts.stages > 1.0, inputs.hop_s, 0.0)
    links = (jnp.maximum(sent_s, inner_s), jnp.maximum(back_s, inner_s))
    return hops_s, links, (inner_s, inner_s)


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


class StageParts(Pytree):
    """[K] each: what the stages of a domain do with one micro-batch, all [s] but the counts. `chunks`
    and `weight_s` are [] where no schedule needs more."""

    stages: Array
    chunks: Array
    critical_s: Array  # a pass through the domain: one chunk, without the weight gradients of ZB-H1
    pass_s: Array  # the same of one stage
    head_s: Array  # the logits, where the domain is the last
    busy_s: Array  # the slowest stage, everything it computes
    forward_s: Array  # the longest forward of a stage, one chunk
    backward_s: Array  # the longest backward of a stage, one chunk
    first_s: Array  # (all of) the first stage of the domain: everything, forward, backward, weights
    first_forward_s: Array
    first_backward_s: Array
    weight_s: Array  # that is computed apart: ZB-H1, else 0


def stage_parts(inputs: PipelineInputs, schedules: tuple[int, ...] = ALL_SCHEDULES) -> StageParts:
    """Divide a domain's stages into what the paths through a step are made of."""
    topo, schedule = inputs.topo, inputs.schedule
    stage_s, weight_s = inputs.stage_s, inputs.weight_s
    stages = inputs.pp.astype(jnp.float32)
    forward_s = stage_s / 3.0 if inputs.forward_s is None else inputs.forward_s
    apart = jnp.float32(0.0)
    if Schedule.ZERO_BUBBLE in schedules:
        apart = jnp.minimum(forward_s if weight_s is None else weight_s, stage_s - forward_s)
        apart = jnp.where(schedule == Schedule.ZERO_BUBBLE, apart, 0.0)
    backward_s = stage_s - forward_s - apart
    last_s = jnp.where(topo.last, inputs.head_s, 0.0)
    chunks, head = jnp.float32(1.0), last_s
    if Schedule.INTERLEAVED in schedules:
        chunks = jnp.where(schedule == Schedule.INTERLEAVED, float(INTERLEAVED_CHUNKS), 1.0)
        head = jnp.where(chunks > 1.0, 0.0, last_s)
    one = (forward_s + backward_s) / chunks
    alone = jnp.where(stages > 1.0, 0.0, 1.0) * last_s  # the first stage is the last as well
    return StageParts(
        stages=stages,
        chunks=chunks,
        critical_s=stages * one + last_s,
        pass_s=one,
        head_s=last_s,
        busy_s=stage_s + last_s,
        forward_s=forward_s / chunks + HEAD_FORWARD_SHARE * head,
        backward_s=backward_s / chunks + (1.0 - HEAD_FORWARD_SHARE) * head,
        first_s=stage_s + alone,
        first_forward_s=forward_s + HEAD_FORWARD_SHARE * alone,
        first_backward_s=backward_s + (1.0 - HEAD_FORWARD_SHARE) * alone,
        weight_s=apart,
    )


def _largest(mask: Array, values: Array) -> Array:
    """[K]: for every column of mask [K, K], the largest of values [K] >= 0 over the rows where it is
    True. Over rows, because on CPU that reduction vectorises."""
    return largest(jnp.where(mask, values[:, None], 0.0))


class Loops(Pytree):
    """[K, K] loops through the dependencies, from the last stage q of the column's domain down the
    pipeline to the first stage s of the row's domain and back; infinitely short where there is none.

    After forward m, s runs backward m - n_s + 1, so that n_q - n_s + 1 micro-batches pass in one loop:
    one far link throttles its pipeline, however near the others are. A greedy stage keeps to no such
    order.
    """

    loop_s: Array
    passed: Array


def _loops(
    topo: Topology,
    parts: StageParts,
    within_s: Array,
    round_trip_s: Array,
    greedy: Array | None,
    ahead: Array,
    ahead_last: Array,
) -> Loops:
    k = jnp.arange(within_s.shape[0], dtype=jnp.int32)
    beyond_s = round_trip_s - parts.first_forward_s - parts.first_backward_s
    ordered = topo.before & (k[:, None] != k[None, :])
    ordered = ordered if greedy is None else ordered & ~greedy[None, :]
    loop_s = (round_trip_s - within_s)[None, :] - beyond_s[:, None]
    return Loops(
        loop_s=jnp.where(ordered, loop_s, NEVER_S),
        passed=jnp.maximum(ahead_last[None, :] - (ahead[:, None] - 1.0), 1.0),
    )


def _longest_path(
    topo: Topology,
    parts: StageParts,
    times: tuple[Array, Array, Array, Array],
    links: tuple[Array, Array],
    loops: Loops | None,
    micro_batches: Array,
    ahead: Array,
    ahead_last: Array,
) -> Array:
    """[K] [s] the longest of these paths through a step of a one-forward-one-backward schedule:

    1. Fill up to a stage, which is then busy with all micro-batches, and drain.
    2. The same through the first stage of a domain, and its waits: after its `ahead` first forwards
       for the first backward, after its last forward for the backward of the same.
    3. Fill and drain, all micro-batches one behind the other over a link or through forwards alone.
    4. A whole round trip of the first or last stage of a domain, which lets as many micro-batches pass
       as the stage may run ahead, another for the last micro-batch, and between them `loops`, or
       (None) whole round trips; what is left queues for the slowest that follows.

    `times` [K] [s]: from the first to the last stage of a domain, from it to the end and back, the
    whole pipeline there and back; and [K] the number of stages before the domain.
    """
    within_s, round_trip_s, fill_s, before = times
    m, p = micro_batches, parts
    before_s = fill_s - round_trip_s
    held_back_s = _held_back_s(before + p.stages - 1.0, m, p.weight_s)
    paths = before_s + within_s + m * p.busy_s - held_back_s

    simple = p.chunks == 1.0
    away_s = round_trip_s - p.first_forward_s - p.first_backward_s
    waits_s = jnp.maximum(away_s - (ahead - 1.0) * p.first_forward_s, 0.0) + jnp.maximum(
        away_s - (ahead - 1.0) * (p.first_backward_s + p.weight_s), 0.0
    )
    waiting = before_s + m * p.first_s - _held_back_s(before, m, p.weight_s) + waits_s
    paths = jnp.where(simple & (m > ahead), jnp.maximum(paths, waiting), paths)

    queue_s = jnp.maximum(jnp.maximum(p.forward_s, p.backward_s), jnp.maximum(*links))
    paths = jnp.maximum(paths, fill_s + (m * p.chunks - 1.0) * queue_s)

    # Weight gradients of ZB-H1 may come later than what queues here.
    slowest_s = jnp.maximum(p.busy_s - p.weight_s, jnp.maximum(*links))
    slowest_s = _largest(topo.before, slowest_s)

    def returning(round_trip_s, limit, loops):
        left, limit = m - 1.0 - limit, jnp.maximum(limit, 1.0)
        # Whole loops of `limit` micro-batches, then the rest queues: how much longer than queueing.
        longer_s = jnp.floor(left / limit + 1e-4) * (round_trip_s - limit * slowest_s)
        if loops is not None:
            count = jnp.floor(left[None, :] / loops.passed + 1e-4)
            others_s = count * (loops.loop_s - loops.passed * slowest_s[None, :])
            longer_s = functools.reduce(jnp.maximum, list(others_s), longer_s)
        path = fill_s + round_trip_s + left * slowest_s + jnp.maximum(longer_s, 0.0)
        return jnp.where(simple & (left >= 0.0), path, 0.0)

    paths = jnp.maximum(paths, returning(round_trip_s, ahead, None))
    paths = jnp.maximum(paths, returning(round_trip_s - within_s, ahead_last, loops))
    return _largest(topo.together, paths)


def _chunk_trips_s(
    parts: StageParts, fill_s: Array, again_s: Array, micro_batches: Array, total: Array
) -> Array:
    """[K] [s] interleaved: micro-batch m + 2 S starts only after m came back from all its chunks."""
    trips = jnp.floor((micro_batches - 1.0) / (2.0 * jnp.maximum(total, 1.0)) + 1e-4) + 1.0
    return trips * (parts.chunks * fill_s + again_s)


def _held_back_s(stage: Array, micro_batches: Array, weight_s: Array) -> Array:
    """[K] [s] of weight gradients that ZB-H1 leaves for after a stage's last input gradient, where
    they delay no other stage; the first stage's is the end of the step."""
    count = jnp.where(stage > 0.0, stage + 1.0, 0.0)
    return jnp.minimum(count, micro_batches) * weight_s
