"""What the pipelines of a plan are timed from: stages, links and counts, with the network applied;
and when a transfer over a changing link ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.plan import ALL_SCHEDULES, FULL_PRECISION_BITS, Plan, Problem
from jaxsim.pytree import Pytree
from jaxsim.step_time import collectives
from jaxsim.step_time.stages import Stages
from jaxsim.step_time.topology import Topology, transfers_per_micro_batch
from jaxsim.workload import Workload

HEAD_FORWARD_SHARE = 1.0 / 3.0  # the logits' backward pass costs twice their forward


class PipelineInputs(Pytree):
    """One micro-batch in every stage of a plan, and how many there are."""

    topo: Topology
    pp: Int[Array, "*batch K"]  # stages inside the domain
    schedule: Int[Array, "*batch K"]  # Schedule
    micro_batches: Float[Array, "*batch K"]  # in one step
    stage_s: Float[Array, "*batch K"]  # [s] forward + backward on one stage of the domain
    head_s: Float[Array, "*batch K"]  # [s] the logits, on the last stage of a pipeline
    hop_s: Float[Array, "*batch K"]  # [s] one way between stages of the domain
    send_s: Float[Array, "*batch K K"]  # [s] all replicas' transfer occupies a directed WAN link
    latency_s: Float[Array, "*batch K K"]  # [s] of that link, one way
    forward_s: Float[Array, "*batch K"] | None = None  # [s] of stage_s; None = a third
    # [s] of stage_s, gradient of the weights; None = as forward
    weight_s: Float[Array, "*batch K"] | None = None


class PreparedStep(Pytree):
    """A plan ready to be timed."""

    stages: Stages
    activation_gb: Float[Array, "*batch K K"]  # [GB] of one transfer over each WAN link
    inputs: PipelineInputs


def prepare_stages(
    plan: Plan,
    problem: Problem,
    bandwidth_gb_per_s: Array,
    rtt_s: Array,
    st: Stages,
    slowdown: Array | float = 1.0,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> PreparedStep:
    """Put the stages of a plan on a network, [K, K] each.

    `slowdown` ([K, K] or a number) is the factor by which other jobs lengthen transfers, `schedules`
    (static) are those that occur.
    """
    work, cluster, calibration = problem.work, problem.cluster, problem.calibration
    activation_gb = _activation_gb(plan, work, st, schedules)
    rate = jnp.maximum(bandwidth_gb_per_s * calibration.wan_efficiency, 1e-9)
    hop_s = collectives.stage_hop_s(work, cluster, calibration, plan, st.dp, st.micro_batch)
    # A stage blocks while it hands a micro-batch on, once each way and chunk.
    handing_s = jnp.where(plan.pp > 1, 2.0 * work.virtual_stages * hop_s, 0.0)
    stage_s = jnp.where(plan.used, st.compute_s + st.tensor_s + st.context_s + handing_s, 0.0)
    # Communication is divided between the passes as the layer's computation is.
    layer_s = jnp.maximum(st.layer.forward_s + st.layer.backward_s, 1e-12)
    inputs = PipelineInputs(
        topo=st.topo,
        pp=plan.pp,
        schedule=st.schedule,
        micro_batches=st.micro_batches,
        stage_s=stage_s,
        head_s=st.layer.head_s,
        hop_s=hop_s,
        send_s=activation_gb * slowdown / rate,
        latency_s=0.5 * rtt_s,
        forward_s=stage_s * st.layer.forward_s / layer_s,
    )
    return PreparedStep(st, activation_gb, inputs)


def _activation_gb(plan: Plan, work: Workload, st: Stages, schedules: tuple[int, ...]) -> Array:
    """[K, K] [GB] of one transfer over each WAN link: a micro-batch of all replicas."""
    pair = transfers_per_micro_batch(st.topo, st.schedule, schedules) > 0
    return jnp.where(pair, sent_gb(plan, work, st)[:, None], 0.0)


def sent_gb(plan: Plan, work: Workload, st: Stages) -> Float[Array, " K"]:
    """[K] [GB] that a domain hands on in one transfer: a micro-batch of all replicas."""
    precision = plan.activation_bits.astype(jnp.float32) / FULL_PRECISION_BITS
    return work.boundary_gb * (st.micro_batch * st.dp).astype(jnp.float32) * precision


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
