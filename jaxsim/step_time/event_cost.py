"""The pipelines of a plan event-exact: the same inputs and results as the closed form.

`fast_pipeline_time` is the form in which plans are compared. It is the closed form of the orders
that have one within 3 %, and plays the others: interleaved, ZB-H1 and greedy ones."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jax.custom_batching import custom_vmap
from jaxtyping import Float

from jaxsim.plan import ALL_SCHEDULES, INTERLEAVED_CHUNKS, Schedule
from jaxsim.pytree import Pytree
from jaxsim.step_time.event_exact import pipeline_events
from jaxsim.step_time.pipeline import PipelineTime, pipeline_time
from jaxsim.step_time.pipeline_inputs import PipelineInputs, StageTimes
from jaxsim.step_time.schedules import known
from jaxsim.step_time.topology import Topology, crossing

# Orders whose operations plans are compared by, and the micro-batches after which their rate is taken
# for steady. A greedy order fills the pipeline for longer; its time does not grow with the bound. The
# closed form of ZB-H1 is up to 4 % too fast.
PLAYED = {Schedule.INTERLEAVED: 64, Schedule.ZERO_BUBBLE: 64, Schedule.GREEDY: 512}
PLAYED_STAGES = 16
BLOCK = 64  # plans that are played at a time


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
    inputs = _divided(inputs)
    micro_batches = inputs.micro_batches
    closed = pipeline_time(inputs, schedules=bounds.schedules)
    rows = _Rows.of(inputs.topo, inputs.pp, bounds)
    fits = _fits(inputs, rows, bounds) & (micro_batches <= bounds.micro_batches)
    count = jnp.where(fits, micro_batches, 0.0)
    # With the WAN and without, side by side.
    wires = (_wire(inputs, rows, profile), _wire(_no_wan(inputs), rows, profile))
    total_s, ideal_s = _play(inputs, rows, bounds, wires, (count, count), closed.in_flight)
    return closed.replace(total_s=jnp.where(fits, total_s, jnp.inf), ideal_s=ideal_s)


def fast_pipeline_time(
    inputs: PipelineInputs, schedules: tuple[int, ...] = ALL_SCHEDULES
) -> PipelineTime:
    """`pipeline_time`, and of PLAYED orders the time of their operations.

    Of more micro-batches than PLAYED says the first are played, and the rest pass at the rate of the
    last played. A pipeline of more than PLAYED_STAGES keeps its closed form, which is rough there.
    Only plans with such an order take the time, however many others are computed beside them. The slope
    is that of the closed form, in proportion. `schedules` (static) are those that occur.
    """
    closed = pipeline_time(inputs, schedules=schedules)
    kinds = tuple(k for k in PLAYED if k in schedules)
    if not kinds:
        return closed
    played = functools.reduce(jnp.logical_or, [inputs.schedule == k for k in kinds])
    played = played & jnp.any(inputs.topo.together, axis=1)
    args = (_divided(inputs), closed.in_flight, closed.total_s, played)
    factor = _played_factor(kinds)(args)
    total_s = jnp.where(played, closed.total_s * factor, closed.total_s)
    # An upper bound of what a network of no cost would leave: the rough closed form may lie above.
    return closed.replace(total_s=total_s, ideal_s=jnp.minimum(closed.ideal_s, total_s))


@functools.cache
def _played_factor(kinds: tuple[int, ...]) -> Callable[[tuple], Array]:
    """(inputs, limits, closed total_s, [K] bool where to play) -> [K] played over closed total_s.

    Plans under any number of vmaps are laid side by side, and those to play taken BLOCK at a time: a
    conditional under vmap would play them all. Constant for derivatives.
    """

    def one(args):
        inputs, limits, total_s, _ = args
        played_s = total_s
        for kind in kinds:
            of_kind, fits = _played_s(inputs, limits, Schedule(kind))
            played_s = jnp.where(fits & (inputs.schedule == kind), of_kind, played_s)
        return played_s / jnp.maximum(total_s, 1e-12)

    def many_in_blocks(args):
        size = args[-1].shape[0]
        block = min(size, BLOCK)

        def more(carry):
            return jnp.any(carry[1])

        def next_block(carry):
            out, left = carry
            index = jnp.nonzero(left, size=block, fill_value=size)[0]
            some = jax.tree.map(lambda x: x.at[index].get(mode="clip"), args)
            out = out.at[index].set(jax.vmap(one)(some), mode="drop")
            return out, left.at[index].set(False, mode="drop")

        start = (jnp.ones_like(args[-2]), jnp.any(args[-1], axis=1))
        return jax.lax.while_loop(more, next_block, start)[0]

    many = custom_vmap(many_in_blocks)

    def spread(size, args, batched):
        return jax.tree.map(
            lambda x, mapped: x if mapped else jnp.broadcast_to(x[None], (size, *x.shape)),
            args,
            batched,
        )

    @many.def_vmap
    def flatten(size, batched, args):
        args = spread(size, args, batched[0])
        flat = many(jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), args))
        return flat.reshape(size, -1, *flat.shape[1:]), True

    single = custom_vmap(lambda args: many(jax.tree.map(lambda x: x[None], args))[0])

    @single.def_vmap
    def side_by_side(size, batched, args):
        return many(spread(size, args, batched[0])), True

    factor = jax.custom_jvp(lambda args: single(args))

    @factor.defjvp
    def constant(primals, tangents):
        out = factor(*primals)
        return out, jnp.zeros_like(out)

    return factor


def _played_s(inputs: PipelineInputs, limits: Array, kind: Schedule) -> tuple[Array, Array]:
    """[K] [s] of pipelines of order `kind` (static), and [K] bool: those within PLAYED_STAGES."""
    micro_batches = PLAYED[kind]
    bounds = EventBounds(PLAYED_STAGES, micro_batches, schedules=(kind,))
    rows = _Rows.of(inputs.topo, inputs.pp, bounds)
    fits, m = _fits(inputs, rows, bounds), inputs.micro_batches
    # Interleaved rounds are as long as the pipeline: what is left out are whole ones.
    round_ = jnp.where(inputs.schedule == Schedule.INTERLEAVED, rows.n_stages, 1)
    round_ = jnp.maximum(round_, 1).astype(jnp.float32)
    left_out = jnp.ceil(jnp.maximum(m - micro_batches, 0.0) / round_ - 1e-4) * round_
    lag = jnp.maximum(jnp.floor(micro_batches / 3.0 / round_), 1.0) * round_
    count = jnp.where(fits, m - left_out, 0.0)
    wire = _wire(inputs, rows, None)
    # The lag's end and its start, side by side; the start only where something is left out.
    counts = (count, jnp.where(left_out > 0.0, count - lag, 0.0))
    total_s, earlier_s = _play(inputs, rows, bounds, (wire, wire), counts, limits)
    total_s = total_s + left_out * jnp.where(left_out > 0.0, (total_s - earlier_s) / lag, 0.0)
    return total_s, fits


def _divided(inputs: PipelineInputs) -> PipelineInputs:
    """The same with every stage's passes filled in."""
    stage_s = inputs.stage_s
    forward_s = stage_s / 3.0 if inputs.forward_s is None else inputs.forward_s
    weight_s = forward_s if inputs.weight_s is None else inputs.weight_s
    weight_s = jnp.minimum(weight_s, stage_s - forward_s)
    return inputs.replace(forward_s=forward_s, weight_s=weight_s)


def _fits(inputs: PipelineInputs, rows: _Rows, bounds: EventBounds) -> Array:
    """[K] bool: stages, groups and schedule are within the bounds."""
    fits = rows.n_stages <= bounds.stages
    fits = fits & (jnp.sum(inputs.topo.first.astype(jnp.int32)) <= rows.member.shape[0])
    return fits & known(inputs.schedule, bounds.schedules)


def _play(
    inputs: PipelineInputs,
    rows: _Rows,
    bounds: EventBounds,
    wires: tuple[dict[str, Array], ...],
    counts: tuple[Array, ...],
    limits: Array,
) -> Array:
    """[N, K] [s] makespans of the pipelines, over each of N wires with as many micro-batches."""
    topo, forward_s, weight_s = inputs.topo, inputs.forward_s, inputs.weight_s
    assert forward_s is not None and weight_s is not None, "see _divided"
    compute = {
        "forward_s": rows.pick(forward_s),
        "backward_s": rows.pick(inputs.stage_s - forward_s - weight_s),
        "weight_s": rows.pick(weight_s),
        "head_s": rows.of_group(jnp.where(topo.last, inputs.head_s, 0.0), rows.member),
    }
    group = jnp.stack([inputs.schedule.astype(jnp.float32), rows.n_stages.astype(jnp.float32)])
    kind, n_stages = rows.of_group(group, rows.head).astype(jnp.int32)
    side_by_side = functools.partial(jnp.concatenate, axis=-1)
    of_group = rows.of_group(jnp.stack(counts), rows.head).astype(jnp.int32)
    n_stages = [jnp.where(count > 0, n_stages, 0) for count in of_group]
    several = len(wires)
    times = [StageTimes(**compute, **wire) for wire in wires]
    times = jax.tree.map(lambda *x: side_by_side(x), *times)
    makespan = _makespans(bounds.micro_batches, bounds.schedules)
    kinds, limits = side_by_side([kind] * several), side_by_side([rows.pick(limits)] * several)
    total_s = makespan(times, kinds, side_by_side(n_stages), side_by_side(of_group), limits)
    total_s = total_s.reshape(several, -1)
    return jnp.einsum("ng,gk->nk", total_s, rows.member, precision=jax.lax.Precision.HIGHEST)


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
