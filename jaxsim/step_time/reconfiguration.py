"""What it takes to go from one plan to another: a restart, then bytes over the links as they are."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.plan import Plan, Problem, layer_range, n_groups
from jaxsim.pytree import Pytree
from jaxsim.step_time.sync import layer_overlap, ring_bytes_gb
from jaxsim.step_time.topology import topology
from jaxsim.workload import DataSets, Workload


class Transition(Pytree):
    """What is left of a reconfiguration; zero when the job trains."""

    restart_s: Float[Array, "*batch"]  # [s]
    bytes_gb: Float[Array, "*batch K K"]  # [GB] still to move, row = source


class LayerSpan(Pytree):
    """Which layers the domains of a plan hold."""

    start: Float[Array, "*batch K"]  # first layer
    end: Float[Array, "*batch K"]  # one past the last layer
    used: Bool[Array, "*batch K"]
    groups: Int[Array, "*batch"]  # each of which holds every layer

    @staticmethod
    def of(plan: Plan) -> LayerSpan:
        """The span of one job's plan."""
        return LayerSpan(*layer_range(plan), plan.used, n_groups(plan))  # pyright: ignore[reportArgumentType]

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


def outer_sync_gb(plan: Plan, work: Workload) -> Array:
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
    return Transition(
        restart_s=problem.calibration.restart_s,
        bytes_gb=migration_gb(old, new, problem.work) + owed_gb,
    )


def advance_transition(
    transition: Transition, rate_gb_per_s: Float[Array, "K K"], duration_s: Float[Array, ""]
) -> tuple[Transition, Float[Array, ""], Float[Array, "K K"]]:
    """Spend `duration_s` on a transition at constant link rates [K, K].

    Returns what is left, the time in which the job can train [s] (0 while unfinished), and the
    bytes moved [K, K] [GB]. Links work in parallel: the slowest decides.
    """
    restart = jnp.minimum(transition.restart_s, duration_s)
    time_left = duration_s - restart
    need_s = _transfer_s(transition, rate_gb_per_s)
    done = (transition.restart_s <= duration_s) & (need_s <= time_left)
    moved = jnp.minimum(transition.bytes_gb, rate_gb_per_s * time_left)
    moved = jnp.where(done, transition.bytes_gb, moved)
    left = Transition(
        restart_s=transition.restart_s - restart, bytes_gb=transition.bytes_gb - moved
    )
    return left, jnp.where(done, time_left - need_s, 0.0), moved


def transition_s(transition: Transition, rate_gb_per_s: Float[Array, "K K"]) -> Float[Array, ""]:
    """[] [s] that a transition takes at constant link rates."""
    return transition.restart_s + _transfer_s(transition, rate_gb_per_s)


def _transfer_s(transition: Transition, rate_gb_per_s: Array) -> Array:
    """[] [s] until the slowest link is done; a link without bytes needs none, even at rate 0."""
    return jnp.max(transition.bytes_gb / jnp.maximum(rate_gb_per_s, 1e-9))
