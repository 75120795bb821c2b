"""In which order a pipeline's stages run their operations.

A fixed order is a table of time slots: stage s runs forward k in slot `stride * k + forward_slot[s]`
and backward k in slot `stride * k + backward_slot[s]`. A slot is no time, only a place in an order
that is topological: whatever an operation waits for stands in an earlier slot, and it is the
latest that its neighbour sent. So one pass over the slots, all stages side by side, evaluates a
schedule, and the affine maps (data, a few numbers per stage) are all that tells schedules apart.

With f(s) <= m + n(s) - 1 before backward m before forward m + n(s), n(s) micro-batches are in flight,
which for stride 2 means backward_slot - forward_slot = 2 n(s) - 1:

- 1F1B (Narayanan et al., SOSP 2019): n = d, the distance to the last stage counted from 1.
- ZB-H1 (Qi et al., ICLR 2024): the order of 1F1B with the backward pass cut in two; the weight
  gradient of micro-batch m follows the input gradient of m + s, the last s come at the end.
- Eager 1F1B (Zhuang et al., MLSys 2023): n = 2 d - 1.
- Interleaved 1F1B (Narayanan et al., SC 2021; the order of Megatron-LM) with v chunks per stage:
  k runs over S micro-batches of the first chunk, the same S of the second, and so on, backward from
  the last chunk; n = 2 (d - 1) + (v - 1) S + 1 of these. v = 1 is eager 1F1B.
- GPipe (Huang et al., NeurIPS 2019): all forwards, then all backwards, oldest first (as PyTorch's
  ScheduleGPipe does; GPipe's own figure runs the newest first, in the same time on equal stages).

The greedy order is not fixed: see `jaxsim.step_time.greedy`.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int

from jaxsim.plan import ALL_SCHEDULES, Schedule
from jaxsim.pytree import Pytree

FIXED_ORDERS = (
    Schedule.ONE_F_ONE_B,
    Schedule.EAGER_1F1B,
    Schedule.GPIPE,
    Schedule.INTERLEAVED,
    Schedule.ZERO_BUBBLE,
)


def known(schedule: Array, schedules: tuple[int, ...]) -> Array:
    """[K] bool: one of `schedules`."""
    if set(schedules) == set(ALL_SCHEDULES):
        return jnp.ones(schedule.shape, bool)
    known = schedule == schedules[0]
    for other in schedules[1:]:
        known = known | (schedule == other)
    return known


class SlotOrder(Pytree):
    """Fixed orders of B pipelines; all int32 but `zero_bubble`. B may be 1 where all are alike."""

    stride: Int[Array, "*batch 1 B"]  # slots between micro-batches
    forward_slot: Int[Array, "*batch S B"]
    backward_slot: Int[Array, "*batch S B"]
    chunks: Int[Array, "*batch 1 B"]  # model chunks per stage
    zero_bubble: Bool[Array, "*batch 1 B"]  # weight gradients are operations of their own
    n_stages: Int[Array, "*batch 1 B"]
    micro_batches: Int[Array, "*batch 1 B"]


class Operation(Pytree):
    """What every stage does in one slot; [S, B] each, [1, B] broadcast."""

    forward: Array  # bool, a forward; where False, a backward
    runs: Array  # bool, False where the stage does nothing in this slot
    index: Array  # int32, k: the how-many-th forward or backward of the stage
    receives: Array  # bool, the input comes from a neighbour
    sends: Array  # bool, the output goes to a neighbour
    head: Array  # bool, the last chunk of the last stage: the logits are computed here


def slot_order(
    schedule: Array, n_stages: Array, micro_batches: Array, stage_bound: int, chunks: int = 1
) -> SlotOrder:
    """The order of each of B pipelines with at most `stage_bound` stages.

    schedule, n_stages, micro_batches are [B] int32 (or [1] where all are alike); `chunks` holds for
    the interleaved ones. Of a round of S micro-batches that is not full, the missing are left out.
    """
    kind, stages, count = schedule[None], n_stages[None], micro_batches[None]
    s = jnp.arange(stage_bound, dtype=jnp.int32)[:, None]
    after = stages - 1 - s  # stages behind this one
    v = jnp.where(kind == Schedule.INTERLEAVED, chunks, 1)
    hop = (kind == Schedule.EAGER_1F1B) | (kind == Schedule.INTERLEAVED)
    gpipe = kind == Schedule.GPIPE
    forward_slot = jnp.where(hop, 2 * s, s)
    eager = 2 * s + 4 * after + 2 * (v - 1) * stages + 1
    backward_slot = jnp.where(hop, eager, stages + after)
    return SlotOrder(
        stride=jnp.where(gpipe, 1, 2),
        forward_slot=forward_slot,
        backward_slot=jnp.where(gpipe, count + stages - 1 + after, backward_slot),
        chunks=v,
        zero_bubble=kind == Schedule.ZERO_BUBBLE,
        n_stages=stages,
        micro_batches=count,
    )


def slot_count(
    schedules: tuple[int, ...], stage_bound: int, micro_batch_bound: int, chunks: int = 1
) -> int:
    """Slots that the longest of `schedules` needs for any pipeline within the bounds."""
    s, m = stage_bound, micro_batch_bound
    interleaved = 2 * ((m + s - 1) * chunks - 1) + 4 * (s - 1) + 2 * (chunks - 1) * s + 2
    counts: dict[int, int] = {
        Schedule.ONE_F_ONE_B: 2 * (m + s - 1),
        Schedule.ZERO_BUBBLE: 2 * (m + s - 1),
        Schedule.GPIPE: 2 * (m + s - 1),
        Schedule.EAGER_1F1B: 2 * m + 4 * (s - 1),
        Schedule.INTERLEAVED: interleaved,
    }
    return max((counts[k] for k in schedules if k in counts), default=0)


def operation_at(order: SlotOrder, slot: Array, max_chunks: int) -> Operation:
    """What the stages do in slot `slot` ([] int32); `max_chunks` is static, 1 saves arithmetic."""
    s = jnp.arange(order.forward_slot.shape[0], dtype=jnp.int32)[:, None]
    since_f, since_b = slot - order.forward_slot, slot - order.backward_slot
    shift = order.stride - 1  # strides are 1 and 2
    aligned = (since_f & shift) == 0
    # With stride 2 the two kinds have different parity; with stride 1 the backwards come later.
    forward = jnp.where(shift == 0, since_b < 0, aligned)
    index = jnp.where(forward, since_f, since_b) >> shift
    first, last = s == 0, s == order.n_stages - 1
    micro = index
    top, bottom = first, last
    alone = order.n_stages == 1
    if max_chunks > 1:
        round_, in_round = _divide(index, order.n_stages)
        whole, part = _divide(round_, order.chunks)
        micro = whole * order.n_stages + in_round
        chunk = jnp.where(forward, part, order.chunks - 1 - part)
        top, bottom = first & (chunk == 0), last & (chunk == order.chunks - 1)
    source, sink = jnp.where(forward, top, bottom), jnp.where(forward, bottom, top)
    return Operation(
        forward=forward,
        runs=(index >= 0) & (micro < order.micro_batches) & (s < order.n_stages),
        index=index,
        receives=~source & ~alone,
        sends=~sink & ~alone,
        head=bottom,
    )


def _divide(a: Array, b: Array) -> tuple[Array, Array]:
    """Quotient and remainder of int32 a and b >= 1, through floats: that vectorises on CPU, integer
    division does not. Exact for |a| < 2^20: a half keeps the quotient off the integers."""
    floats = jnp.float32
    quotient = jnp.floor((a.astype(floats) + 0.5) / jnp.maximum(b, 1).astype(floats))
    quotient = quotient.astype(jnp.int32)
    return quotient, a - quotient * b
