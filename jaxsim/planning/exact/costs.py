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
from jaxsim.pytree import Pytree
from jaxsim.step_time import sync


class PlanCostTable(Pytree):
    """P plans of one job; S slots, N pairs of slots, R links of gradient rings. All times [s].

    Link numbers are source * K + destination, K * K = none; those of a ring are raised by K * K + 1
    where H > 1 (an outer sync fills a link differently). Paths are those of
    `jaxsim.step_time.paths`.
    """

    link: Array  # [S - 1, P] int32 to the next slot of the pipeline
    sent_gb: Array  # [S - 1, P] [GB] that one transfer moves over it
    transfers: Array  # [S - 1, P] over it in one step, and as many back
    own_s: Array  # [S, P] a micro-batch through the domain, there and back
    # Of the stages of `jaxsim.step_time.paths.Ends`, E in each slot:
    reach_s: Array  # [E, S, P] from before the domain to the stage and back
    pass_s: Array  # [E, S, P] its forward and backward
    forward_s: Array  # [E, S, P] slowest forward or hop in the domain up to the stage
    backward_s: Array  # [E, S, P] slowest backward or hop
    more: Array  # [E, S, P] forwards before its first backward, one less
    left: Array  # [E, S, P] micro-batches after those that run ahead
    queued: Array  # [S, P] micro-batches less one
    hop_pair_s: Array  # [S, P] two stages of the domain, there and back
    # How `left` divides into loops, loops over one link and single passes: of the domain itself
    own_loops: Array  # [S, P] 0 = none
    own_pairs: Array  # [S, P]
    own_single: Array  # [S, P]
    own_rest: Array  # [S, P] all that is left after whole loops
    loops: Array  # [N, P] and of the loop between two slots, 0 = none
    loop_pairs: Array  # [N, P]
    loop_single: Array  # [N, P]
    loop_rest: Array  # [N, P]
    ideal_s: Array  # [S, P] the whole step over a WAN of no cost
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
    def slow_s(self) -> Float[Array, "S P"]:
        """[S, P] [s] slowest stage or hop inside the domain."""
        longest = [x.max(axis=0) for x in (self.pass_s, self.forward_s, self.backward_s)]
        return jnp.maximum(jnp.maximum(*longest[:2]), longest[2])

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
    outer = table.ring > none
    there, (bandwidth, _, rtt, _) = read(jnp.where(outer, table.ring - (none + 1), table.ring))
    rate = sync.ring_rate_gb_per_s(bandwidth, jnp.where(outer, 2, 1), calibration)
    ring = (jnp.where(there, x, 0.0) for x in (1.0 / rate, 0.5 * rtt))
    return LinkReads(linked, *pipeline, *ring)


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
    before_s = _from_the_left(table, wire, xp)
    turns = _turns(table, wire, before_s, xp)
    total_s = ideal_s = xp.zeros_like(table.own_s[0])
    slowest = xp.zeros(total_s.shape, xp.int32)
    for k in range(n_slots):
        path = _longest_path(table, wire, turns, k, xp)
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
        wan_busy_s=_busiest_s(table, wire, xp) + fragment_s / every,
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


def _from_the_left(table: PlanCostTable, wire: list[_Hop], xp) -> list:
    """[S] x [P] [s]: from the start of a pipeline to each of its slots and back."""
    before_s = [xp.zeros_like(table.own_s[0])]
    for k, hop in enumerate(wire):
        further = before_s[-1] + table.own_s[k] + hop.both_ways_s
        before_s.append(xp.where(hop.linked, further, 0.0))
    return before_s


class _Turn(Pytree):
    """[P] [s]: of paths that turn at one stage, see `jaxsim.step_time.paths`."""

    there_s: Any
    warming_s: Any
    cooling_s: Any
    alone_s: Any
    begin_s: Any
    finish_s: Any


def _turns(table: PlanCostTable, wire: list[_Hop], before_s: list, xp) -> list[list[_Turn]]:
    """[S] x [E] turns."""
    n_slots, n_ends = table.own_s.shape[0], table.reach_s.shape[0]
    turns = []
    warm_s = cool_s = xp.zeros_like(before_s[0])
    for k in range(n_slots):
        rows = []
        for e in range(n_ends):
            there_s = before_s[k] + table.reach_s[e, k]
            warm = xp.maximum(warm_s, table.forward_s[e, k])
            cool = xp.maximum(cool_s, table.backward_s[e, k])
            warming_s = there_s + table.more[e, k] * warm
            cooling_s = there_s + table.more[e, k] * cool
            alone_s = xp.maximum(table.pass_s[e, k], xp.maximum(warm, cool))
            rows.append((there_s, warming_s, cooling_s, alone_s))
        turns.append(rows)
        if k < len(wire):
            hop = wire[k]
            warm_s = xp.maximum(xp.maximum(warm_s, table.forward_s[-1, k]), hop.forward_s)
            cool_s = xp.maximum(xp.maximum(cool_s, table.backward_s[-1, k]), hop.back_s)
            warm_s, cool_s = (xp.where(hop.linked, x, 0.0) for x in (warm_s, cool_s))
    begin_s = finish_s = xp.zeros_like(before_s[0])
    out = []
    for k in reversed(range(n_slots)):
        if k < len(wire):
            begin_s, finish_s = (xp.where(wire[k].linked, x, 0.0) for x in (begin_s, finish_s))
        rows = []
        for there_s, warming_s, cooling_s, alone_s in reversed(turns[k]):
            begin_s, finish_s = xp.maximum(begin_s, warming_s), xp.maximum(finish_s, cooling_s)
            rows.insert(0, _Turn(there_s, warming_s, cooling_s, alone_s, begin_s, finish_s))
        out.insert(0, rows)
    return out


def _longest_path(table: PlanCostTable, wire: list[_Hop], turns: list[list[_Turn]], k: int, xp):
    """[P] [s] the longest path through slot k: `jaxsim.step_time.paths.ordered_s`."""
    own = (table.own_loops, table.own_pairs, table.own_single, table.own_rest)
    between = (table.loops, table.loop_pairs, table.loop_single, table.loop_rest)
    path = xp.zeros_like(table.own_s[0])
    for e, turn in enumerate(turns[k]):
        turn_s = xp.maximum(turn.warming_s + turn.finish_s, turn.begin_s + turn.cooling_s)
        path = xp.maximum(path, turn_s - turn.there_s + table.left[e, k] * turn.alone_s)
        path = xp.maximum(path, turn.there_s + table.queued[k] * table.pass_s[e, k])

    last, first = turns[k][-1], turns[k][0]
    counts = tuple(x[k] for x in own)
    looped_s = _looped_s(counts, table.own_s[k], table.hop_pair_s[k], last.alone_s, xp)
    base_s = last.begin_s + last.finish_s - last.there_s
    path = xp.maximum(path, xp.where(counts[0] > 0.0, base_s + looped_s, 0.0))
    base_s = first.begin_s + first.finish_s - first.there_s
    for n, (later, earlier) in enumerate(table.pairs):
        if later != k:
            continue
        pass_s = table.pass_s[-1, earlier]
        loop_s = first.there_s - (turns[earlier][-1].there_s - pass_s)
        onwards_s = pass_s + wire[earlier].both_ways_s + table.pass_s[0, earlier + 1]
        arriving_s = table.pass_s[-1, k - 1] + wire[k - 1].both_ways_s + table.pass_s[0, k]
        counts = tuple(x[n] for x in between)
        pair_s, single_s = xp.maximum(onwards_s, arriving_s), xp.maximum(pass_s, first.alone_s)
        looped_s = _looped_s(counts, loop_s, pair_s, single_s, xp)
        path = xp.maximum(path, xp.where(counts[0] > 0.0, base_s + looped_s, 0.0))
    return path


def _looped_s(counts, loop_s, pair_s, single_s, xp):
    """[P] [s] of whole loops, and what is left in loops over one link and one by one."""
    loops, pairs, single, rest = counts
    rest_s = xp.maximum(rest * single_s, pairs * pair_s + single * single_s)
    return loops * loop_s + rest_s


def _ring_s(table: PlanCostTable, reads: LinkReads, xp):
    """[P] [s] of one all-reduce between the groups, of a fragment where there are several."""
    transfer_s = latency_s = xp.zeros_like(table.phases)
    for k in range(table.ring_gb.shape[0]):
        transfer_s = xp.maximum(transfer_s, table.ring_gb[k] * reads.ring_inverse[k])
        latency_s = xp.maximum(latency_s, reads.ring_latency_s[k])
    return transfer_s + table.phases * latency_s


def _busiest_s(table: PlanCostTable, wire: list[_Hop], xp):
    """[P] [s] for which pipeline traffic holds the busiest link in one step."""
    busiest_s = xp.zeros_like(table.phases)
    for k, hop in enumerate(wire):
        busy_s = table.transfers[k] * xp.maximum(hop.forward_s, hop.back_s)
        busiest_s = xp.maximum(busiest_s, busy_s)
    return busiest_s
