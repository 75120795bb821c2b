"""The longest paths through a step of a pipeline whose stages keep to a fixed order."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsim.plan import ALL_SCHEDULES, INTERLEAVED_CHUNKS, Schedule
from jaxsim.pytree import Pytree
from jaxsim.step_time.pipeline_inputs import HEAD_FORWARD_SHARE, PipelineInputs
from jaxsim.step_time.topology import largest

NEVER_S = -1e30  # a loop that does not exist: shorter than every real one


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
    stage_forward_s: Array  # of a stage, one chunk, without the logits
    stage_backward_s: Array
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
        stage_forward_s=forward_s / chunks,
        stage_backward_s=backward_s / chunks,
        weight_s=apart,
    )


def largest_in(mask: Array, values: Array) -> Array:
    """[K]: for every column of mask [K, K], the largest of values [K] >= 0 over the rows where it is
    True. Over rows, because on CPU that reduction vectorises."""
    return largest(jnp.where(mask, values[:, None], 0.0))


class Way(Pytree):
    """[K] [s] each: a micro-batch's way through the pipeline of every domain, there and back."""

    fill_s: Array  # all of it
    before_s: Array  # of it before the domain's first stage
    own_s: Array  # through the domain
    out_s: Array  # on the wires between the domain and the next
    forward_link_s: Array  # a transfer on the busiest link of the domain, wide-area or inside
    backward_link_s: Array
    back_before_s: Array | None  # ZB-H1: of `before_s` the way back
    again_s: Array | None  # interleaved: what a further chunk takes beyond `fill_s`


class Ends(Pytree):
    """[E, K] each, of some stages of every domain: its first, its last, and between them those where
    the number of micro-batches begins to limit how far a stage runs ahead. No link changes them."""

    reach_s: Array  # [s] from before the domain to the stage and back, itself included
    pass_s: Array  # [s] its forward and backward, without the weight gradients of ZB-H1
    ahead: Array  # forwards up to its first backward
    forward_s: Array  # [s] the slowest forward or hop in the domain up to the stage
    backward_s: Array  # [s] the slowest backward or hop
    stage: Array  # its number in the pipeline


def domain_ends(
    inputs: PipelineInputs, p: StageParts, depth: Float[Array, " K"], total: Float[Array, " K"]
) -> Ends:
    """`depth` [K]: stages from the domain's first to the end, itself included; `total` [K]: of its
    pipeline."""
    m, inner_s = inputs.micro_batches, jnp.where(p.stages > 1.0, inputs.hop_s, 0.0)
    by = jnp.where(
        inputs.schedule == Schedule.EAGER_1F1B, 2.0, 1.0
    )  # that a stage runs further ahead
    limited = depth - jnp.ceil((m - 1.0) / by) - 1.0
    last = jnp.maximum(p.stages - 1.0, 0.0)
    numbers = [0.0 * last, *(jnp.clip(limited + i, 0.0, last) for i in (0.0, 1.0)), last]

    def end(number):  # [K], of the stage in the domain
        def at(first, last_one, other):
            return jnp.where(number == last, last_one, jnp.where(number == 0.0, first, other))

        ahead = jnp.minimum(by * (depth - number - 1.0) + 1.0, m)
        ahead = jnp.where(inputs.schedule == Schedule.GPIPE, m, ahead)
        hop_s = jnp.where(number > 0.0, inner_s, 0.0)
        forward_s = at(p.first_forward_s, p.forward_s, p.stage_forward_s)
        backward_s = at(p.first_backward_s, p.backward_s, p.stage_backward_s)
        return Ends(
            reach_s=number * (p.pass_s + 2.0 * inner_s) + forward_s + backward_s,
            pass_s=forward_s + backward_s,
            ahead=jnp.maximum(ahead, 1.0),
            # Earlier stages of the domain are the first's equals.
            forward_s=jnp.maximum(forward_s, jnp.maximum(p.stage_forward_s, hop_s)),
            backward_s=jnp.maximum(backward_s, jnp.maximum(p.stage_backward_s, hop_s)),
            stage=total - depth + number,
        )

    return jax.vmap(end)(jnp.stack(numbers))


class _Turns(Pytree):
    """[E, K] each: of paths that turn at the stages of `Ends`, the wires included."""

    there_s: Array  # [s] from the start of the pipeline to the stage and back, itself included
    warming_s: Array  # [s] the same, and the forwards that come before its first backward
    cooling_s: Array  # [s] and the backwards that come after its last forward
    tail_s: Array  # [s] of the step after its last backward has come back: ZB-H1, else 0
    alone_s: Array  # [s] per micro-batch that passes stage by stage, up to this one
    early_s: Array  # [s] the same before the first loop: not by backwards alone


def strictly(mask: Array) -> Array:
    """[K, K] the mask without its diagonal."""
    k = jnp.arange(mask.shape[0], dtype=jnp.int32)
    return mask & (k[:, None] != k[None, :])


def _turns(inputs: PipelineInputs, p: StageParts, way: Way, ends: Ends) -> _Turns:
    earlier = strictly(inputs.topo.after)  # rows that come before the column's
    warm_s = largest_in(earlier, jnp.maximum(ends.forward_s[-1], way.forward_link_s))
    cool_s = largest_in(earlier, jnp.maximum(ends.backward_s[-1], way.backward_link_s))
    warm_s = jnp.maximum(ends.forward_s, warm_s[None])
    cool_s = jnp.maximum(ends.backward_s, cool_s[None])
    there_s, more = way.before_s[None] + ends.reach_s, ends.ahead - 1.0
    turns = _Turns(
        there_s=there_s,
        warming_s=there_s + more * warm_s,
        cooling_s=there_s + more * cool_s,
        tail_s=jnp.zeros_like(there_s),
        alone_s=jnp.maximum(ends.pass_s, jnp.maximum(warm_s, cool_s)),
        early_s=jnp.maximum(ends.pass_s, warm_s),
    )
    return turns if way.back_before_s is None else _with_weights(inputs, p, way, ends, turns)


def _with_weights(
    inputs: PipelineInputs, p: StageParts, way: Way, ends: Ends, turns: _Turns
) -> _Turns:
    """Add what the weight gradients of ZB-H1 do at the end of a step. They delay a stage from the
    micro-batch of its own number on; the others come last."""
    topo, m = inputs.topo, inputs.micro_batches[None]
    back_s = (ends.stage - ends.stage[:1]) * (p.stage_backward_s + inputs.hop_s)[None]
    back_s = back_s + way.back_before_s[None]  # pyright: ignore[reportOptionalSubscript]
    tail_s = jnp.minimum(ends.stage + 1.0, m) * p.weight_s[None] - back_s
    above_s = largest_in(strictly(topo.after), largest(tail_s))
    # A path may end at any stage before the one that it comes from.
    tail_s = jnp.stack([above_s := jnp.maximum(above_s, one) for one in tail_s])

    def backwards(ahead, stage, backward_s, weight_s):
        due = jnp.clip(m - 1.0 - jnp.maximum(m - ahead, stage), 0.0, ahead - 1.0)
        return (ahead - 1.0) * backward_s + due * weight_s

    def above(ahead):  # [1, K] -> [K], at the first stage of a domain at or before the column's
        rows = (ends.stage[0], p.stage_backward_s, p.weight_s)
        own_s = backwards(ahead, *(x[:, None] for x in rows)) + tail_s[0][:, None]
        return largest(jnp.where(topo.after, own_s, 0.0))

    own_s = backwards(ends.ahead, ends.stage, p.stage_backward_s[None], p.weight_s[None]) + tail_s
    own_s = jnp.maximum(own_s, jnp.stack([above(ahead[None]) for ahead in ends.ahead]))
    first_s = largest_in(topo.together, jnp.where(topo.first, p.weight_s, 0.0))
    cooling_s = jnp.maximum(turns.cooling_s + first_s[None], turns.there_s + own_s)
    return turns.replace(cooling_s=cooling_s, tail_s=tail_s)


def ordered_s(
    inputs: PipelineInputs,
    p: StageParts,
    way: Way,
    ends: Ends,
    schedules: tuple[int, ...],
    wired: bool,
) -> Array:
    """[K] [s] the longest of these paths through a step of 1F1B, eager 1F1B, ZB-H1 or GPipe:

    1. Fill up to a stage, which is then busy with all micro-batches, and drain.
    2. Forwards, one behind the other, until a stage may begin its backwards; there (or at a later
       stage, from which backwards come) the path turns. The same at the end, the other way round.
       What is left between passes stage by stage or link by link.
    3. The same with `loops` between: from a stage a down to a stage c and back, and so on to a's
       forward that waited for this backward. n_a - n_c + 1 micro-batches pass in one loop, so that
       one far link throttles its pipeline, however near the others are. What no whole loop is left
       for passes in loops over one link, and then stage by stage.

    Loops from the last stage of a domain to the first of a later one are slowest: within a domain a
    further stage adds no more than it lets pass. The domain itself is the loop over its own hops.
    """
    topo, m = inputs.topo, inputs.micro_batches[None]
    weight_s = jnp.broadcast_to(p.weight_s, inputs.stage_s.shape)
    turns = _turns(inputs, p, way, ends)
    left, there_s, alone_s = m - ends.ahead, turns.there_s, turns.alone_s

    def or_later(paths_s):
        best_s = largest_in(strictly(topo.before), largest(paths_s))
        return jnp.stack([best_s := jnp.maximum(best_s, one) for one in paths_s[::-1]])[::-1]

    begin_s, finish_s = or_later(turns.warming_s), or_later(turns.cooling_s)
    turn_s = jnp.maximum(turns.warming_s + finish_s, begin_s + turns.cooling_s) - there_s
    held_back = jnp.minimum(ends.stage + 1.0, m)
    busy_s = (m - 1.0) * ends.pass_s + (m - held_back) * weight_s[None]
    paths = largest(jnp.maximum(turn_s + left * alone_s, there_s + busy_s + turns.tail_s))

    base_s = begin_s + finish_s - there_s
    if Schedule.ZERO_BUBBLE in schedules:
        due = jnp.maximum(left - ends.stage, 0.0)  # weight gradients that delay their stage
        busy_s = base_s + left * ends.pass_s + due * weight_s[None]
        paths = jnp.maximum(paths, largest(jnp.where(left >= 1.0, busy_s, 0.0)))
    pair = jnp.where(inputs.schedule == Schedule.EAGER_1F1B, 3.0, 2.0)
    passed = ends.ahead[0] - ends.ahead[-1] + 1.0
    hop_s = 2.0 * (p.pass_s + inputs.hop_s)
    hop_s = jnp.where(p.stages > 1.0, hop_s, 0.0)
    single_s = (alone_s[-1], turns.early_s[-1])
    own_s = _looped_s(pair, left[-1], passed, way.own_s, single_s, hop_s, ends.stage[0], weight_s)
    paths = jnp.maximum(paths, base_s[-1] + own_s)
    if not wired:
        return largest_in(topo.together, paths)
    # Rows are a's domain, columns c's.
    onwards_s = ends.pass_s[-1] + way.out_s
    onwards_s = onwards_s + largest(jnp.where(topo.to_previous, ends.pass_s[0][:, None], 0.0))
    arriving_s = largest(jnp.where(topo.to_next, onwards_s[:, None], 0.0))
    pair_s = jnp.maximum(onwards_s[:, None], arriving_s[None, :])
    origin = (ends.stage[-1][:, None], weight_s[:, None])
    earlier = strictly(topo.after)
    loop_s, passed = between(ends, there_s)
    pass_s = ends.pass_s[-1][:, None]
    single_s = (
        jnp.maximum(pass_s, alone_s[0][None, :]),
        jnp.maximum(pass_s, turns.early_s[0][None, :]),
    )
    between_s = _looped_s(pair[None], left[0][None, :], passed, loop_s, single_s, pair_s, *origin)
    between_s = largest(jnp.where(earlier, between_s, NEVER_S))
    paths = jnp.maximum(paths, base_s[0] + between_s)
    return largest_in(topo.together, paths)


def between(ends: Ends, there_s: Float[Array, "E K"]) -> tuple[Array, Array]:
    """[K, K] [s] the loop from the last stage of the row's domain to the first of the column's, and the
    micro-batches that pass in it. `there_s`: from the start of the pipeline to the stages of `ends`
    and back, themselves included."""
    loop_s = there_s[0][None, :] - (there_s[-1] - ends.pass_s[-1])[:, None]
    return loop_s, jnp.maximum(ends.ahead[-1][:, None] - ends.ahead[0][None, :] + 1.0, 1.0)


def _looped_s(
    pair: Array,
    left: Array,
    passed: Array,
    loop_s: Array,
    single_s: tuple[Array, Array],
    pair_s: Array,
    stage: Array,
    weight_s: Array,
) -> Array:
    """[...] [s] in which `left` micro-batches pass: whole loops of `passed` at a time, then loops of
    `pair`, then one by one (`single_s`: at any time, before the loops). `weight_s` is that of the
    loops' first stage, number `stage`, which it delays from the micro-batch of that number on."""
    count = jnp.floor(left / passed + 1e-4)
    rest = left - count * passed
    pairs = jnp.floor(rest / pair + 1e-4)

    def looped(one_s, before):
        rest_s = jnp.maximum(rest * one_s, pairs * pair_s + (rest - pairs * pair) * one_s)
        due = count - jnp.clip(jnp.ceil((stage - before) / passed - 1e-4), 0.0, count)
        return count * loop_s + due * weight_s + rest_s

    longest_s = jnp.maximum(looped(single_s[0], 0.0), looped(single_s[1], rest))
    return jnp.where(count >= 1.0, longest_s, NEVER_S)


def rough_s(
    inputs: PipelineInputs,
    p: StageParts,
    way: Way,
    limits: tuple[Array, Array],
    total: Array,
    link_s: Array,
) -> Array:
    """[K] [s] of interleaved and greedy orders: fill and drain, and between them the slowest stage,
    the slowest link, or as many round trips as the micro-batches in flight allow."""
    m, together = inputs.micro_batches, inputs.topo.together
    within_s = (p.stages - 1.0) * (p.pass_s + 2.0 * inputs.hop_s)
    paths = way.before_s + within_s + m * p.busy_s
    queue_s = jnp.maximum(p.forward_s, p.backward_s)
    queue_s = jnp.maximum(queue_s, jnp.maximum(way.forward_link_s, way.backward_link_s))
    paths = jnp.maximum(paths, way.fill_s + (m * p.chunks - 1.0) * queue_s)
    trips = jnp.floor((m - 1.0) / jnp.maximum(limits[0], 1.0) + 1e-4)
    round_trip_s = way.fill_s - way.before_s
    trips_s = jnp.where(p.chunks > 1.0, 0.0, way.fill_s + trips * round_trip_s)
    if way.again_s is not None:
        chunks_s = _chunk_trips_s(p, way.fill_s, way.again_s, m, total)
        trips_s = jnp.where(p.chunks > 1.0, jnp.maximum(chunks_s, m * link_s), trips_s)
    return largest_in(together, jnp.maximum(paths, trips_s))


def _chunk_trips_s(
    p: StageParts, fill_s: Array, again_s: Array, micro_batches: Array, total: Array
) -> Array:
    """[K] [s] interleaved: micro-batch m + 2 S starts only after m came back from all its chunks."""
    trips = jnp.floor((micro_batches - 1.0) / (2.0 * jnp.maximum(total, 1.0)) + 1e-4) + 1.0
    return trips * (p.chunks * fill_s + again_s)
