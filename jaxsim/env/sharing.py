"""Several jobs on one cluster: which GPUs each of them holds, and how they share the links.

The order of the job axis is the order of arrival, and it is the priority on GPUs: what local jobs
leave goes to the first job, what it leaves to the second, and so on. On links nobody waits for a
whole transfer of another; they are shared as `SHARING` names.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from jaxsim.plan import ALL_SCHEDULES, Plan, Problem
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, StepCost, job_step_cost, replicas_running

SHARING = ("fair", "crux")
CRUX_LEVELS = 8  # priorities that network cards and switches tell apart
# Least share of a link, for a job to which the others leave nothing: times stay finite.
STARVED = 1e-6


class ResourceShare(Pytree):
    """What each job has of the cluster in one interval."""

    gpus: Int[Array, "*batch J K"]  # held
    share: Float[Array, "*batch J K K"]  # of each link's rate that the job's transfers find

    @classmethod
    def of_whole_links(cls, gpus: Int[Array, "J K"]) -> ResourceShare:
        """These GPUs, and every link as if nobody else used it."""
        return cls(gpus, jnp.ones((*gpus.shape, gpus.shape[1]), jnp.float32))


def step_cost(
    plan: Plan,
    problem: Problem,
    view: NetworkView,
    shares: ResourceShare | None = None,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> StepCost:
    """Cost of one step of every job, leaves [J, ...]; None = each of them has the cluster alone."""

    def cost(plan, work, gpus, share):
        slowdown = None if share is None else (1.0 / share, 1.0 / share)
        seen = view if gpus is None else view.replace(gpus_available=gpus)
        return job_step_cost(plan, problem.of(work), seen, slowdown, schedules=schedules)

    if shares is None:
        return jax.vmap(lambda p, w: cost(p, w, None, None))(plan, problem.work)
    return jax.vmap(cost)(plan, problem.work, shares.gpus, shares.share)


def allocate_gpus(
    plan: Plan, active: Bool[Array, " J"], available: Int[Array, " K"]
) -> Int[Array, "J K"]:
    """[J, K] int32 GPUs that the jobs hold of the `available` [K], first come, first served.

    A plan that asks for more than is left runs with fewer replicas (elastic), and holds none where
    not one of a group finds room in all of the group's domains; `active` [J] is False for jobs that
    ask for nothing. No domain gives more than it has.
    """

    def grant(free, job):
        plan, active = job
        held = jnp.where(active, held_gpus(plan, free), 0)
        return free - held, held

    return jax.lax.scan(grant, available, (plan, active))[1]


def held_gpus(plan: Plan, free: Int[Array, " K"]) -> Int[Array, " K"]:
    """[K] int32 GPUs that one job's plan holds of the `free` [K] ones."""
    dp = replicas_running(plan, free)
    return dp * plan.tp * plan.pp * plan.cp * plan.used.astype(jnp.int32)


def share_links(use: Array, level: Array) -> Array:
    """[J, K, K] share of each link's rate that the transfers of each job find.

    `use` [J, K, K] is the share of the time for which a job alone would keep the link busy, `level`
    [J] its priority. Higher levels are served first; within a level light users get what they ask
    for and the others equal parts of the rest (max-min). A transfer then finds what the other jobs
    leave on average, as in a processor-sharing queue (Kleinrock 1976: x / (1 - rho) for a transfer
    of x). Together the jobs never carry more than the link does: where the link can serve them all,
    each uses at most what it would alone; where it cannot, the shares of a level sum to what is
    left for it.
    """
    peers = level[:, None] == level[None, :]
    above = (level[None, :] > level[:, None]).astype(jnp.float32)
    left = jnp.maximum(1.0 - jnp.einsum("jk,kab->jab", above, use), 0.0)
    # Max-min: smaller requests are met in full, the rest is divided equally; the water level is the
    # largest equal part.
    smaller = peers[:, :, None, None] & (use[None, :] < use[:, None])
    served = jnp.sum(jnp.where(smaller, use[None, :], 0.0), axis=1)
    rest = jnp.sum((peers[:, :, None, None] & ~smaller).astype(jnp.float32), axis=1)
    candidate = (left - served) / rest
    water = jnp.where(peers[:, :, None, None], candidate[None, :], 0.0).max(axis=1)
    taken = jnp.minimum(use, jnp.maximum(water, 0.0))
    others = peers & ~jnp.eye(level.shape[0], dtype=bool)
    share = left - jnp.einsum("jk,kab->jab", others.astype(jnp.float32), taken)
    return jnp.where(use > 0, jnp.clip(share, STARVED, 1.0), 1.0)


def crux_levels(work_tflop: Array, transfer_s: Array, active: Array) -> Array:
    """[J] int32 priorities, 0 = lowest, by GPU intensity I_j = W_j / t_j.

    Crux (Cao et al., SIGCOMM 2024): a job's computation per step over the time its slowest link
    needs for the step's traffic; a link is best given to whom it keeps the most computation
    running. The few levels there are go to ranks of equal number. Left out: the correction factors
    for overlap (P_j = k_j I_j with k_j = 1), and the compression of levels by who meets whom.
    """
    intensity = jnp.where(active, work_tflop / jnp.maximum(transfer_s, 1e-9), -1.0)
    index = jnp.arange(intensity.shape[0])
    beaten = intensity[None, :] < intensity[:, None]
    # The earlier of two equals goes first.
    beaten = beaten | ((intensity[None, :] == intensity[:, None]) & (index[None] > index[:, None]))
    rank = jnp.sum(beaten & active[None, :], axis=1)
    n_active = jnp.maximum(jnp.sum(active), 1)
    return jnp.where(active, rank * CRUX_LEVELS // jnp.maximum(n_active, CRUX_LEVELS), 0)


def share_resources(
    plan: Plan,
    active: Array,
    computing: Array,
    pending: Array,
    problem: Problem,
    view: NetworkView,
    sharing: str,
    schedules: tuple[int, ...] = ALL_SCHEDULES,
) -> ResourceShare:
    """Who has what in an interval. `active` [J] hold GPUs, those `computing` [J] send the traffic
    of training, and `pending` [J, K, K] is the share of the interval for which each job's move
    keeps a link busy."""
    gpus = allocate_gpus(plan, active, view.gpus_available)
    whole = ResourceShare.of_whole_links(gpus)
    alone = step_cost(plan, problem, view, whole, schedules)
    rate = jnp.maximum(view.bandwidth_gb_per_s * problem.calibration.wan_efficiency, 1e-9)
    transfer_s = alone.wan_gb / rate[None]
    computing = computing & alone.runs
    use = jnp.where(computing[:, None, None], transfer_s / alone.step_s[:, None, None], 0.0)
    use = jnp.minimum(use + pending, 1.0)
    level = jnp.zeros(active.shape, jnp.int32)
    if sharing == "crux":
        level = crux_levels(problem.work.useful_tflop, transfer_s.max(axis=(1, 2)), active)
    return ResourceShare(gpus, share_links(use, level))
