"""What the stages of a plan compute, before any WAN is known."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.cluster import Calibration, Cluster
from jaxsim.plan import Plan, per_domain
from jaxsim.pytree import Pytree
from jaxsim.step_time import collectives
from jaxsim.step_time.compute import LayerTime, layer_time
from jaxsim.step_time.topology import Topology, topology
from jaxsim.workload import Workload


class Stages(Pytree):
    """What a plan's stages compute, before any WAN is known; [K] each."""

    topo: Topology
    dp: Int[Array, "*batch K"]
    micro_batch: Int[Array, "*batch K"]
    micro_batches: Float[Array, "*batch K"]
    recompute: Int[Array, "*batch K"]
    schedule: Int[Array, "*batch K"]
    layers: Float[Array, "*batch K"]
    layer: LayerTime
    # [s] of a pass through the layers, less what hides a context-parallel ring: it hides nothing else
    forward_s: Float[Array, "*batch K"]
    backward_s: Float[Array, "*batch K"]
    tensor_s: Float[Array, "*batch K"]
    context_s: Float[Array, "*batch K"]
    compute_s: Float[Array, "*batch K"]


def replicas_running(plan: Plan, gpus_available: Int[Array, " K"]) -> Int[Array, " K"]:
    """[K] int32 replicas of the domain's group that find GPUs in all of its domains.

    Local jobs have priority: dp shrinks to what the tightest domain of the group can hold.
    """
    per_replica = jnp.maximum(plan.tp * plan.pp * plan.cp, 1).astype(jnp.float32)
    # A float quotient is exact below 2^24 and vectorises; integer division does not.
    room = jnp.floor(gpus_available.astype(jnp.float32) / per_replica).astype(jnp.int32)
    room = jnp.minimum(room, per_domain(plan, plan.dp))
    groups = jnp.arange(plan.group.shape[-1], dtype=jnp.int32)
    mine = (plan.group[:, None] == plan.group[None, :]) & (groups >= 0)[None, :]
    tightest = jnp.where(mine, room[None, :], jnp.int32(2**30)).min(axis=1)
    return jnp.where(plan.used, tightest, 0)


def without_absent(plan: Plan, gpus_available: Int[Array, " K"]) -> tuple[Plan, Float[Array, ""]]:
    """A local-SGD plan without the groups that find no GPUs, and the share of the batch that is left.

    The others go on and close the ring. Synchronous plans stay as they are, and so does a plan of
    which no group is left.
    """
    groups = jnp.arange(plan.group.shape[-1], dtype=jnp.int32)
    member = plan.group[:, None] == groups[None, :]
    running = replicas_running(plan, gpus_available) > 0
    exists, runs = jnp.any(member, axis=0), jnp.any(member & running[:, None], axis=0)
    missing = exists & ~runs & (plan.sync_period > 1) & jnp.any(runs)
    stays = exists & ~missing
    number = jnp.cumsum(stays.astype(jnp.int32)) - 1
    moved = stays[:, None] & (number[:, None] == groups[None, :])
    filled = jnp.any(moved, axis=0)
    some = jnp.any(missing)

    def renumbered(of_group):
        value = jnp.sum(jnp.where(moved, of_group[:, None], 0), axis=0)
        return jnp.where(some, jnp.where(filled, value, 1), of_group)

    names = ("dp", "micro_batch", "batch_share", "recompute", "schedule")
    sequences = (plan.dp * plan.micro_batch * plan.batch_share).astype(jnp.float32)
    share = jnp.sum(jnp.where(stays, sequences, 0.0))
    share = share / jnp.maximum(jnp.sum(jnp.where(exists, sequences, 0.0)), 1e-9)
    group = per_domain(plan, jnp.where(stays, number + 1, 0)) - 1
    rest = plan.replace(
        group=jnp.where(some, group, plan.group),
        **{name: renumbered(getattr(plan, name)) for name in names},
    )
    return rest, jnp.where(some, share, 1.0)


# An inlined jit is traced once for all callers and leaves their programs as they are.
@functools.partial(jax.jit, inline=True)
def stages(
    plan: Plan,
    work: Workload,
    cluster: Cluster,
    calibration: Calibration,
    gpus_available: Int[Array, " K"],
) -> Stages:
    """Times and counts of every domain's stages; dp is what `gpus_available` [K] leaves room for."""
    # An unused domain computes one sequence, so that nothing of it is 0 / 0 before it is masked.
    micro_batch = jnp.maximum(per_domain(plan, plan.micro_batch), 1)
    recompute = per_domain(plan, plan.recompute)
    dp = replicas_running(plan, gpus_available)
    planned = per_domain(plan, plan.dp * plan.batch_share).astype(jnp.float32)
    link = (work, cluster, calibration, micro_batch)
    reduce_s = collectives.tensor_reduce_s(*link, plan.tp, plan.cp)
    lower = (micro_batch, recompute, plan.tp, plan.cp)
    layer = layer_time(work, cluster.gpu, calibration, *lower, reduce_s)
    room_s = (layer.room_forward_s, layer.room_backward_s)
    ring = collectives.context_parallel_s(*link, room_s, plan.tp, plan.cp)
    context_s, *ring_hides_s = ring
    layers = jnp.ceil(plan.layers.astype(jnp.float32) / jnp.maximum(plan.pp, 1).astype(jnp.float32))
    topo = topology(plan)
    pace = layers * straggling(plan, cluster, calibration, dp, topo.together)
    compute_s = pace * (layer.forward_s + layer.backward_s) + calibration.micro_batch_s
    # With more stages, the embedding is on another GPU than the heavier logits.
    compute_s = compute_s + jnp.where(topo.first & (plan.pp == 1), layer.embedding_s, 0.0)
    return Stages(
        topo=topo,
        dp=dp,
        micro_batch=micro_batch,
        micro_batches=jnp.ceil(planned / jnp.maximum(dp, 1).astype(jnp.float32)),
        recompute=recompute,
        schedule=per_domain(plan, plan.schedule),
        layers=layers,
        layer=layer,
        forward_s=layers * (layer.forward_s - ring_hides_s[0]),
        backward_s=layers * (layer.backward_s - ring_hides_s[1]),
        tensor_s=pace * layer.tensor_s,
        context_s=pace * context_s,
        compute_s=compute_s,
    )


def straggling(
    plan: Plan, cluster: Cluster, calibration: Calibration, dp: Array, together: Array
) -> Array:
    """[K] factor >= 1: a synchronous step waits for the slowest of its nodes.

    Under local SGD a step waits for the nodes of its own group, and the groups for each other once in
    H steps: what is independent from step to step has then averaged out to a part of sqrt(H).
    """
    gpus = (dp * plan.tp * plan.pp * plan.cp).astype(jnp.float32)
    nodes = gpus / jnp.maximum(cluster.gpus_per_node, 1).astype(jnp.float32)
    nodes = jnp.where(plan.used, nodes, 0.0)
    everyone = jnp.log2(jnp.maximum(jnp.sum(nodes), 1.0))
    mine = jnp.log2(jnp.maximum(jnp.where(together, nodes[None, :], 0.0).sum(axis=1), 1.0))
    period = plan.sync_period.astype(jnp.float32)
    waited = jnp.where(period > 1.0, mine + (everyone - mine) / jnp.sqrt(period), everyone)
    return 1.0 + calibration.straggler * waited
