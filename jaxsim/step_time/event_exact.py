"""One training step of a pipeline, operation by operation: a max-plus recurrence.

    start(op) = max(end of the previous op on the stage, arrival of its input)
    arrival   = end of the transfer + one-way latency

A directed link carries one transfer at a time, first come, first served, and each direction queues on
its own (the performance model of CrossPipe, 2025). All that a stage sends one way goes over one
link, so the queue's order is the stage's order and the recurrence needs no sorting. Replicas that
share a link are one transfer of their summed bytes. A link's rate may change inside the step:
`send_s` then has one entry per segment of time, and a transfer ends when its share of every segment
adds up to the whole.

Sizes (stages, micro-batches, chunks, segments) are static bounds, everything else is data. B is a
native trailing axis: on CPU a stage's neighbour is then a row offset.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.plan import Schedule
from jaxsim.pytree import Pytree
from jaxsim.step_time.greedy import greedy_clocks
from jaxsim.step_time.pipeline_inputs import StageTimes, transfer_s
from jaxsim.step_time.schedules import (
    FIXED_ORDERS,
    Operation,
    SlotOrder,
    operation_at,
    slot_count,
    slot_order,
)


class EventTime(Pytree):
    """What a step took; stages that do not exist show zeros."""

    total_s: Array  # [B] [s] from the first forward to the last operation
    stage_busy_s: Array  # [S, B] [s] computing
    next_busy_s: Array  # [S, B] [s] link to the next stage occupied (from the last, to the first)
    prev_busy_s: Array  # [S, B] [s] link to the previous stage occupied


def pipeline_events(
    times: StageTimes,
    schedule: Int[Array, "#B"],
    n_stages: Int[Array, "#B"],
    micro_batches: Int[Array, "#B"],
    micro_batch_bound: int,
    schedules: tuple[int, ...] = FIXED_ORDERS,
    chunks: int = 1,
    in_flight: Float[Array, "S B"] | None = None,
) -> EventTime:
    """Run one step of each of B pipelines.

    schedule, n_stages and micro_batches are [B] int32, or [1] where all pipelines are alike, which
    is faster. `schedules` (static) lists the Schedule that may occur; `chunks` (static) is the
    number of model chunks per stage of interleaved pipelines; `in_flight` [S, B] float32 are the
    limits of greedy ones. n_stages and micro_batches must keep to the bounds: S of `times` and
    `micro_batch_bound`. Differentiable in `times` but for the greedy order.
    """
    chunks = chunks if Schedule.INTERLEAVED in schedules else 1
    if len(schedules) == 1:  # a constant lets the compiler drop the arithmetic of other schedules
        schedule = jnp.full((1,), schedules[0], jnp.int32)
    stage_bound = times.forward_s.shape[0]
    order = slot_order(schedule, n_stages, micro_batches, stage_bound, chunks)
    fixed = tuple(k for k in schedules if k != Schedule.GREEDY)
    total_s, next_s, prev_s = jnp.zeros((), jnp.float32), None, None
    if fixed:
        slots = slot_count(fixed, stage_bound, micro_batch_bound, chunks)
        total_s, next_s, prev_s = _fixed_order(times, order, slots, chunks)
    if Schedule.GREEDY in schedules:
        if in_flight is None:
            raise ValueError("the greedy order needs in_flight limits")
        greedy = greedy_clocks(times, n_stages, micro_batches, micro_batch_bound, in_flight)
        if not fixed:
            total_s, next_s, prev_s = greedy
        else:
            here = schedule == Schedule.GREEDY
            total_s = jnp.where(here, greedy[0], total_s)
            next_s = jnp.where(here[None], greedy[1], next_s)  # pyright: ignore[reportArgumentType]
            prev_s = jnp.where(here[None], greedy[2], prev_s)  # pyright: ignore[reportArgumentType]
    real, last = _stage_marks(order, stage_bound)
    count = micro_batches[None].astype(jnp.float32)
    work_s = times.forward_s + times.backward_s + times.weight_s
    work_s = work_s + jnp.where(last, times.head_s[None], 0.0)
    return EventTime(total_s, jnp.where(real, count * work_s, 0.0), next_s, prev_s)  # pyright: ignore[reportArgumentType]


def _stage_marks(order: SlotOrder, stage_bound: int) -> tuple[Array, Array]:
    s = jnp.arange(stage_bound, dtype=jnp.int32)[:, None]
    return s < order.n_stages, s == order.n_stages - 1


class _Clocks(Pytree):
    """[S, B] [s] each. A stage's latest message arrives `sent` + latency; until then its link is
    taken, so the same number is the queue's."""

    stage: Array  # the stage computes until then
    next_sent: Array  # its latest transfer to the next stage ends
    prev_sent: Array  # its latest transfer to the previous stage ends
    next_busy: Array  # link occupied so far
    prev_busy: Array


def _fixed_order(
    times: StageTimes, order: SlotOrder, slots: int, chunks: int
) -> tuple[Array, Array, Array]:
    """([B], [S, B], [S, B]) makespan and the two links' busy time, all [s]."""
    start = jnp.zeros_like(times.forward_s)
    # A chunk is an equal share of its stage; only the logits belong to the last chunk alone.
    share = 1.0 / order.chunks.astype(jnp.float32)
    whole_backward_s = times.backward_s + jnp.where(order.zero_bubble, 0.0, times.weight_s)
    durations = (times.forward_s * share, whole_backward_s * share)

    def slot(clocks, t):
        op = operation_at(order, t, chunks)
        return _run_slot(clocks, op, times, order, durations, chunks), None

    clocks, _ = jax.lax.scan(slot, _Clocks(*(start,) * 5), jnp.arange(slots, dtype=jnp.int32))
    # ZB-H1: the last weight gradients, as many as the stage holds back.
    stage = jnp.arange(start.shape[0], dtype=jnp.int32)[:, None]
    rest = jnp.minimum(stage, order.micro_batches).astype(jnp.float32) * times.weight_s
    ends = clocks.stage + jnp.where(order.zero_bubble & (stage < order.n_stages), rest, 0.0)
    busy = (clocks.next_busy, clocks.prev_busy)
    if times.steady:
        busy = _steady_busy(times, order)
    return ends.max(axis=0), *busy


def _steady_busy(times: StageTimes, order: SlotOrder) -> tuple[Array, Array]:
    """Links that do not change are occupied for the same time by every transfer."""
    stage = jnp.arange(times.forward_s.shape[0], dtype=jnp.int32)[:, None]
    chunks = jnp.where(order.n_stages > 1, order.chunks, 0)
    sends = order.micro_batches * jnp.where(stage < order.n_stages, chunks, 0)
    ends = jnp.where(order.n_stages > 1, order.micro_batches, 0)  # the last chunk's, the first's
    onwards = sends - jnp.where(stage == order.n_stages - 1, ends, 0)
    back = sends - jnp.where(stage == 0, ends, 0)
    return (
        onwards.astype(jnp.float32) * times.next_send_s[0],
        back.astype(jnp.float32) * times.prev_send_s[0],
    )


def _run_slot(
    clocks: _Clocks,
    op: Operation,
    times: StageTimes,
    order: SlotOrder,
    durations: tuple[Array, Array],
    chunks: int,
) -> _Clocks:
    forward = op.forward
    stage = jnp.arange(clocks.stage.shape[0], dtype=jnp.int32)[:, None]
    arrival = jnp.where(
        forward,
        _from_previous(clocks.next_sent + times.next_latency_s, order, chunks),
        _from_next(clocks.prev_sent + times.prev_latency_s, order, chunks),
    )
    start = jnp.maximum(clocks.stage, jnp.where(op.receives, arrival, 0.0))
    head_s = jnp.where(forward, times.head_forward_s, times.head_backward_s)
    end = start + jnp.where(forward, *durations) + jnp.where(op.head, head_s, 0.0)

    queue = jnp.where(forward, clocks.next_sent, clocks.prev_sent)
    if chunks > 1:
        # Between two stages both ways round are the same link.
        both = (order.n_stages == 2) & (order.chunks > 1)
        queue = jnp.where(both, jnp.maximum(clocks.next_sent, clocks.prev_sent), queue)
    begin = jnp.maximum(end, queue)
    send_s = jnp.where(forward, times.next_send_s, times.prev_send_s)
    taken = transfer_s(begin, send_s, times.change_s)

    # The weight gradient that follows this input gradient delays its stage alone.
    due = order.zero_bubble & ~forward & (op.index >= stage)
    to_next, to_prev = op.runs & op.sends & forward, op.runs & op.sends & ~forward
    clocks = clocks.replace(
        stage=jnp.where(op.runs, end + jnp.where(due, times.weight_s, 0.0), clocks.stage),
        next_sent=jnp.where(to_next, begin + taken, clocks.next_sent),
        prev_sent=jnp.where(to_prev, begin + taken, clocks.prev_sent),
    )
    if times.steady:
        return clocks
    return clocks.replace(
        next_busy=clocks.next_busy + jnp.where(to_next, taken, 0.0),
        prev_busy=clocks.prev_busy + jnp.where(to_prev, taken, 0.0),
    )


def _from_previous(sent: Array, order: SlotOrder, chunks: int) -> Array:
    """[S, B] what each stage's predecessor sent; the first stage's is the last (the next chunk)."""
    moved = jnp.roll(sent, 1, axis=0)
    if chunks == 1:
        return moved  # nobody reads the first row
    stage = jnp.arange(sent.shape[0], dtype=jnp.int32)[:, None]
    wrapped = jnp.where(stage == order.n_stages - 1, sent, 0.0).sum(axis=0, keepdims=True)
    return jnp.where(stage == 0, wrapped, moved)


def _from_next(sent: Array, order: SlotOrder, chunks: int) -> Array:
    """[S, B] what each stage's successor sent; the last stage's is the first (the chunk before)."""
    moved = jnp.roll(sent, -1, axis=0)
    if chunks == 1:
        return moved
    stage = jnp.arange(sent.shape[0], dtype=jnp.int32)[:, None]
    return jnp.where(stage == order.n_stages - 1, sent[:1], moved)
