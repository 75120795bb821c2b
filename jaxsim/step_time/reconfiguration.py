"""What it takes to go from one plan to another: a restart, then bytes over the links as they are.

A domain that keeps its layers and changes dp, tp, pp, cp or ZeRO inside itself (a local re-layout)
sends nothing over the WAN: its GPUs fetch their new shards from each other over its own fabric. Where
groups train on their own for several steps, the others go on meanwhile.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.plan import Plan, Problem, layer_range, n_groups, per_domain
from jaxsim.pytree import Pytree
from jaxsim.step_time.collectives import ring_gb_per_s
from jaxsim.step_time.sync import layer_overlap, ring_bytes_gb
from jaxsim.step_time.topology import topology
from jaxsim.workload import (
    MOVED_STATE_BYTES,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    DataSets,
    Workload,
)


class Transition(Pytree):
    """What is left of a reconfiguration; zero when the job trains."""

    restart_s: Float[Array, "*batch"]  # [s]
    bytes_gb: Float[Array, "*batch K K"]  # [GB] still to move, row = source
    # [s] inside the slowest domain, whose GPUs fetch their new shards; beside the transfers
    fabric_s: Float[Array, "*batch"]
    # share of the batch that goes on training by the plan in force meanwhile; 0 = the job stands still
    goes_on: Float[Array, "*batch"]


class LayerSpan(Pytree):
    """Where the domains of a plan hold which layers, and how."""

    start: Float[Array, "*batch K"]  # first layer
    end: Float[Array, "*batch K"]  # one past the last layer
    used: Bool[Array, "*batch K"]
    groups: Int[Array, "*batch"]  # each of which holds every layer
    group: Int[Array, "*batch K"]  # of the domain
    shards: Int[Array, "*batch 5 K"]  # dp, tp, pp, cp, ZeRO stage: who holds what of the layers
    # sync period, fragments, overlap, groups that share the state: how groups talk
    talk: Int[Array, "*batch 4"]
    sequences: Float[Array, "*batch K"]  # of a step, of the domain's group over its domains

    @staticmethod
    def of(plan: Plan) -> LayerSpan:
        """The span of one job's plan."""
        domains = jnp.maximum(jnp.sum(plan.group[:, None] == plan.group[None, :], axis=1), 1)
        batch = per_domain(plan, plan.dp * plan.micro_batch * plan.batch_share)
        start, end = layer_range(plan)
        return LayerSpan(
            start=start,
            end=end,
            used=jnp.asarray(plan.used),
            groups=n_groups(plan),
            group=plan.group,
            shards=jnp.stack(
                [per_domain(plan, plan.dp), plan.tp, plan.pp, plan.cp, plan.zero_stage]
            ),
            talk=jnp.stack([plan.sync_period, plan.fragments, plan.overlap, plan.shard_groups]),
            sequences=batch.astype(jnp.float32) / domains.astype(jnp.float32),
        )

    @property
    def reads_batches(self) -> Bool[Array, " K"]:
        """[K] bool: domains with the first stage of a pipeline."""
        return self.used & (self.start == 0)


def migration_gb(old: Plan, new: Plan, work: Workload) -> Array:
    """[K, K] [GB] of weights, optimizer state and training data that domains lack for the new plan
    (one job)."""
    return moved_gb(LayerSpan.of(old), LayerSpan.of(new), work)


def moved_gb(old: LayerSpan, new: LayerSpan, work: Workload) -> Float[Array, "K K"]:
    """`migration_gb` of two plans whose layers are known.

    A domain keeps the layers it already holds. The others come from the old groups in equal parts:
    each old group holds every layer, and fetching from all replicas at once is what a restart from
    peers does. Where no plan was in force no layer moves (a first placement loads from storage).
    """
    # What domain j lacks: the parts of its new range before and after its old one.
    kept_start = jnp.clip(old.start, new.start, new.end)
    kept_end = jnp.clip(old.end, kept_start, new.end)
    before = layer_overlap(old.start, old.end, new.start, kept_start)
    after = layer_overlap(old.start, old.end, kept_end, new.end)
    sources = jnp.maximum(old.groups, 1).astype(jnp.float32)
    layers = jnp.where(old.used[:, None] & new.used[None, :], before + after, 0.0)
    state_gb = layers * work.state_gb_per_layer / sources
    return state_gb if work.data is None else state_gb + _data_fetch_gb(old, new, work.data)


def _data_fetch_gb(old: LayerSpan, new: LayerSpan, data: DataSets) -> Array:
    """[K, K] [GB] of training data that domains lack for the new plan (one job: `gb` [], `at` [K]).

    A domain that computes a group's first layers reads batches of any sample, so it needs all of the
    data; it keeps what it fetched for the plan in force. The holders send equal parts.
    """
    lacks = new.reads_batches & ~old.reads_batches & ~data.at
    holders = jnp.maximum(jnp.sum(data.at.astype(jnp.float32)), 1.0)
    sends_gb = jnp.where(data.at, data.gb / holders, 0.0)
    return jnp.where(lacks[None, :], sends_gb[:, None], 0.0)


def outer_sync_gb(plan: Plan, work: Workload) -> Float[Array, "K K"]:
    """[K, K] [GB] of the full outer sync that a local-SGD plan owes before it changes: one
    all-reduce around its ring."""
    return jnp.where(plan.sync_period > 1, ring_bytes_gb(work, plan, topology(plan)), 0.0)


def begin_transition(
    old: Plan, new: Plan, problem: Problem, owed_gb: Float[Array, "K K"] | None = None
) -> Transition:
    """Start a reconfiguration (one job). The owed outer sync travels the old plan's ring.

    `owed_gb` [K, K] is `outer_sync_gb(old, problem.work)` where the caller has it already.
    """
    owed_gb = outer_sync_gb(old, problem.work) if owed_gb is None else owed_gb
    return begin_between(LayerSpan.of(old), LayerSpan.of(new), problem, owed_gb)


def begin_between(
    old: LayerSpan, new: LayerSpan, problem: Problem, owed_gb: Float[Array, "K K"] | None
) -> Transition:
    """`begin_transition` of two plans whose layers are known (one job); None = no outer sync is owed.

    Where groups only change inside their domains and sync every few steps, those that do not change go
    on, and the owed sync waits: those that do keep what they learned.
    """
    changes = jnp.any(old.shards != new.shards, axis=0) & old.used & new.used
    same = (old.start == new.start) & (old.end == new.end) & (old.group == new.group)
    apart = jnp.all(same) & jnp.all(old.talk == new.talk) & (old.talk[0] > 1)
    stops = jnp.any((old.group[:, None] == old.group[None, :]) & changes[None, :], axis=1)
    going = jnp.sum(jnp.where(stops | ~old.used, 0.0, old.sequences))
    share = going / jnp.maximum(jnp.sum(jnp.where(old.used, old.sequences, 0.0)), 1e-9)
    bytes_gb = moved_gb(old, new, problem.work)
    if owed_gb is not None:
        bytes_gb = bytes_gb + jnp.where(apart, 0.0, owed_gb)
    return Transition(
        restart_s=problem.calibration.restart_s,
        bytes_gb=bytes_gb,
        fabric_s=jnp.max(fabric_s(old, new, problem)),
        goes_on=jnp.where(apart, share, 0.0),
    )


def fabric_s(old: LayerSpan, new: LayerSpan, problem: Problem) -> Float[Array, " K"]:
    """[K] [s] until the GPUs of domains that are laid out anew hold their shards of the layers that the
    domain keeps (one job)."""
    kept = jnp.minimum(old.end, new.end) - jnp.maximum(old.start, new.start)
    anew = jnp.any(old.shards != new.shards, axis=0)
    anew = anew | (old.start != new.start) | (old.end != new.end)
    layers = jnp.where(anew & old.used & new.used, jnp.maximum(kept, 0.0), 0.0)
    return shard_fetch_s(layers, tuple(new.shards), problem)


def shard_fetch_s(
    layers: Float[Array, " K"], shards: tuple[Int[Array, " K"], ...], problem: Problem
) -> Float[Array, " K"]:
    """[K] [s] until every GPU of a domain has its shard of `layers` [K] (one job).

    `shards`: dp, tp, pp, cp and ZeRO stage, [K] each. A GPU fetches the whole of its new shard from its
    neighbours, as re-sharding a distributed checkpoint does, at the rate of a ring over all of them;
    what it holds already is not counted off. ZeRO spreads the optimizer state over the replicas, its
    stage 3 the weights as well (Rajbhandari et al. 2020).
    """
    dp, tp, pp, cp, zero = shards
    replicas = jnp.maximum(dp * cp, 1).astype(jnp.float32)
    weights = WEIGHT_BYTES / jnp.where(zero == 3, replicas, 1.0)
    optimizer = OPTIMIZER_BYTES / jnp.where(zero >= 1, replicas, 1.0)
    inside = jnp.maximum(tp * pp, 1).astype(jnp.float32)
    part = (weights + optimizer) / MOVED_STATE_BYTES / inside
    gpus = dp * tp * pp * cp
    rate = ring_gb_per_s(problem.cluster, problem.calibration, jnp.ones_like(gpus), gpus)
    fetch_s = layers * problem.work.state_gb_per_layer * part / jnp.maximum(rate, 1e-9)
    return jnp.where(gpus > 1, fetch_s, 0.0)


def advance_transition(
    transition: Transition, rate_gb_per_s: Float[Array, "K K"], duration_s: Float[Array, ""]
) -> tuple[Transition, Float[Array, ""], Float[Array, "K K"]]:
    """Spend `duration_s` on a transition at constant link rates [K, K].

    Returns what is left, the time in which the job can train [s] (0 while unfinished), and the
    bytes moved [K, K] [GB]. Links work in parallel: the slowest decides.
    """
    restart = jnp.minimum(transition.restart_s, duration_s)
    time_left = duration_s - restart
    need_s = jnp.maximum(_transfer_s(transition, rate_gb_per_s), transition.fabric_s)
    done = (transition.restart_s <= duration_s) & (need_s <= time_left)
    moved = jnp.minimum(transition.bytes_gb, rate_gb_per_s * time_left)
    moved = jnp.where(done, transition.bytes_gb, moved)
    left = transition.replace(
        restart_s=transition.restart_s - restart,
        bytes_gb=transition.bytes_gb - moved,
        fabric_s=jnp.where(done, 0.0, jnp.maximum(transition.fabric_s - time_left, 0.0)),
    )
    return left, jnp.where(done, time_left - need_s, 0.0), moved


def transition_s(transition: Transition, rate_gb_per_s: Float[Array, "K K"]) -> Float[Array, ""]:
    """[] [s] that a transition takes at constant link rates."""
    transfer_s = _transfer_s(transition, rate_gb_per_s)
    return transition.restart_s + jnp.maximum(transfer_s, transition.fabric_s)


def _transfer_s(transition: Transition, rate_gb_per_s: Array) -> Array:
    """[] [s] until the slowest link is done; a link without bytes needs none, even at rate 0."""
    return jnp.max(transition.bytes_gb / jnp.maximum(rate_gb_per_s, 1e-9))
