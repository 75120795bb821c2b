"""What one training step of a plan costs under a network state: closed form."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.cluster import Calibration, Cluster
from jaxsim.plan import (
    ALL_SCHEDULES,
    Plan,
    Problem,
    masked_sums,
    per_domain,
)
from jaxsim.pytree import Pytree
from jaxsim.step_time import collectives, sharding, sync
from jaxsim.step_time.event_cost import (
    BandwidthProfile,
    EventBounds,
    event_pipeline_time,
    fast_pipeline_time,
)
from jaxsim.step_time.memory import params_per_gpu, stage_memory
from jaxsim.step_time.pipeline import PipelineTime, in_flight_limit, pipeline_time
from jaxsim.step_time.pipeline_inputs import PipelineInputs, PreparedStep, prepare_stages
from jaxsim.step_time.schedules import known
from jaxsim.step_time.stages import Stages, replicas_running, stages, without_absent
from jaxsim.step_time.topology import largest, topology, transfers_per_micro_batch
from jaxsim.workload import Workload


class NetworkView(Pytree):
    """Links and GPUs as they are (or as somebody believes they are) at one moment."""

    bandwidth_gb_per_s: Float[Array, "*batch K K"]  # [GB/s]
    rtt_s: Float[Array, "*batch K K"]  # [s]
    gpus_available: Int[Array, "*batch K"]  # not held by local jobs


class StepCost(Pytree):
    """Cost of one step of one job; the parts sum to step_s. [J] leads where jobs are stacked."""

    step_s: Float[Array, "*batch"]  # [s], infinite where the plan cannot run
    # [s] the bottleneck stage's arithmetic over all micro-batches
    compute_s: Float[Array, "*batch"]
    tensor_parallel_s: Float[Array, "*batch"]  # [s]
    context_parallel_s: Float[Array, "*batch"]  # [s]
    bubble_s: Float[Array, "*batch"]  # [s] pipeline fill and imbalance
    exposed_wan_s: Float[Array, "*batch"]  # [s] WAN pipeline traffic that nothing hides
    sync_s: Float[Array, "*batch"]  # [s] exposed gradient sync, inside domains and over the WAN
    optimizer_s: Float[Array, "*batch"]  # [s] weight update and the host's work per step
    wan_busy_s: Float[Array, "*batch"]  # [s] the busiest WAN link's transfer time, hidden or not
    memory_gb: Float[Array, "*batch K"]  # [GB] on the fullest GPU
    gpus_used: Int[Array, "*batch K"]  # GPUs computing (dp reduced to what is available)
    wan_gb: Float[Array, "*batch K K"]  # [GB] over each link in one step
    sync_gb: Float[Array, "*batch K K"]  # [GB] over each link in one gradient sync between groups
    egress_usd: Float[Array, "*batch"]  # [USD] per step
    # progress of a step relative to synchronous 16-bit training with everybody present
    efficiency: Float[Array, "*batch"]
    fits: Bool[Array, "*batch"]  # memory suffices
    runs: Bool[Array, "*batch"]  # fits and at least one replica finds GPUs

    @property
    def total_s(self) -> Float[Array | np.ndarray, "*batch"]:
        """[] [s] sum of the parts: the step's time, memory permitting or not."""
        parts = self.compute_s + self.bubble_s + self.optimizer_s
        return parts + self.communication_s

    @property
    def overlap(self) -> Float[Array | np.ndarray, "*batch"]:
        """[] share of the WAN's busy time that is hidden behind computation."""
        # Exposed time is a difference: its rounding may fall below zero.
        exposed = jnp.clip(self.exposed_wan_s + self.sync_s, 0.0, self.wan_busy_s)
        return 1.0 - exposed / jnp.maximum(self.wan_busy_s, 1e-9)

    @property
    def communication_s(self) -> Float[Array | np.ndarray, "*batch"]:
        """[] [s] exposed communication of all kinds."""
        return self.tensor_parallel_s + self.context_parallel_s + self.exposed_wan_s + self.sync_s


def time_pipelines(
    work: Workload, prepared: PreparedStep, pipeline: Callable[[PipelineInputs], PipelineTime]
) -> PipelineTime:
    """Time a plan's pipelines. Virtual stages (interleaved inside the domains) divide what a pipeline
    takes beyond the computation of its slowest stage."""
    st, inputs = prepared.stages, prepared.inputs
    timed = pipeline(inputs)
    v = work.virtual_stages
    busy_s = jnp.where(
        st.topo.together,
        (inputs.stage_s + jnp.where(st.topo.last, inputs.head_s, 0.0))[None, :],
        0.0,
    )
    busy_s = st.micro_batches * largest(busy_s.T)
    return timed.replace(
        total_s=busy_s + (timed.total_s - busy_s) / v, ideal_s=busy_s + (timed.ideal_s - busy_s) / v
    )


def _transfers(st: Stages, schedules: tuple[int, ...] = ALL_SCHEDULES) -> Array:
    """[K, K] transfers of one step over each WAN link."""
    return transfers_per_micro_batch(st.topo, st.schedule, schedules) * st.micro_batches[:, None]


def job_step_cost(
    plan: Plan,
    problem: Problem,
    view: NetworkView,
    slowdown: tuple[Float[Array, "K K"], Float[Array, "K K"]] | None = None,
    pipeline: Callable[[PipelineInputs], PipelineTime] | None = None,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> StepCost:
    """Cost of one step of one job (no job axis).

    `slowdown` = ([K, K], [K, K]) factors >= 1 by which other jobs lengthen this job's transfers in
    the pipeline and the sync phase; None = the job is alone. `pipeline` (static) is
    `fast_pipeline_time` (None) or another function of its argument. `schedules`
    (static): what only others need is not compiled, and a plan with another does not run. Every
    quantity is finite for a plan that runs. Under local SGD a group without GPUs is absent: the cost
    is that of the others, and `efficiency` counts their part of the batch.
    """
    if pipeline is None:
        pipeline = functools.partial(fast_pipeline_time, schedules=schedules)
    in_pipeline, in_sync = (None, None) if slowdown is None else slowdown
    plan, present = without_absent(plan, view.gpus_available)
    prepared = prepare_step(plan, problem, view, in_pipeline, schedules)
    timed = time_pipelines(problem.work, prepared, pipeline)
    cost = assemble_step(plan, problem, view, prepared, timed, in_sync, schedules)
    return cost.replace(efficiency=cost.efficiency * present)


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


def prepare_step(
    plan: Plan,
    problem: Problem,
    view: NetworkView,
    slowdown: Float[Array, "K K"] | None = None,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> PreparedStep:
    """What the pipelines of one job's plan are timed from, see `job_step_cost`; `slowdown` [K, K] is
    that of the pipeline's transfers."""
    args = (problem.work, problem.cluster, problem.calibration)
    st = stages(plan, *args, view.gpus_available)
    links = (view.bandwidth_gb_per_s, view.rtt_s)
    slower = 1.0 if slowdown is None else slowdown
    return prepare_stages(plan, problem, *links, st, slower, schedules)


def assemble_step(
    plan: Plan,
    problem: Problem,
    view: NetworkView,
    prepared: PreparedStep,
    timed: PipelineTime,
    slowdown: Float[Array, "K K"] | None = None,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> StepCost:
    """The cost of a step whose pipelines are timed; `slowdown` [K, K] is that of the gradient sync."""
    work, cluster, calibration = problem.work, problem.cluster, problem.calibration
    st, activation_gb = prepared.stages, prepared.activation_gb
    in_sync = 1.0 if slowdown is None else slowdown
    slowest = jnp.argmax(timed.total_s)
    # A sum over a one-hot row is cheaper than a batched gather on CPU.
    here = (jnp.arange(plan.group.shape[-1]) == slowest).astype(jnp.float32)
    parts = bottleneck_parts(plan, st, here)
    total_s = jnp.sum(here * timed.total_s)
    ideal_s = jnp.sum(here * timed.ideal_s)

    ring_gb = sync.ring_bytes_gb(work, plan, st.topo)
    ring_rate = sync.ring_rate_gb_per_s(view.bandwidth_gb_per_s, plan.sync_period, calibration)
    h, fragments = plan.sync_period.astype(jnp.float32), plan.fragments.astype(jnp.float32)
    latency_s = 0.5 * view.rtt_s
    fragment_s = sync.ring_s(plan, ring_gb * in_sync / fragments, ring_rate, latency_s)
    optimizer_s = _optimizer_s(plan, work, cluster, calibration, st)
    inside_s, hidden_s, sharded_s = sync_parts(plan, work, cluster, calibration, st)
    shard_gb, shard_s = _wan_shards(problem, plan, st, ring_rate / in_sync, latency_s)
    # Between outer syncs only the replicas inside a domain talk.
    sync_s = jnp.maximum(inside_s - hidden_s, 0.0) + sharded_s + shard_s
    tau, step_s = plan.overlap.astype(jnp.float32), total_s + sync_s + optimizer_s
    outer = (fragment_s, h, fragments, tau, hidden_s, step_s, inside_s)
    sync_s = sync_s + sync.outer_exposed_s(*outer)
    transfers = _transfers(st, schedules)
    wan_gb = activation_gb * transfers + ring_gb / h + shard_gb
    memory = _memory_gb(plan, work, calibration, st, timed.in_flight, schedules)
    fits = jnp.all(memory <= cluster.gpu.memory_gb)
    can_run = (st.dp > 0) & known(st.schedule, schedules)
    runs = fits & jnp.any(plan.used) & jnp.all(jnp.where(plan.used, can_run, True))
    return StepCost(
        step_s=jnp.where(runs, total_s + sync_s + optimizer_s, jnp.inf),
        compute_s=parts[0],
        tensor_parallel_s=parts[1],
        context_parallel_s=parts[2],
        bubble_s=ideal_s - sum(parts),
        exposed_wan_s=total_s - ideal_s,
        sync_s=sync_s,
        optimizer_s=optimizer_s,
        wan_busy_s=(prepared.inputs.send_s * transfers).max() + fragment_s * fragments / h,
        memory_gb=memory,
        gpus_used=st.dp * plan.tp * plan.pp * plan.cp * plan.used.astype(jnp.int32),
        wan_gb=wan_gb,
        sync_gb=ring_gb,
        egress_usd=jnp.sum(wan_gb * cluster.egress_usd_per_gb),
        efficiency=problem.learning.of(sync.communication(plan, work)),
        fits=fits,
        runs=runs,
    )


# Traced once for all its callers, see `stages`.
@functools.partial(jax.jit, inline=True, static_argnames="schedules")
def group_periods(
    plan: Plan,
    problem: Problem,
    view: NetworkView,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> Float[Array, " G"]:
    """[G] [s] between micro-batches of each group in steady state; 0 for unused groups.

    `schedules` (static): those that occur. The in-flight limit of a schedule needs a number of
    micro-batches: the global batch, an upper bound, stands in for the share that is not known yet.
    """
    work, cluster, calibration = problem.work, problem.cluster, problem.calibration
    st = stages(plan, work, cluster, calibration, view.gpus_available)
    many = jnp.full(plan.group.shape, work.global_batch, jnp.float32)
    st = st.replace(micro_batches=many)
    links = (view.bandwidth_gb_per_s, view.rtt_s)
    prepared = prepare_stages(plan, problem, *links, st, schedules=schedules)
    pipeline = functools.partial(pipeline_time, schedules=schedules)
    timed = time_pipelines(work, prepared, pipeline)
    groups = jnp.arange(plan.group.shape[-1], dtype=jnp.int32)
    mine = plan.group[None, :] == groups[:, None]
    # Replicas that found no GPUs leave the others more to do.
    planned = jnp.maximum(per_domain(plan, plan.dp), 1).astype(jnp.float32)
    period_s = timed.period_s * planned / jnp.maximum(st.dp, 1).astype(jnp.float32)
    return jnp.where(mine, period_s[None, :], 0.0).max(axis=1)


# Traced once for all its callers, see `stages`.
@functools.partial(jax.jit, inline=True, static_argnames="schedules")
def choice_fits(
    plan: Plan,
    problem: Problem,
    gpus_available: Int[Array, " K"],
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> Bool[Array, " V"]:
    """[V] bool: the choice divides every group's present part of the batch and fits every GPU.

    One job; the same memory model as `job_step_cost`, without timing anything.
    """
    work, cluster, calibration = problem.work, problem.cluster, problem.calibration
    choices = problem.choices
    topo = topology(plan)
    dp = replicas_running(plan, gpus_available)
    dp_planned = jnp.maximum(per_domain(plan, plan.dp), 1).astype(jnp.float32)
    crowding = dp_planned / jnp.maximum(dp, 1).astype(jnp.float32)
    sequences = per_domain(plan, plan.batch_share * plan.micro_batch).astype(jnp.float32)
    depth = masked_sums(topo.after, plan.pp.astype(jnp.float32)[None])[0]
    stage = stage_memory(work, calibration, plan, jnp.maximum(dp, 1), topo.first, topo.last)

    def allowed(micro_batch, recompute, schedule):
        # Sequences per replica; a float quotient is exact below 2^24.
        share = sequences / micro_batch.astype(jnp.float32)
        divides = share == jnp.floor(share)
        micro_batches = jnp.ceil(share * crowding - 1e-3)
        held = functools.partial(in_flight_limit, schedule, schedules=schedules)
        in_flight = held(depth, micro_batches)
        of_last = held(jnp.ones_like(depth), micro_batches)
        memory = stage.total_gb(micro_batch, recompute, in_flight, of_last)
        bad = plan.used & ~(divides & (memory <= cluster.gpu.memory_gb))
        return jnp.sum(bad.astype(jnp.float32)) == 0.0

    return jax.vmap(allowed)(choices.micro_batch, choices.recompute, choices.schedule)


def _memory_gb(
    plan: Plan,
    work: Workload,
    calibration: Calibration,
    st: Stages,
    in_flight: Array,
    schedules: tuple[int, ...],
) -> Array:
    """[K] [GB] on the fullest GPU of each domain; a stalled group holds what one replica needs."""
    dp = jnp.maximum(st.dp, 1)
    stage = stage_memory(work, calibration, plan, dp, st.topo.first, st.topo.last)
    one = jnp.ones_like(in_flight)
    of_last = in_flight_limit(st.schedule, one, st.micro_batches, schedules=schedules)
    return stage.total_gb(st.micro_batch, st.recompute, in_flight, of_last)


def bottleneck_parts(
    plan: Plan, st: Stages, here: Float[Array, " K"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """[] [s] compute, tensor- and context-parallel time of the slowest stage of group `here`."""
    compute_s = st.compute_s + jnp.where(st.topo.last, st.layer.head_s, 0.0)
    mine = jnp.sum(jnp.where(st.topo.together, here[:, None], 0.0), axis=0)
    stage_s = (compute_s + st.tensor_s + st.context_s) * mine
    worst = (jnp.arange(here.shape[0]) == jnp.argmax(stage_s)).astype(jnp.float32)
    times = worst * st.micro_batches * mine
    return (
        jnp.sum(times * compute_s),
        jnp.sum(times * st.tensor_s),
        jnp.sum(times * st.context_s),
    )


def _wan_shards(
    problem: Problem, plan: Plan, st: Stages, ring_rate: Array, latency_s: Array
) -> tuple[Array, Array]:
    """[K, K] [GB] and [] [s] per step of weights and gradients that groups hold together (ZeRO-3 over
    the WAN), beyond the all-reduce."""
    work = problem.work
    passes = sharding.wan_passes(work, plan, st)
    s = jnp.maximum(plan.shard_groups, 1).astype(jnp.float32)
    inside, _ = sync.rings(plan)
    gparams = jnp.where(inside, sync.shared_gparams(work, plan, st.topo), 0.0)
    pass_gb = (s - 1.0) / s * sharding.WIRE_BYTES * gparams
    pass_s = (pass_gb / ring_rate).max(axis=1)
    hops_s = (s - 1.0) * jnp.where(inside, latency_s, 0.0).max(axis=1)
    exposed_s = sharding.wan_exposed_s(problem.calibration, st, passes, pass_s, hops_s)
    return passes[:, None] * pass_gb, jnp.where(passes > 0, exposed_s, 0.0).max()


def sync_parts(
    plan: Plan, work: Workload, cluster: Cluster, calibration: Calibration, st: Stages
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """[] [s] each, whatever the WAN does: gradient sync inside the domains, what the last backward
    pass hides, and what sharded weights expose."""
    params = params_per_gpu(work, plan, st.topo.first, st.topo.last)
    bytes_s, start_s = collectives.data_parallel_pass_s(cluster, calibration, plan, st.dp, params)
    sharded = sharding.is_sharded(work, plan)
    inside_s = jnp.where(sharded, 0.0, 2.0 * (bytes_s + start_s))
    inside_s = largest(jnp.where(plan.used, inside_s, 0.0))
    hidden_s = largest(jnp.where(plan.used, calibration.dp_overlap * st.backward_s, 0.0))
    sharded_s = sharding.exposed_s(work, calibration, plan, st, bytes_s, start_s)
    sharded_s = largest(jnp.where(plan.used & sharded, sharded_s, 0.0))
    return inside_s, hidden_s, sharded_s


def _optimizer_s(
    plan: Plan, work: Workload, cluster: Cluster, calibration: Calibration, st: Stages
) -> Array:
    """[] [s] weight update of the fullest GPU, bound by HBM, and the host's work per step."""
    params = params_per_gpu(work, plan, st.topo.first, st.topo.last)
    ranks = jnp.maximum(st.dp, 1) * plan.cp
    shards = jnp.where(plan.zero_stage >= 1, ranks * plan.shard_groups, 1).astype(jnp.float32)
    rate = cluster.gpu.memory_gb_per_s * calibration.memory_efficiency
    update_s = params / shards * calibration.optimizer_bytes / rate
    return largest(jnp.where(plan.used, update_s + calibration.step_fixed_s, 0.0))
