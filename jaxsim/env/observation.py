"""What a scheduler sees: the WAN as a graph, the jobs, the raw measurements, the action masks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jraph
from jax import Array
from jaxtyping import Float

from jaxsim.cluster import Cluster
from jaxsim.env.sharing import allocate_gpus
from jaxsim.env.status import active, may_retarget
from jaxsim.env.types import ActionMask, EnvParams, Observation, State
from jaxsim.materialise import materialised
from jaxsim.plan import Plan, n_groups, per_domain
from jaxsim.step_time import NetworkView, choice_fits
from jaxsim.workload import Workload

NODE_FEATURES = 5


EDGE_FEATURES = 5


JOB_NODE_FEATURES = 7


def observe(state: State, params: EnvParams) -> Observation:
    """What was measured up to the interval before the decision; features are scaled to about one.

    Jobs that are padding, finished or still to come are masked. Several jobs see the memory of the
    GPUs that each of them holds, one job that of all that local jobs leave.
    """
    problem, view, plan = params.problem, state.view, state.plan
    present = active(state, params)
    if params.rows is None:
        lower, nodes = _of_plans(state, params, present)
    else:
        nodes = params.rows.job_nodes[state.row] * present.astype(jnp.float32)[:, None, None]
        lower = state.lower
    return Observation(
        graph=wan_graph(problem.cluster, view, state.transition.bytes_gb, params.interval_s),
        graph_mask=problem.cluster.mask,
        job_nodes=nodes,
        view=view,
        plan=plan,
        target=state.target,
        moving=state.moving,
        transition=state.transition,
        since_switch=state.since_switch,
        since_sync=state.since_sync,
        steps_done=state.steps_done,
        job_mask=present,
        mask=ActionMask(
            retarget=may_retarget(state) & present,
            domains=problem.cluster.mask & (view.gpus_available > 0),
            lower=lower,  # pyright: ignore[reportArgumentType]
        ),
        t=state.t,
        behind_gb=state.behind_gb,
    )


def _of_plans(state: State, params: EnvParams, present: Array) -> tuple[Array, Array]:
    """[J, V] bool, the lower choices that fit, and [J, K, JOB_NODE_FEATURES]."""
    problem, view, plan = params.problem, state.view, state.plan
    holds = None
    if present.shape[0] > 1:  # static
        holds = allocate_gpus(plan, present, view.gpus_available)

    def fits(plan, work, gpus):
        gpus = view.gpus_available if gpus is None else gpus
        return choice_fits(plan, problem.of(work), gpus, params.schedules)

    nodes = jax.vmap(job_nodes, (0, 0, 0, None))
    return jax.vmap(fits)(plan, problem.work, holds), nodes(
        plan, problem.work, present, problem.cluster.mask
    )


def wan_graph(
    cluster: Cluster,
    view: NetworkView,
    pending_gb: Float[Array, "J K K"],
    interval_s: Float[Array, ""],
) -> jraph.GraphsTuple:
    """Domains and links as measured; `pending_gb` [J, K, K] is what moves have still to carry."""
    n = cluster.mask.shape[0]
    real = cluster.mask.astype(jnp.float32)
    gpus = cluster.gpus.astype(jnp.float32)
    total = jnp.maximum(jnp.sum(gpus), 1.0)
    available = view.gpus_available.astype(jnp.float32)
    nodes = _columns(
        [
            real,
            gpus / total,
            available / jnp.maximum(gpus, 1.0),
            cluster.usd_per_gpu_hour / jnp.maximum(jnp.max(cluster.usd_per_gpu_hour), 1e-9),
            jnp.log1p(gpus) * 0.2,
        ],
    )
    link = real[:, None] * real[None, :] * (1.0 - jnp.eye(n, dtype=jnp.float32))
    base = jnp.maximum(cluster.bandwidth_gb_per_s, 1e-9)
    measured = jnp.maximum(view.bandwidth_gb_per_s, 1e-3 * base)
    pending = jnp.sum(pending_gb, axis=0)
    edges = _columns(
        [
            link,
            link * jnp.log(base) * 0.5,
            link * jnp.log(measured / base),
            link * view.rtt_s * 10.0,
            link * jnp.log1p(pending / (measured * interval_s)),
        ]
    )
    index = jnp.arange(n, dtype=jnp.int32)
    return jraph.GraphsTuple(
        nodes=nodes * real[:, None],
        edges=edges.reshape(n * n, EDGE_FEATURES),
        senders=jnp.repeat(index, n),
        receivers=jnp.tile(index, n),
        globals=None,
        n_node=jnp.array([n], jnp.int32),
        n_edge=jnp.array([n * n], jnp.int32),
    )


def job_nodes(plan: Plan, work: Workload, active: Array, real: Array) -> Array:
    """[K, JOB_NODE_FEATURES] of one job."""
    used = plan.used.astype(jnp.float32)
    share = per_domain(plan, plan.batch_share * plan.micro_batch * plan.dp).astype(jnp.float32)
    groups = jnp.maximum(n_groups(plan), 1).astype(jnp.float32)
    features = [
        used,
        plan.layers.astype(jnp.float32) / work.layers.astype(jnp.float32),
        plan.position.astype(jnp.float32) / jnp.sum(real.astype(jnp.float32)),
        share / work.global_batch.astype(jnp.float32),
        used / groups,
        jnp.log2(jnp.maximum(per_domain(plan, plan.micro_batch), 1).astype(jnp.float32)) / 3.0,
        per_domain(plan, plan.dp).astype(jnp.float32) / 8.0,
    ]
    return _columns(features) * (used * active.astype(jnp.float32))[:, None]


def _columns(features: list[Array]) -> Array:
    """Stack along a new last axis, [...] -> [..., F].

    Each feature is computed by itself, in the order of memory: within the stacking, an element at a
    time, a logarithm takes several times as long on CPU.
    """
    return jnp.stack(_each_by_itself(features), axis=-1)


@materialised
def _each_by_itself(features: list[Array]) -> list[Array]:
    return features
