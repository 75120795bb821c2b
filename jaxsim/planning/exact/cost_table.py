"""Precompute every network-independent cost term of a batch of plans (`jaxsim.planning.exact.costs`).

What stages compute, how far they run ahead, which links carry how much, memory, the sync inside
domains: computed by `jaxsim.step_time`'s own functions, then reordered slot by slot.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Int

from jaxsim.files import InputError
from jaxsim.plan import MENU_SCHEDULES, Plan, Problem, Schedule, masked_sums, n_groups
from jaxsim.planning.exact.costs import PlanCostTable
from jaxsim.step_time import (
    NetworkView,
    assemble_step,
    bottleneck_parts,
    domain_ends,
    pipeline_time,
    prepare_step,
    sent_gb,
    stage_parts,
    sync_parts,
    time_pipelines,
    transfers_per_micro_batch,
)
from jaxsim.trees import take

# Of `jaxsim.step_time.paths.Ends`, what the table keeps as it is.
END_FIELDS = ("reach_s", "pass_s", "forward_s", "backward_s")
BLOCK = 1024  # plans that one compiled call prepares


def build_cost_table(
    plans: Plan,
    problem: Problem,
    gpus_available: Int[Array | np.ndarray, " K"] | None = None,
) -> PlanCostTable:
    """Prepare P complete plans, leaves [P, ...], of one job; on the host.

    The table holds for the free GPUs it was built with, [K] (all of the cluster's if None): it serves
    networks that change, not loads. Raises InputError for a schedule that is not one of
    MENU_SCHEDULES: those are played operation by operation, or need more than round trips.
    """
    return tabulate(plans, step_parts(plans, problem, gpus_available), problem)[0]


def step_parts(
    plans: Plan,
    problem: Problem,
    gpus_available: Array | np.ndarray | None = None,
    whole: bool = False,
) -> dict[str, np.ndarray]:
    """What no link changes in P plans, [P, ...] each; `whole`: all that a `StepCost` needs."""
    found = set(np.asarray(plans.schedule)[np.asarray(plans.group) >= 0].tolist())
    if strange := sorted(found - set(MENU_SCHEDULES)):
        here, known = (", ".join(Schedule(k).word for k in x) for x in (strange, MENU_SCHEDULES))
        raise InputError(f"plans: schedule: no table holds {here}; allowed are {known}")
    if np.any(np.asarray(plans.shard_groups) > 1):
        raise InputError("plans: shard_groups: shards over the WAN are in no table")
    cluster = problem.cluster
    free = cluster.gpus if gpus_available is None else jnp.asarray(gpus_available)
    view = NetworkView(cluster.bandwidth_gb_per_s, cluster.rtt_s, free)
    return _in_blocks(plans, problem, view, whole)


def tabulate(
    plans: Plan, parts: dict[str, np.ndarray], problem: Problem
) -> tuple[PlanCostTable, Slots]:
    """Reorder `step_parts` slot by slot; also says which domain stands in which slot."""
    slots = Slots.of(np.asarray(plans.group), np.asarray(plans.position))
    rows = {name: x if x.ndim == 1 else slots.rows(x) for name, x in parts.items() if x.ndim < 3}
    # [P, E, K] -> [E, S, P]
    rows |= {
        name: np.stack([slots.rows(x) for x in np.moveaxis(parts[name], 1, 0)])
        for name in (*END_FIELDS, "ahead")
    }
    virtual = float(problem.work.virtual_stages)
    fields = _path_rows(slots, rows, virtual) | _link_rows(slots, rows, parts["transfers"])
    fields |= _ring_rows(parts["sync_gb"], rows["period"], rows["fragments"])
    fields |= {
        name: rows[name]
        for name in PlanCostTable.__dataclass_fields__
        if name in rows and rows[name].ndim == 1
    }
    pairs = fields.pop("pairs")
    arrays = {
        k: jnp.asarray(v, jnp.int32 if v.dtype.kind == "i" else jnp.float32)
        for k, v in fields.items()
    }
    return PlanCostTable(**arrays, pairs=pairs, virtual_stages=virtual), slots


def _in_blocks(
    plans: Plan, problem: Problem, view: NetworkView, whole: bool
) -> dict[str, np.ndarray]:
    """`_static_parts` of all plans, in blocks of few sizes so that few compilations serve all."""
    size = plans.group.shape[0]
    block = min(BLOCK, 2 ** (size - 1).bit_length())
    plans = jax.tree.map(np.asarray, plans)
    begun = []  # all blocks, before any is read
    for start in range(0, size, block):
        rows = np.minimum(np.arange(start, start + block), size - 1)
        begun.append(_static_parts(take(plans, rows), problem, view, whole))
    found = jax.device_get(begun)
    return {name: np.concatenate([part[name] for part in found])[:size] for name in found[0]}


@functools.partial(jax.jit, static_argnames="whole")
def _static_parts(
    plans: Plan, problem: Problem, view: NetworkView, whole: bool
) -> dict[str, Array]:
    return jax.vmap(lambda plan: _static_part(plan, problem, view, whole))(plans)


def _static_part(plan: Plan, problem: Problem, view: NetworkView, whole: bool) -> dict[str, Array]:
    """What no link changes, by domain; [K], [K, K] or []."""
    work, cluster, calibration = problem.work, problem.cluster, problem.calibration
    prepared = prepare_step(plan, problem, view, schedules=MENU_SCHEDULES)
    inputs, st = prepared.inputs, prepared.stages
    alone = pipeline_time(inputs, MENU_SCHEDULES)
    timed = time_pipelines(work, prepared, lambda _: alone)
    cost = assemble_step(plan, problem, view, prepared, timed, schedules=MENU_SCHEDULES)
    topo, schedule, m = inputs.topo, inputs.schedule, inputs.micro_batches
    parts = stage_parts(inputs, MENU_SCHEDULES)
    depth = masked_sums(topo.after, parts.stages[None])[0]
    total = masked_sums(topo.together, parts.stages[None])[0]
    ends = domain_ends(inputs, parts, depth, total)
    inside_s, hidden_s, sharded_s = sync_parts(plan, work, cluster, calibration, st)
    busiest_s = jnp.where(topo.together, parts.busy_s[None, :], 0.0).max(axis=1)
    out = {name: getattr(ends, name) for name in (*END_FIELDS, "ahead")} | {
        "critical_s": parts.critical_s,
        "stages": parts.stages,
        "schedule": schedule,
        "m": m,
        "inner_hop_s": inputs.hop_s,
        "ideal_s": alone.ideal_s,
        "sent_gb": sent_gb(plan, work, st),
        "transfers": transfers_per_micro_batch(topo, schedule, MENU_SCHEDULES) * m[:, None],
        "busiest_s": m * busiest_s,
        "sync_gb": cost.sync_gb,
        "phases": 2.0 * (n_groups(plan).astype(jnp.float32) - 1.0),
        "period": plan.sync_period.astype(jnp.float32),
        "fragments": plan.fragments.astype(jnp.float32),
        "overlap": plan.overlap.astype(jnp.float32),
        "slack_s": inside_s - hidden_s,
        "hidden_s": hidden_s,
        "after_s": jnp.where(cost.runs, cost.optimizer_s + sharded_s, jnp.inf),
        "update_s": cost.optimizer_s + sharded_s,
        "sharded_s": sharded_s,
        "wan_gb": cost.wan_gb.sum(),
        "egress_usd": cost.egress_usd,
        "efficiency": cost.efficiency,
    }
    if not whole:
        return out
    domains = jnp.arange(plan.group.shape[0])
    bottleneck = jax.lax.map(
        lambda k: bottleneck_parts(plan, st, (domains == k).astype(jnp.float32)), domains
    )
    names = ("compute_s", "tensor_s", "context_s")
    same = ("optimizer_s", "memory_gb", "gpus_used", "fits", "runs")
    return (
        out
        | dict(zip(names, bottleneck, strict=True))
        | {name: getattr(cost, name) for name in same}
        | {"link_gb": cost.wan_gb}
    )


@dataclasses.dataclass(frozen=True)
class Slots:
    """Where the domains of P plans stand in the tables."""

    order: np.ndarray  # [P, S] domain in the slot
    linked: np.ndarray  # [S - 1, P] bool, the next slot is the next of the same pipeline
    first: np.ndarray  # [S, P] bool, a pipeline begins here
    used: np.ndarray  # [S, P] bool
    n_domains: int

    @staticmethod
    def of(group: np.ndarray, position: np.ndarray) -> Slots:
        used = group >= 0
        n_domains = group.shape[1]
        key = np.where(used, group * n_domains + position, n_domains**2)
        n_slots = max(int(used.sum(axis=1).max()), 1)
        order = np.argsort(key, axis=1, kind="stable")[:, :n_slots]
        mine = np.take_along_axis(np.where(used, group, -1), order, axis=1).T
        linked = (mine[1:] == mine[:-1]) & (mine[1:] >= 0)
        first = np.concatenate([mine[:1] >= 0, ~linked & (mine[1:] >= 0)])
        return Slots(order, linked, first, mine >= 0, n_domains)

    def rows(self, of_domain: np.ndarray) -> np.ndarray:
        """[P, K] -> [S, P]."""
        return np.take_along_axis(of_domain, self.order, axis=1).T

    def last_of(self) -> np.ndarray:
        """[S, P] slot in which the slot's pipeline ends."""
        last = np.broadcast_to(np.arange(len(self.first))[:, None], self.first.shape).copy()
        for k in reversed(range(len(self.linked))):
            last[k] = np.where(self.linked[k], last[k + 1], k)
        return last

    def links(self, source: np.ndarray, destination: np.ndarray, where: np.ndarray) -> np.ndarray:
        """Link numbers from domains, all of one shape; K * K where there is none."""
        return np.where(where, source * self.n_domains + destination, self.n_domains**2)


def _link_rows(slots: Slots, rows: dict, transfers: np.ndarray) -> dict:
    """The links between slots."""
    source, destination = slots.order[:, :-1].T, slots.order[:, 1:].T
    plan = np.arange(slots.order.shape[0])[None, :]
    count = transfers[plan, source, destination]
    return {
        "link": slots.links(source, destination, slots.linked),
        "sent_gb": np.where(slots.linked, rows["sent_gb"][:-1], 0.0),
        "transfers": np.where(slots.linked, count, 0.0),
    }


def _path_rows(slots: Slots, r: dict, virtual_stages: float) -> dict:
    """What `jaxsim.step_time.paths` says of the paths, without the wire."""
    m, used = r["m"], slots.used
    own_s = r["critical_s"] + 2.0 * (r["stages"] - 1.0) * r["inner_hop_s"]
    ends = {name: np.where(used, r[name], 0.0) for name in END_FIELDS}
    more, left = np.maximum(r["ahead"] - 1.0, 0.0), m - r["ahead"]
    hop_pair_s = np.where(r["stages"] > 1.0, 2.0 * (r["pass_s"][0] + r["inner_hop_s"]), 0.0)
    passed = r["ahead"][0] - r["ahead"][-1] + 1.0
    own = _divided(left[-1], passed, _pair(r["schedule"]), used)
    pairs, between = _loop_rows(slots, r, left[0])
    return {
        "own_s": np.where(used, own_s, 0.0),
        **ends,
        "more": np.where(used, more, 0.0),
        "left": np.where(used, left, 0.0),
        "queued": np.where(used, m - 1.0, 0.0),
        "hop_pair_s": np.where(used, hop_pair_s, 0.0),
        "ideal_s": r["busiest_s"] + (r["ideal_s"] - r["busiest_s"]) / virtual_stages,
        "busy_s": r["busiest_s"] if virtual_stages != 1.0 else used[:0].astype(np.float32),
        **dict(zip(("own_loops", "own_pairs", "own_single", "own_rest"), own, strict=True)),
        **dict(zip(("loops", "loop_pairs", "loop_single", "loop_rest"), between, strict=True)),
        "pairs": pairs,
    }


def _pair(schedule: np.ndarray) -> np.ndarray:
    """Micro-batches that pass in a loop over one link."""
    return np.where(schedule == Schedule.EAGER_1F1B, np.float32(3.0), np.float32(2.0))


def _divided(left, passed, pair, exists) -> np.ndarray:
    """[4, ...] whole loops of `passed` micro-batches, then of `pair`, then single ones, and all that
    are left after whole loops."""
    loops = np.where(exists, np.floor(left / np.maximum(passed, 1.0) + np.float32(1e-4)), 0.0)
    rest = left - loops * passed
    pairs = np.floor(rest / pair + np.float32(1e-4))
    return np.stack([loops, pairs, rest - pairs * pair, rest])


def _loop_rows(slots: Slots, r: dict, left: np.ndarray) -> tuple[tuple, np.ndarray]:
    """Loops from the last stage of an earlier slot to the first of a later one and back."""
    pairs, rows = [], [np.zeros((4, 0, slots.used.shape[1]), np.float32)]
    for earlier in range(len(slots.first)):
        together = slots.used[earlier]
        for later in range(earlier + 1, len(slots.first)):
            together = together & slots.linked[later - 1]
            passed = np.maximum(r["ahead"][-1][earlier] - r["ahead"][0][later] + 1.0, 1.0)
            found = _divided(left[later], passed, _pair(r["schedule"][later]), together)
            if np.any(found[0] > 0.0):
                pairs.append((later, earlier))
                rows.append(found[:, None])
    return tuple(pairs), np.concatenate(rows, axis=1)


def _ring_rows(sync_gb: np.ndarray, period: np.ndarray, fragments: np.ndarray) -> dict:
    """The links of the gradient rings, those that carry bytes, [P, K, K] -> [R, P]."""
    flat = sync_gb.reshape(len(sync_gb), -1) / fragments[:, None]
    n_links = flat.shape[1]
    width = int((flat > 0).sum(axis=1).max())
    index = np.argsort(flat <= 0, axis=1, kind="stable")[:, :width]
    sent_gb = np.take_along_axis(flat, index, axis=1)
    index = np.where(sent_gb > 0, index, n_links)
    return {
        "ring": (index + np.where(period > 1, n_links + 1, 0)[:, None]).T,
        "ring_gb": sent_gb.T,
    }
