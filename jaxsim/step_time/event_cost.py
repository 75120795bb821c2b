"""The step of a plan by the event-exact pipeline: the same inputs and results as the closed form."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.custom_batching import custom_vmap
from jaxtyping import Float

from jaxsim.plan import ALL_SCHEDULES, INTERLEAVED_CHUNKS, Plan, Problem, Schedule
from jaxsim.pytree import Pytree
from jaxsim.step_time.closed_form import NetworkView, StepCost, job_step_cost
from jaxsim.step_time.event_exact import pipeline_events
from jaxsim.step_time.links import StageTimes
from jaxsim.step_time.pipeline import PipelineTime, pipeline_time
from jaxsim.step_time.pipeline_inputs import PipelineInputs
from jaxsim.step_time.schedules import known
from jaxsim.step_time.topology import Topology, crossing


class EventBounds(Pytree):
    """Static sizes of the event-exact form; a plan beyond them is not simulated."""

    stages: int = struct.field(pytree_node=False)  # of a pipeline, those inside domains included
    micro_batches: int = struct.field(pytree_node=False)  # of a group in one step
    groups: int = struct.field(pytree_node=False, default=0)  # 0 = as many as domains
    schedules: tuple[int, ...] = struct.field(pytree_node=False, default=ALL_SCHEDULES)


class BandwidthProfile(Pytree):
    """How the links change inside a step, C segments of time: a transfer in segment c takes
    `slowdown[c]` times what it takes at the bandwidth of the NetworkView."""

    change_s: Float[Array, "*batch _"]  # [C - 1] [s] from the start of the step, ascending
    slowdown: Float[Array, "*batch C K K"]  # factors > 0


def event_step_cost(
    plan: Plan,
    problem: Problem,
    view: NetworkView,
    bounds: EventBounds,
    profile: BandwidthProfile | None = None,
) -> StepCost:
    """`job_step_cost` with the pipeline's time event-exact; memory, sync and traffic are the same.

    `bounds` is static. A plan with longer pipelines, more micro-batches, more groups or another
    schedule than they allow is not simulated: its step_s is infinite.
    """
    pipeline = functools.partial(event_pipeline_time, bounds=bounds, profile=profile)
    return job_step_cost(plan, problem, view, pipeline=pipeline, schedules=bounds.schedules)


def event_pipeline_time(
    inputs: PipelineInputs, *, bounds: EventBounds, profile: BandwidthProfile | None = None
) -> PipelineTime:
    """`pipeline_time`, operation by operation.

    The stages inside the domains are stages of the pipeline; a hop inside a domain occupies its
    link for all of `hop_s`. `ideal_s` is the same step over a WAN of no cost, simulated too;
    the period and the in-flight limits (which a greedy order obeys) are the closed form's.

    An interleaved pipeline also crosses from its last domain to its first, at the send_s of that
    link; of exactly two domains with several stages each, the crossing shares its link with the
    ordinary traffic of the opposite direction and both are charged for the sum of their bytes.
    """
    topo, schedule, micro_batches = inputs.topo, inputs.schedule, inputs.micro_batches
    stage_s = inputs.stage_s
    forward_s = stage_s / 3.0 if inputs.forward_s is None else inputs.forward_s
    weight_s = forward_s if inputs.weight_s is None else inputs.weight_s
    weight_s = jnp.minimum(weight_s, stage_s - forward_s)
    inputs = inputs.replace(forward_s=forward_s, weight_s=weight_s)
    closed = pipeline_time(inputs, schedules=bounds.schedules)
    rows = _Rows.of(topo, inputs.pp, bounds)
    compute = {
        "forward_s": rows.pick(forward_s),
        "backward_s": rows.pick(stage_s - forward_s - weight_s),
        "weight_s": rows.pick(weight_s),
        "head_s": rows.of_group(jnp.where(topo.last, inputs.head_s, 0.0), rows.member),
    }
    wires = (
        _wire(inputs, rows, profile),
        _wire(_no_wan(inputs), rows, profile),
    )
    fits = (rows.n_stages <= bounds.stages) & (micro_batches <= bounds.micro_batches)
    fits = fits & (jnp.sum(topo.first.astype(jnp.int32)) <= rows.member.shape[0])
    fits = fits & known(schedule, bounds.schedules)
    count = jnp.where(fits, micro_batches, 0.0)
    group = jnp.stack([schedule.astype(jnp.float32), rows.n_stages.astype(jnp.float32), count])
    kind, n_stages, count = rows.of_group(group, rows.head).astype(jnp.int32)
    # With the WAN and without, side by side.
    args = (kind, jnp.where(count > 0, n_stages, 0), count, rows.pick(closed.in_flight))
    twice = jax.tree.map(lambda x: jnp.concatenate([x, x], axis=-1), args)
    pair = (StageTimes(**compute, **wire) for wire in wires)
    times = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=-1), *pair)
    makespan = _makespans(bounds.micro_batches, bounds.schedules)
    both = makespan(times, *twice).reshape(2, -1)
    total_s, ideal_s = jnp.einsum(
        "ng,gk->nk", both, rows.member, precision=jax.lax.Precision.HIGHEST
    )
    return closed.replace(total_s=jnp.where(fits, total_s, jnp.inf), ideal_s=ideal_s)


@functools.cache
def _makespans(micro_batch_bound: int, schedules: tuple[int, ...]) -> Callable[..., Array]:
    """`pipeline_events`'s total_s, whose pipelines stay on the last axis under vmap."""

    def plain(times, *ints_and_limits):
        *ints, in_flight = ints_and_limits
        static = (micro_batch_bound, schedules, INTERLEAVED_CHUNKS)
        return pipeline_events(times, *ints, *static, in_flight).total_s  # pyright: ignore[reportCallIssue]

    batched = custom_vmap(plain)

    @batched.def_vmap
    def rule(size, is_batched, *args):
        def merge(x, mapped):
            x = x if mapped else jnp.broadcast_to(x[None], (size, *x.shape))
            x = jnp.moveaxis(x, 0, -1)
            return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])

        flat = batched(*jax.tree.map(merge, args, tuple(is_batched)))
        return jnp.moveaxis(flat.reshape(-1, size), -1, 0), True

    # A custom_vmap has no reverse mode of its own.
    makespans = jax.custom_vjp(lambda *args: batched(*args))
    makespans.defvjp(
        lambda *args: (batched(*args), args), lambda args, slope: jax.vjp(plain, *args)[1](slope)
    )
    return makespans


class _Rows(Pytree):
    """Where the stages of G pipelines lie in K domains."""

    hot: Array  # [S, G, K] 1 where the stage of the pipeline lies in the domain
    member: Array  # [G, K] 1 where the domain belongs to the pipeline
    head: Array  # [G, K] 1 where the domain is its first
    n_stages: Array  # [K] int32 of the domain's pipeline
    ends: Array  # [S, G] bool, the stage is the last of its domain
    begins: Array  # [S, G] bool, the first of its domain

    @staticmethod
    def of(topo: Topology, plan_pp: Array, bounds: EventBounds) -> _Rows:
        n_domains = plan_pp.shape[0]
        pp = plan_pp.astype(jnp.int32)
        before = topo.together & ~topo.after  # row = domain, column = stands before it
        start = jnp.where(before, pp[None, :], 0).sum(axis=1)
        lane = jnp.cumsum(topo.first.astype(jnp.int32)) - 1  # of the pipeline that begins here
        groups = jnp.arange(bounds.groups or n_domains, dtype=jnp.int32)
        head = topo.first[None, :] & (lane[None, :] == groups[:, None])
        member = jnp.any(head[:, :, None] & topo.together[None], axis=1)
        stage = jnp.arange(bounds.stages, dtype=jnp.int32)[:, None, None]
        inside = (stage >= start[None, None]) & (stage < (start + pp)[None, None])
        hot = inside & member[None]
        return _Rows(
            hot=hot.astype(jnp.float32),
            member=member.astype(jnp.float32),
            head=head.astype(jnp.float32),
            n_stages=jnp.where(topo.together, pp[None, :], 0).sum(axis=1),
            ends=jnp.any(hot & (stage == (start + pp - 1)[None, None]), axis=2),
            begins=jnp.any(hot & (stage == start[None, None]), axis=2),
        )

    def pick(self, of_domain: Array) -> Array:
        """[..., K] -> [..., S, G]: the value of the domain that holds the stage."""
        return jnp.einsum(
            "sgk,...k->...sg", self.hot, of_domain, precision=jax.lax.Precision.HIGHEST
        )

    def of_group(self, of_domain: Array, where: Array) -> Array:
        """[..., K] -> [..., G]: summed over the domains `where` [G, K] is 1."""
        return jnp.einsum("gk,...k->...g", where, of_domain, precision=jax.lax.Precision.HIGHEST)


def _no_wan(inputs: PipelineInputs) -> PipelineInputs:
    return inputs.replace(send_s=inputs.send_s * 0, latency_s=inputs.latency_s * 0)


def _wire(
    inputs: PipelineInputs, rows: _Rows, profile: BandwidthProfile | None
) -> dict[str, Array]:
    """Fields of StageTimes: every stage's way to its neighbours, through its domain or the WAN."""
    topo = inputs.topo
    onwards = topo.to_next | crossing(topo)
    send_s, latency_s = inputs.send_s[None], inputs.latency_s[None]
    send_s = send_s if profile is None else send_s * profile.slowdown
    members = topo.together.astype(jnp.float32).sum(axis=1)
    doubled = (inputs.schedule == Schedule.INTERLEAVED) & (members == 2.0)
    doubled = doubled & (rows.n_stages > 2)
    send_s = send_s * jnp.where(doubled, 2.0, 1.0)[None, :, None]
    # A pipeline inside one domain uses no link.
    several = (rows.of_group(jnp.ones_like(members), rows.member) > 1.0)[None]

    def way(of_link, inside, at_end, pairs):  # [C, K, K] -> [C, S, G]
        over_wan = rows.pick(jnp.where(pairs[None], of_link, 0.0).sum(axis=-1))
        return jnp.where((at_end & several)[None], over_wan, inside)

    inside, nothing = rows.pick(inputs.hop_s)[None], jnp.zeros((1, *rows.ends.shape), jnp.float32)
    back = onwards.T
    change_s = jnp.zeros((0,), jnp.float32) if profile is None else profile.change_s
    return {
        "next_send_s": way(send_s, inside, rows.ends, onwards),
        "prev_send_s": way(send_s, inside, rows.begins, back),
        "next_latency_s": way(latency_s, nothing, rows.ends, onwards)[0],
        "prev_latency_s": way(latency_s, nothing, rows.begins, back)[0],
        "change_s": jnp.broadcast_to(change_s[:, None], (send_s.shape[0] - 1, several.shape[1])),
    }
