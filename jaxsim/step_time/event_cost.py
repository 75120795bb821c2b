"""The step of a plan by the event-exact pipeline: the same inputs and results as the closed form."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxsim.calibration import Calibration
from jaxsim.cluster import Cluster
from jaxsim.plan import INTERLEAVED_CHUNKS, SCHEDULE_GREEDY, SCHEDULE_INTERLEAVED, Plan
from jaxsim.step_time.closed_form import NetworkView, StepCost, job_step_cost
from jaxsim.step_time.event_exact import pipeline_events
from jaxsim.step_time.links import StageTimes
from jaxsim.step_time.pipeline import PipelineTime, Topology, crossing, pipeline_time
from jaxsim.step_time.schedules import ALL_SCHEDULES
from jaxsim.workload import Workload


@struct.dataclass
class BandwidthProfile:
    """How the links change inside a step, C segments of time: a transfer in segment c takes
    `slowdown[c]` times what it takes at the bandwidth of the NetworkView."""

    change_s: Array  # [C - 1] [s] from the start of the step, ascending
    slowdown: Array  # [C, K, K] factors > 0


def event_step_cost(
    plan: Plan,
    work: Workload,
    cluster: Cluster,
    calibration: Calibration,
    view: NetworkView,
    stage_bound: int,
    micro_batch_bound: int,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
    profile: BandwidthProfile | None = None,
) -> StepCost:
    """`job_step_cost` with the pipeline's time event-exact; memory, sync and traffic are the same.

    The bounds and `schedules` (those that may occur) are static. A plan with a pipeline of more
    than `stage_bound` stages or a group of more than `micro_batch_bound` micro-batches is not
    simulated: its step_s is infinite.
    """
    pipeline = functools.partial(
        event_pipeline_time,
        stage_bound=stage_bound,
        micro_batch_bound=micro_batch_bound,
        schedules=schedules,
        profile=profile,
    )
    return job_step_cost(plan, work, cluster, calibration, view, pipeline=pipeline)


def event_pipeline_time(
    topo: Topology,
    plan_pp: Array,
    schedule: Array,
    micro_batches: Array,
    stage_s: Array,
    extra_last_s: Array,
    inner_hop_s: Array,
    send_s: Array,
    latency_s: Array,
    forward_s: Array | None = None,
    weight_s: Array | None = None,
    *,
    stage_bound: int,
    micro_batch_bound: int,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
    profile: BandwidthProfile | None = None,
) -> PipelineTime:
    """`pipeline_time`, operation by operation; its docstring has the arguments.

    The stages inside the domains are stages of the pipeline; a hop inside a domain occupies its
    link for all of `inner_hop_s`. `ideal_s` is the same step over a WAN of no cost, simulated too;
    the period and the in-flight limits (which a greedy order obeys) are the closed form's. A
    domain's place in its pipeline makes its row of the result, so all K pipelines of one group are
    the same number: only those that start at a domain are simulated, the others idle.

    An interleaved pipeline also crosses from its last domain to its first, at the send_s of that
    link; of exactly two domains with several stages each, the crossing shares its link with the
    ordinary traffic of the opposite direction and both are charged for the sum of their bytes.
    """
    closed = pipeline_time(
        topo,
        plan_pp,
        schedule,
        micro_batches,
        stage_s,
        extra_last_s,
        inner_hop_s,
        send_s,
        latency_s,
        forward_s,
        weight_s,
    )
    rows = _Rows.of(topo, plan_pp, stage_bound)
    times = _stage_times(
        topo, rows, schedule, stage_s, extra_last_s, inner_hop_s, forward_s, weight_s
    )
    wire = _wire(topo, rows, plan_pp, schedule, inner_hop_s, send_s, latency_s, profile)
    count = micro_batches.astype(jnp.int32)
    fits = (rows.n_stages <= stage_bound) & (count <= micro_batch_bound)

    def run(times):
        return pipeline_events(
            times,
            schedule,
            jnp.where(fits & topo.first, rows.n_stages, 0),
            count,
            micro_batch_bound,
            schedules,
            INTERLEAVED_CHUNKS,
            rows.pick(closed.in_flight) if SCHEDULE_GREEDY in schedules else None,
        ).total_s

    def to_domains(total_s):
        here = jnp.where(topo.first & fits, total_s, 0.0)
        whole = jnp.where(topo.together, here[None, :], 0.0).max(axis=1)
        return jnp.where(fits, whole, jnp.inf)

    total_s = to_domains(run(times.replace(**wire)))
    no_wan = _wire(topo, rows, plan_pp, schedule, inner_hop_s, send_s * 0.0, latency_s * 0.0, None)
    ideal_s = to_domains(run(times.replace(**no_wan)))
    return closed.replace(total_s=total_s, ideal_s=jnp.where(fits, ideal_s, 0.0))


@struct.dataclass
class _Rows:
    """Where the stages of the pipeline that a domain belongs to lie; K is the pipelines' axis B."""

    hot: Array  # [S, K, K] 1 where the stage of the pipeline (2nd) lies in the domain (3rd)
    n_stages: Array  # [K] int32 of the domain's pipeline
    ends: Array  # [S, K] bool, the stage is the last of its domain
    begins: Array  # [S, K] bool, the first of its domain

    @staticmethod
    def of(topo: Topology, plan_pp: Array, stage_bound: int) -> _Rows:
        pp = plan_pp.astype(jnp.int32)
        before = topo.together & ~topo.after  # row = domain, column = stands before it
        start = jnp.where(before, pp[None, :], 0).sum(axis=1)
        stage = jnp.arange(stage_bound, dtype=jnp.int32)[:, None, None]
        inside = (stage >= start[None, None]) & (stage < (start + pp)[None, None])
        hot = inside & topo.together[None]
        return _Rows(
            hot=hot.astype(jnp.float32),
            n_stages=jnp.where(topo.together, pp[None, :], 0).sum(axis=1),
            ends=jnp.any(hot & (stage == (start + pp - 1)[None, None]), axis=2),
            begins=jnp.any(hot & (stage == start[None, None]), axis=2),
        )

    def pick(self, of_domain: Array) -> Array:
        """[..., K] -> [..., S, K]: the value of the domain that holds the stage."""
        return jnp.einsum(
            "sbk,...k->...sb", self.hot, of_domain, precision=jax.lax.Precision.HIGHEST
        )


def _stage_times(
    topo: Topology,
    rows: _Rows,
    schedule: Array,
    stage_s: Array,
    extra_last_s: Array,
    inner_hop_s: Array,
    forward_s: Array | None,
    weight_s: Array | None,
) -> StageTimes:
    """What the stages compute; the wire is left empty."""
    forward_s = stage_s / 3.0 if forward_s is None else forward_s
    weight_s = forward_s if weight_s is None else weight_s
    weight_s = jnp.minimum(weight_s, stage_s - forward_s)
    head_s = jnp.where(topo.together & topo.last[None, :], extra_last_s[None, :], 0.0).sum(axis=1)
    nothing = jnp.zeros((0,), jnp.float32)
    return StageTimes(
        forward_s=rows.pick(forward_s),
        backward_s=rows.pick(stage_s - forward_s - weight_s),
        weight_s=rows.pick(weight_s),
        head_s=head_s,
        next_send_s=nothing,
        prev_send_s=nothing,
        next_latency_s=nothing,
        prev_latency_s=nothing,
        change_s=nothing,
    )


def _wire(
    topo: Topology,
    rows: _Rows,
    plan_pp: Array,
    schedule: Array,
    inner_hop_s: Array,
    send_s: Array,
    latency_s: Array,
    profile: BandwidthProfile | None,
) -> dict[str, Array]:
    """Fields of StageTimes: every stage's way to its neighbours, through its domain or the WAN."""
    onwards = topo.to_next | crossing(topo)
    send_s = send_s[None] if profile is None else send_s[None] * profile.slowdown
    members = topo.together.astype(jnp.float32).sum(axis=1)
    several = jnp.where(topo.together, plan_pp[None, :].astype(jnp.float32), 0.0).max(axis=1) > 1.0
    doubled = (schedule == SCHEDULE_INTERLEAVED) & (members == 2.0) & several
    send_s = send_s * jnp.where(doubled, 2.0, 1.0)[None, :, None]

    def way(of_link, inside, at_end, pairs):  # [C, K, K] -> [C, S, K]
        over_wan = rows.pick(jnp.where(pairs[None], of_link, 0.0).sum(axis=-1))
        # A pipeline inside one domain leaves it nowhere.
        return jnp.where((at_end & (members > 1.0)[None])[None], over_wan, inside)

    inside = rows.pick(inner_hop_s)[None]
    back = onwards.T
    shape = (send_s.shape[0] - 1, plan_pp.shape[0])
    change_s = jnp.zeros((0,), jnp.float32) if profile is None else profile.change_s
    return {
        "next_send_s": way(send_s, inside, rows.ends, onwards),
        "prev_send_s": way(send_s, inside, rows.begins, back),
        "next_latency_s": way(latency_s[None], jnp.zeros_like(inside), rows.ends, onwards)[0],
        "prev_latency_s": way(latency_s[None], jnp.zeros_like(inside), rows.begins, back)[0],
        "change_s": jnp.broadcast_to(change_s[:, None], shape),
    }
