"""A pipeline whose stages decide as they go: list scheduling on the network as it is.

In the spirit of CrossPipe (2025): a stage that is idle takes the oldest backward that has arrived,
else the oldest forward that has arrived if it may hold one more micro-batch in flight, else the
first of the two to arrive. Nothing is decided ahead, so the order adapts to latency and to links
that change inside the step; it may show anomalies (a faster link can make a step longer).

Operations start in the order of time: whatever starts first can depend on nothing that is still
open. Each turn runs one operation in each of the B pipelines.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from jaxsim.pytree import Pytree
from jaxsim.step_time.pipeline_inputs import StageTimes, transfer_s

# A backward that arrives within rounding of a forward's start goes first, as at a tie.
_TIE = 4e-6


class _State(Pytree):
    turn: Array  # [] int32
    clock: Array  # [S, B] [s] stage is taken until then
    next_link: Array  # [S, B] [s]
    prev_link: Array  # [S, B] [s]
    next_busy: Array  # [S, B] [s]
    prev_busy: Array  # [S, B] [s]
    forwards: Array  # [S, B] int32 done
    backwards: Array  # [S, B] int32 done
    input_f: Array  # [S, B] [s] arrival of the next forward's input, infinite while unknown
    input_b: Array  # [S, B] [s] the same of the next backward
    queue_f: Array  # [S * M * B] [s] arrivals of forward inputs, flat
    queue_b: Array  # [S * M * B] [s]


def greedy_clocks(
    times: StageTimes,
    n_stages: Array,
    micro_batches: Array,
    micro_batch_bound: int,
    in_flight: Array,
) -> tuple[Array, Array, Array]:
    """([B], [S, B], [S, B]) [s] makespan and busy time of the links to the next and previous stage.

    n_stages and micro_batches are [B] or [1] int32; `in_flight` [S, B] float32 >= 1 limits the
    micro-batches between a stage's forward and its backward. Not differentiable.
    """
    shape = times.forward_s.shape
    stage = jnp.arange(shape[0], dtype=jnp.int32)[:, None]
    last = jnp.broadcast_to(stage == n_stages[None] - 1, shape)
    count = jnp.where(stage < n_stages[None], micro_batches[None], 0)
    count = jnp.broadcast_to(count, shape)
    limit = jnp.maximum(jnp.floor(in_flight + 1e-4), 1.0).astype(jnp.int32)
    head_s = jnp.where(last, times.head_s[None], 0.0)
    size = shape[0] * micro_batch_bound * shape[1]
    zero, unknown = jnp.zeros(shape, jnp.float32), jnp.full(shape, jnp.inf)
    none, empty = jnp.zeros(shape, jnp.int32), jnp.full((size,), jnp.inf)
    first_input = jnp.where(jnp.broadcast_to(stage == 0, shape), 0.0, unknown)
    state = _State(jnp.int32(0), *(zero,) * 5, *(none,) * 2, first_input, unknown, *(empty,) * 2)  # pyright: ignore[reportCallIssue]

    def more(state):
        return (state.turn < 2 * shape[0] * micro_batch_bound) & jnp.any(state.backwards < count)

    def run_next(state):
        return _run_next(state, times, count, last, limit, head_s, micro_batch_bound)

    state = jax.lax.while_loop(more, run_next, state)
    return state.clock.max(axis=0), state.next_busy, state.prev_busy


def _run_next(
    state: _State,
    times: StageTimes,
    count: Array,
    last: Array,
    limit: Array,
    head_s: Array,
    micro_batch_bound: int,
) -> _State:
    """Run the operation that starts first, in every pipeline."""
    stage = jnp.arange(count.shape[0], dtype=jnp.int32)[:, None]
    room = (state.forwards < count) & (state.forwards - state.backwards < limit)
    start_f = jnp.where(room, jnp.maximum(state.clock, state.input_f), jnp.inf)
    start_b = jnp.where(state.backwards < count, jnp.maximum(state.clock, state.input_b), jnp.inf)
    backward = start_b <= start_f * (1.0 + _TIE)
    start = jnp.where(backward, start_b, start_f)
    chosen = jnp.argmin(start, axis=0).astype(jnp.int32)[None]
    here = (stage == chosen) & jnp.isfinite(start)
    to_next, to_prev = here & ~backward & ~last, here & backward & (stage > 0)

    parts = jnp.where(backward, times.backward_s + times.weight_s, times.forward_s)
    share = jnp.where(backward, times.head_backward_s, times.head_forward_s)
    # An idle pipeline's start is infinite: keep it out of the arithmetic.
    end = jnp.where(here, start, 0.0) + parts + jnp.where(last, share, 0.0)
    send_s = jnp.where(backward, times.prev_send_s, times.next_send_s)
    begin = jnp.maximum(end, jnp.where(backward, state.prev_link, state.next_link))
    taken = transfer_s(begin, send_s, times.change_s)
    done = begin + taken
    arrival = done + jnp.where(backward, times.prev_latency_s, times.next_latency_s)

    # The last stage hands its forward to its own backward.
    from_self = here & ~backward & last
    new_f = _shift(jnp.where(to_next, arrival, -1.0), 1)
    new_b = jnp.where(from_self, end, _shift(jnp.where(to_prev, arrival, -1.0), -1))
    sent_f = _shift(state.forwards, 1)
    sent_b = jnp.where(from_self, state.forwards, _shift(state.backwards, -1))
    forwards = state.forwards + (here & ~backward).astype(jnp.int32)
    backwards = state.backwards + (here & backward).astype(jnp.int32)
    queue_f = _push(state.queue_f, new_f, sent_f, micro_batch_bound)
    queue_b = _push(state.queue_b, new_b, sent_b, micro_batch_bound)
    input_f = _head(queue_f, state.input_f, forwards, stage, chosen, micro_batch_bound)
    input_b = _head(queue_b, state.input_b, backwards, stage, chosen, micro_batch_bound)
    return _State(
        turn=state.turn + 1,
        clock=jnp.where(here, end, state.clock),
        next_link=jnp.where(to_next, done, state.next_link),
        prev_link=jnp.where(to_prev, done, state.prev_link),
        next_busy=state.next_busy + jnp.where(to_next, taken, 0.0),
        prev_busy=state.prev_busy + jnp.where(to_prev, taken, 0.0),
        forwards=forwards,
        backwards=backwards,
        # The first stage always has input. Another may wait for the forward that just arrived.
        input_f=jnp.where(
            stage == 0, 0.0, jnp.where((new_f >= 0) & (sent_f == forwards), new_f, input_f)
        ),
        input_b=jnp.where((new_b >= 0) & (sent_b == backwards), new_b, input_b),
        queue_f=queue_f,
        queue_b=queue_b,
    )


def _shift(rows: Array, by: int) -> Array:
    """[S, B] moved by one stage; what falls off the end comes back, and is never a message."""
    return jnp.roll(rows, by, axis=0)


def _push(queue: Array, arrival: Array, number: Array, micro_batch_bound: int) -> Array:
    """Note the one arrival (>= 0) per pipeline, of micro-batch `number`, at its stage."""
    stage = jnp.argmax(arrival, axis=0).astype(jnp.int32)
    here = jnp.arange(arrival.shape[0], dtype=jnp.int32)[:, None] == stage[None]
    micro = jnp.where(here, number, 0).sum(axis=0)
    value = arrival.max(axis=0)
    slot = _flat(stage, micro, arrival.shape[1], micro_batch_bound)
    return queue.at[jnp.where(value >= 0, slot, queue.shape[0])].set(value, mode="drop")


def _head(
    queue: Array, heads: Array, done: Array, stage: Array, chosen: Array, micro_batch_bound: int
) -> Array:
    """[S, B] arrival of the next input, read anew for the one stage that ran."""
    here = stage == chosen
    micro = jnp.where(here, done, 0).sum(axis=0)
    slot = _flat(chosen[0], micro, heads.shape[1], micro_batch_bound)
    value = queue.at[jnp.where(micro < micro_batch_bound, slot, queue.shape[0])].get(
        mode="fill", fill_value=jnp.inf
    )
    return jnp.where(here, value[None], heads)


def _flat(stage: Array, micro: Array, pipelines: int, micro_batch_bound: int) -> Array:
    column = jnp.arange(pipelines, dtype=jnp.int32)
    return (stage * micro_batch_bound + micro) * pipelines + column
