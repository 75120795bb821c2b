"""What stages and links of a pipeline take, and when a transfer over a changing link ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsim.pytree import Pytree

HEAD_FORWARD_SHARE = 1.0 / 3.0  # the logits' backward pass costs twice their forward


class StageTimes(Pytree):
    """Times of B pipelines of up to S stages, all [s] and for one micro-batch; float32.

    Rows of stages that do not exist are not read. C segments of time have C - 1 changes between.
    """

    forward_s: Array  # [S, B] whole stage: all its chunks
    backward_s: Array  # [S, B] down to the gradient of the input, recomputation included
    weight_s: Array  # [S, B] gradient of the weights; part of the backward pass but in ZB-H1
    head_s: Array  # [B] logits of the last stage, forward and backward
    next_send_s: Array  # [C, S, B] on the link to the next stage (of the last: to the first)
    prev_send_s: Array  # [C, S, B] on the link to the previous stage (of the first: to the last)
    next_latency_s: Array  # [S, B] one way
    prev_latency_s: Array  # [S, B]
    change_s: Array  # [C - 1, B] moments from the start of the step, ascending

    @property
    def steady(self) -> bool:
        """Do the links keep one rate for the whole step? Static."""
        return self.next_send_s.shape[0] == 1

    @property
    def head_forward_s(self) -> Float[Array, "1 B"]:
        return HEAD_FORWARD_SHARE * self.head_s[None]

    @property
    def head_backward_s(self) -> Float[Array, "1 B"]:
        return (1.0 - HEAD_FORWARD_SHARE) * self.head_s[None]


def transfer_s(begin_s: Array, send_s: Array, change_s: Array) -> Array:
    """[S, B] [s] for which transfers that begin at `begin_s` [S, B] occupy their links.

    A transfer that would take `send_s[c]` ([C, S, B]) at the rate of segment c does the share
    time / send_s[c] of itself there; segments end at `change_s` [C - 1, B].
    """
    zero = jnp.zeros_like(begin_s)

    def segment(state, rate):
        at, left, taken = state
        send, end = rate
        room = jnp.maximum(end[None] - at, 0.0)
        share = jnp.minimum(left, room / jnp.maximum(send, 1e-12))
        # A transfer that outlasts the segment leaves it at its end, free of rounding.
        outlasts = share < left
        taken = taken + jnp.where(outlasts, room, share * send)
        return (jnp.where(outlasts, jnp.maximum(at, end[None]), at), left - share, taken), None

    state = (begin_s, zero + 1.0, zero)
    if send_s.shape[0] > 1:
        # A loop, although short: XLA would recompute an unrolled one for every use of its result.
        state, _ = jax.lax.scan(segment, state, (send_s[:-1], change_s))
    return state[2] + state[1] * send_s[-1]
