"""Many complete plans of one job under one network: the closed form, network-independent terms known.

`build_cost_table` of `cost_table` computes all that no link changes, once per cluster and job;
`plan_costs` adds a network: some hundred operations a plan, plans side by side in the last axis.

The domains of a plan are reordered by (group, position), so that a pipeline is a run of slots: what
comes after a stage is a sum from the right, and a successor is the next slot.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import Array
from jaxtyping import Float

from jaxsim.cluster import Calibration
from jaxsim.plan import INTERLEAVED_CHUNKS
from jaxsim.pytree import Pytree
from jaxsim.step_time import sync


class PlanCostTable(Pytree):
    """P plans of one job; S slots, N pairs of slots, R links of gradient rings. All times [s].

    Link numbers are source * K + destination, K * K = none; those of a ring are raised by K * K + 1
    where H > 1 (an outer sync fills a link differently). Paths are those of
    `jaxsim.step_time.pipeline`.
    """

    link: Array  # [S - 1, P] int32 to the next slot of the pipeline
    sent_gb: Array  # [S - 1, P] [GB] that one transfer moves over it
    transfers: Array  # [S - 1, P] over it in one step, and as many back
    own_s: Array  # [S, P] a micro-batch through the domain, there and back
    within_s: Array  # [S, P] of it between the first stage and the last
    beyond_s: Array  # [S, P] the first stage's own forward and backward
    steady_s: Array  # [S, P] path 1, less the way there and back
    waiting_s: Array  # [S, P] path 2 without its waits, which are beyond these two:
    forward_slack_s: Array  # [S, P]
    backward_slack_s: Array  # [S, P]
    queue_s: Array  # [S, P] longest pass of a stage or hop inside the domain
    queued: Array  # [S, P] micro-batches (chunks) that queue for it, one less than there are
    slow_s: Array  # [S, P] slowest stage or hop inside the domain
    own_loops: Array  # [S, P] whole round trips of the first stage, beside first and last
    own_left: Array  # [S, P] micro-batches left over after them
    left: Array  # [S, P] micro-batches after those that run ahead, -1 = path 4 does not exist
    left_last: Array  # [S, P] the same for the domain's last stage
    loops: Array  # [N, P] of the loop between two slots
    loops_left: Array  # [N, P]
    ideal_s: Array  # [S, P] the whole step over a WAN of no cost
    gpipe_forward_s: Array  # [S or 0, P] slowest forward or hop
    gpipe_backward_s: Array  # [S or 0, P]
    gpipe: (
        Array  # [S or 0, P] micro-batches less one on the first slot of a GPipe pipeline, else -1
    )
    wrap_link: (
        Array  # [S or 0, P] int32 last to first domain, on the first slot of interleaved ones
    )
    wrap_gb: Array  # [S or 0, P] [GB]
    wrap_transfers: Array  # [S or 0, P]
    trips: Array  # [S or 0, P] times that all chunks are gone through, one behind the other
    again_s: Array  # [S or 0, P] what a further chunk saves: the logits
    busy_s: Array  # [S or 0, P] all micro-batches on the slowest stage, for virtual stages
    ring: Array  # [R, P] int32 link
    ring_gb: Array  # [R, P] [GB] of one fragment
    phases: Array  # [P] latencies that one all-reduce pays
    period: Array  # [P] H
    fragments: Array  # [P] F
    overlap: Array  # [P] tau
    slack_s: Array  # [P] sync inside domains less what computation hides
    hidden_s: Array  # [P] what it hides
    after_s: Array  # [P] optimizer and what ZeRO-3 exposes; infinite where the plan cannot run
    update_s: Array  # [P] the same whether or not the plan can run
    sharded_s: Array  # [P] of it ZeRO-3
    wan_gb: Array  # [P] [GB] per step over all WAN links
    egress_usd: Array  # [P] [USD] per step
    efficiency: Array  # [P] progress of a step relative to synchronous 16-bit training
    pairs: tuple[tuple[int, int], ...] = struct.field(
        pytree_node=False
    )  # [N] (later, earlier) slot
    virtual_stages: float = struct.field(pytree_node=False)

    @property
    def size(self) -> int:
        return self.period.shape[-1]

    @property
    def bytes_per_plan(self) -> float:
        """Of all fields."""
        return sum(x.nbytes for x in jax.tree.leaves(self)) / self.size


class LinkTimes(Pytree):
    """One network as the table reads it: a number per link, and zero for no link."""

    inverse: Array  # [K * K + 1] [s/GB] of pipeline traffic
    inverse_back: Array  # [K * K + 1] [s/GB] of the opposite link
    both_ways_s: Array  # [K * K + 1] latency there and back
    ring_inverse: Array  # [2 (K * K + 1)] [s/GB] of a gradient sync, then of an outer sync
    ring_latency_s: Array  # [2 (K * K + 1)] one way


class LinkReads(Pytree):
    """What plans read of a network, by slot and by link of a ring; 0 where there is no link."""

    linked: Array  # [S - 1, P] bool, the next slot is the next of the same pipeline
    inverse: Array  # [S - 1, P] [s/GB] to the next slot
    inverse_back: Array  # [S - 1, P] [s/GB] of the opposite link
    both_ways_s: Array  # [S - 1, P] latency there and back
    wrap_inverse: Array  # [S or 0, P] the same from the last domain of a pipeline to the first
    wrap_inverse_back: Array
    wrap_both_ways_s: Array
    ring_inverse: Array  # [R, P] [s/GB]
    ring_latency_s: Array  # [R, P] one way


class PlanCosts(Pytree):
    """[P] each; `jaxsim.step_time.StepCost` says what they are."""

    step_s: Float[Array, "*batch P"]
    exposed_wan_s: Float[Array, "*batch P"]
    sync_s: Float[Array, "*batch P"]
    wan_busy_s: Float[Array, "*batch P"]
    wan_gb: Float[Array, "*batch P"]
    egress_usd: Float[Array, "*batch P"]


def link_times(
    bandwidth_gb_per_s: Float[Array, "K K"], rtt_s: Float[Array, "K K"], calibration: Calibration
) -> LinkTimes:
    """Prepare one network, [K, K] each."""

    def flat(matrix):
        return jnp.concatenate([matrix.ravel(), jnp.zeros((1,), jnp.float32)])

    inverse = 1.0 / jnp.maximum(bandwidth_gb_per_s * calibration.wan_efficiency, 1e-9)
    latency_s = 0.5 * rtt_s
    ring = [
        flat(1.0 / sync.ring_rate_gb_per_s(bandwidth_gb_per_s, jnp.int32(h), calibration))
        for h in (1, 2)
    ]
    return LinkTimes(
        inverse=flat(inverse),
        inverse_back=flat(inverse.T),
        both_ways_s=flat(latency_s + latency_s.T),
        ring_inverse=jnp.concatenate(ring),
        ring_latency_s=jnp.concatenate([flat(latency_s)] * 2),
    )


def read_table(table: PlanCostTable, links: LinkTimes, xp: ModuleType = jnp) -> LinkReads:
    """Read a prepared network for all plans of a table."""

    def take(values, index):
        # The indices are in range by construction: no clamping.
        return values[index] if xp is np else values.at[index].get(mode="promise_in_bounds")

    wires = (links.inverse, links.inverse_back, links.both_ways_s)
    return LinkReads(
        table.link != links.inverse.shape[0] - 1,
        *(take(values, table.link) for values in wires),
        *(take(values, table.wrap_link) for values in wires),
        take(links.ring_inverse, table.ring),  # pyright: ignore[reportCallIssue]
        take(links.ring_latency_s, table.ring),  # pyright: ignore[reportCallIssue]
    )


def read_links(
    table: PlanCostTable, bandwidth_gb_per_s: Array, rtt_s: Array, calibration: Calibration
) -> LinkReads:
    """Read the few links of a few plans from a network as it is, [K, K] each."""
    n_domains = rtt_s.shape[0]
    none = n_domains * n_domains

    def read(link):  # GB/s, GB/s of the opposite link, latency [s] one way, the other; which exist
        there = link < none
        link = jnp.where(there, link, 0)
        # A float quotient is exact below 2^24 and vectorises; integer division does not.
        row = jnp.floor((link.astype(jnp.float32) + 0.5) / n_domains).astype(jnp.int32)
        back = (link - row * n_domains) * n_domains + row
        values = [
            matrix.reshape(-1).at[index].get(mode="promise_in_bounds")
            for matrix in (bandwidth_gb_per_s, rtt_s)
            for index in (link, back)
        ]
        return there, values

    def wires(link):
        there, (onwards, back, rtt, rtt_back) = read(link)
        inverse = (1.0 / jnp.maximum(x * calibration.wan_efficiency, 1e-9) for x in (onwards, back))
        both = (*inverse, 0.5 * rtt + 0.5 * rtt_back)
        return there, tuple(jnp.where(there, x, 0.0) for x in both)

    linked, pipeline = wires(table.link)
    _, wrap = wires(table.wrap_link)
    outer = table.ring > none
    there, (bandwidth, _, rtt, _) = read(jnp.where(outer, table.ring - (none + 1), table.ring))
    rate = sync.ring_rate_gb_per_s(bandwidth, jnp.where(outer, 2, 1), calibration)
    ring = (jnp.where(there, x, 0.0) for x in (1.0 / rate, 0.5 * rtt))
    return LinkReads(linked, *pipeline, *wrap, *ring)


def plan_costs(table: PlanCostTable, links: LinkTimes, xp: ModuleType = jnp) -> PlanCosts:
    """Cost of one step of every plan under one network.

    The same as `job_step_cost`, rounding apart. `xp` is jax.numpy, or numpy for a table of NumPy
    arrays. Written slot by slot over vectors of plans: everything fuses into one loop over P.
    """
    return evaluate(table, read_table(table, links, xp), xp)[0]


def evaluate(
    table: PlanCostTable, reads: LinkReads, xp: ModuleType = jnp
) -> tuple[PlanCosts, Any, Any]:
    """`plan_costs` where the links have been read; the axis of plans may be missing in both.

    Also returns [P] a slot (int32) of the slowest pipeline, and its time over a WAN of no cost [s].
    """
    n_slots = table.own_s.shape[0]
    wire = _wires(table, reads)
    trip_s, slowest_s = _from_the_right(table, wire, xp)
    total_s = ideal_s = xp.zeros_like(table.own_s[0])
    slowest = xp.zeros(total_s.shape, xp.int32)
    fill_s = trip_s[0]
    for k in range(n_slots):
        if k > 0:  # the whole pipeline's, handed on from its first slot
            fill_s = xp.where(wire[k - 1].linked, fill_s, trip_s[k])
        path = _longest_path(table, wire, reads, (trip_s, slowest_s, fill_s), k, xp)
        if table.virtual_stages != 1.0:
            path = table.busy_s[k] + (path - table.busy_s[k]) / xp.float32(table.virtual_stages)
        longer = path > total_s
        ideal_s = xp.where(longer, table.ideal_s[k], ideal_s)
        slowest = xp.where(longer, xp.int32(k), slowest)
        total_s = xp.maximum(total_s, path)
    fragment_s = _ring_s(table, reads, xp)
    every = table.period / table.fragments
    inside = xp.maximum(table.slack_s, 0.0)
    waits_s = xp.maximum(table.slack_s + fragment_s, 0.0) - inside
    alone_s = total_s + inside + table.update_s
    hides_s = table.overlap * alone_s + xp.maximum(-table.slack_s, 0.0)
    late_s = xp.maximum(fragment_s - xp.minimum(hides_s, every * alone_s), 0.0)
    sync_s = inside + xp.where(table.overlap > 0.0, late_s, waits_s) / every
    costs = PlanCosts(
        step_s=total_s + sync_s + table.after_s,
        exposed_wan_s=total_s - ideal_s,
        sync_s=sync_s + table.sharded_s,
        wan_busy_s=_busiest_s(table, wire, reads, xp) + fragment_s / every,
        wan_gb=table.wan_gb,
        egress_usd=table.egress_usd,
    )
    return costs, slowest, ideal_s


class _Hop(Pytree):
    """[P]: from one slot to the next."""

    linked: Any  # bool
    forward_s: Any  # for which a transfer occupies the link
    back_s: Any
    both_ways_s: Any  # transfers and latencies


def _wires(table: PlanCostTable, reads: LinkReads) -> list[_Hop]:
    """[S - 1] hops."""
    hops = []
    for k in range(table.sent_gb.shape[0]):
        sent_gb = table.sent_gb[k]
        forward_s, back_s = sent_gb * reads.inverse[k], sent_gb * reads.inverse_back[k]
        both_ways_s = forward_s + back_s + reads.both_ways_s[k]
        hops.append(_Hop(reads.linked[k], forward_s, back_s, both_ways_s))
    return hops


def _from_the_right(table: PlanCostTable, wire: list[_Hop], xp) -> tuple[list, list]:
    """[S] x [P] [s]: from a slot to the end of its pipeline and back, and the slowest stage or link
    from it on."""
    trip_s, slowest_s = [table.own_s[-1]], [table.slow_s[-1]]
    for k in reversed(range(len(wire))):
        hop = wire[k]
        beyond = xp.where(hop.linked, trip_s[0], 0.0)
        trip_s.insert(0, table.own_s[k] + hop.both_ways_s + beyond)
        link_s = xp.maximum(hop.forward_s, hop.back_s)
        beyond = xp.where(hop.linked, slowest_s[0], 0.0)
        slowest_s.insert(0, xp.maximum(xp.maximum(table.slow_s[k], link_s), beyond))
    return trip_s, slowest_s


def _longest_path(table, wire: list[_Hop], reads: LinkReads, times, k: int, xp):
    """[P] [s] the longest path through slot k."""
    trips_s, slowests_s, fill_s = times
    trip_s, slowest_s = trips_s[k], slowests_s[k]
    ahead_s = fill_s - trip_s
    path = ahead_s + table.steady_s[k]
    waits_s = xp.maximum(trip_s - table.forward_slack_s[k], 0.0)
    waits_s = waits_s + xp.maximum(trip_s - table.backward_slack_s[k], 0.0)
    path = xp.maximum(path, ahead_s + table.waiting_s[k] + waits_s)
    queue_s = table.queue_s[k]
    if k < len(wire):
        queue_s = xp.maximum(queue_s, xp.maximum(wire[k].forward_s, wire[k].back_s))
    path = xp.maximum(path, fill_s + table.queued[k] * queue_s)

    between_s = table.own_loops[k] * trip_s + table.own_left[k] * slowest_s
    between_s = xp.maximum(between_s, table.left[k] * slowest_s)
    returning = xp.where(table.left[k] >= 0.0, fill_s + trip_s + between_s, 0.0)
    path = xp.maximum(path, returning)
    last_s = trip_s - table.within_s[k]
    between_s = table.left_last[k] * slowest_s
    for n, (later, earlier) in enumerate(table.pairs):
        if earlier == k:
            beyond_s = 0.0 if later == k else trips_s[later] - table.beyond_s[later]
            loop_s = table.loops[n] * (last_s - beyond_s) + table.loops_left[n] * slowest_s
            between_s = xp.maximum(between_s, loop_s)
    returning = xp.where(table.left_last[k] >= 0.0, fill_s + last_s + between_s, 0.0)
    path = xp.maximum(path, returning)
    if table.gpipe.shape[0]:
        path = xp.maximum(path, _gpipe_s(table, wire, fill_s, k, xp))
    if table.trips.shape[0]:
        path = xp.maximum(path, _chunk_trips_s(table, reads, fill_s, k, xp))
        path = xp.maximum(path, _link_busy_s(table, wire, reads, k, xp))
    return path


def _gpipe_s(table: PlanCostTable, wire: list[_Hop], fill_s, k: int, xp):
    """[P] [s] all forwards, then all backwards, where a GPipe pipeline begins in slot k."""
    forward_s, backward_s, onwards = table.gpipe_forward_s[k], table.gpipe_backward_s[k], True
    for i in range(k, len(wire)):
        onwards = onwards & wire[i].linked
        slots = (table.gpipe_forward_s[i + 1], table.gpipe_backward_s[i + 1])
        ways = (wire[i].forward_s, wire[i].back_s)
        further = [
            xp.where(onwards, xp.maximum(a, b), 0.0) for a, b in zip(slots, ways, strict=True)
        ]
        forward_s = xp.maximum(forward_s, further[0])
        backward_s = xp.maximum(backward_s, further[1])
    whole_s = fill_s + table.gpipe[k] * (forward_s + backward_s)
    return xp.where(table.gpipe[k] >= 0.0, whole_s, 0.0)


def _chunk_trips_s(table: PlanCostTable, reads: LinkReads, fill_s, k: int, xp):
    """[P] [s] interleaved pipelines that begin in slot k: all chunks one behind the other."""
    chunks = xp.float32(INTERLEAVED_CHUNKS)
    wrap_s = reads.wrap_inverse[k] + reads.wrap_inverse_back[k]
    wrap_s = table.wrap_gb[k] * wrap_s + reads.wrap_both_ways_s[k]
    again_s = (chunks - 1.0) * (wrap_s - table.again_s[k])
    return table.trips[k] * (chunks * fill_s + again_s)


def _ring_s(table: PlanCostTable, reads: LinkReads, xp):
    """[P] [s] of one all-reduce between the groups, of a fragment where there are several."""
    transfer_s = latency_s = xp.zeros_like(table.phases)
    for k in range(table.ring_gb.shape[0]):
        transfer_s = xp.maximum(transfer_s, table.ring_gb[k] * reads.ring_inverse[k])
        latency_s = xp.maximum(latency_s, reads.ring_latency_s[k])
    return transfer_s + table.phases * latency_s


def _link_busy_s(table: PlanCostTable, wire: list[_Hop], reads: LinkReads, k: int, xp):
    """[P] [s] for which pipeline traffic holds the busier of a slot's links in one step: on to the
    next slot, and around."""
    busy_s = xp.zeros_like(table.phases)
    if k < len(wire):
        busy_s = table.transfers[k] * xp.maximum(wire[k].forward_s, wire[k].back_s)
    if k < table.wrap_link.shape[0]:
        inverse = xp.maximum(reads.wrap_inverse[k], reads.wrap_inverse_back[k])
        around_s = table.wrap_transfers[k] * table.wrap_gb[k] * inverse
        busy_s = xp.maximum(busy_s, around_s)
    return busy_s


def _busiest_s(table: PlanCostTable, wire: list[_Hop], reads: LinkReads, xp):
    """[P] [s] for which pipeline traffic holds the busiest link in one step."""
    busiest_s = xp.zeros_like(table.phases)
    for k in range(table.own_s.shape[0]):
        busiest_s = xp.maximum(busiest_s, _link_busy_s(table, wire, reads, k, xp))
    return busiest_s
