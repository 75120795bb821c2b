"""MAST for many jobs: every job runs in exactly one region, the one in which it would be done first.

Choudhury et al., OSDI 2024: jobs are scheduled globally and atomically; every region is scored by
when the job could start there and how long it would then run. The start waits for the jobs that hold
the region's GPUs, and for the data that the region lacks, which is fetched once it is chosen. The plan
inside a region is the table's best one. Left out: pre-emption, as all jobs are of one priority, in
order of arrival; and the daily placement of data by demand: where replicas are the jobs file says.
Not MAST's own: as for everybody here, a job asks for no more than an equal part of the GPUs.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, Key, Shaped

from agents.baselines import finish_s
from agents.many_jobs.scheduling import DecidingJob, JobsScheduler, JobsSetup, OtherJobs
from agents.protocol import Setup, carry_out, find_row, score_table, switch_times
from jaxsim.env import Observation, ResourceShare, step_cost
from jaxsim.plan import Plan
from jaxsim.planning import PlanTable
from jaxsim.trees import take


class JobsMast(JobsScheduler):
    """One region per job, for as long as it runs; it waits where the best one is still taken."""

    def rows(self, job: Int[Array, ""], table: PlanTable) -> Bool[Array, " P"]:
        del job
        return table.single_domain

    def init(self, key: Key[Array, ""]) -> Shaped[Array, " J"]:
        del key
        return jnp.zeros(self.setup.kind.shape, jnp.int32)

    def decide_one(
        self,
        key: Key[Array, ""],
        job: DecidingJob,
        memory: Any,
        *truth: Any,
    ) -> tuple[Plan, Any]:
        del key, truth
        own, seen, others = job.setup, job.observation, job.others
        target = take(seen.target, 0)
        table, everything = own.table, others.observation.view
        row, deployed = find_row(table, target)
        # A waiting job asks how fast it would run once the jobs that hold the region have left.
        view = jax.tree.map(lambda x, y: jnp.where(deployed, x, y), seen.view, everything)
        now = score_table(own, view)
        rows = table.single_domain & table.mask & (now.rate > 0)
        regions = table.plans.group >= 0  # [P, K]
        asked = jnp.sum(jax.vmap(lambda plan: plan.gpus)(table.plans), axis=1)
        leaves_s = _leaves_s(self.setup, others)
        queue_s = queueing_s(regions, asked, seen.view.gpus_available, others.gpus, leaves_s)
        left = own.problem.work.step_budget - seen.steps_done[0]
        steps = jnp.where(jnp.isfinite(left), left, 1.0)
        fetch_s = switch_times(own, target, seen.view)
        done_s = finish_s(queue_s + fetch_s, steps, jnp.where(rows, now.rate, 0.0))
        best = jnp.argmin(done_s).astype(jnp.int32)
        row = jnp.where(deployed, row, best)
        plan = carry_out(own, row, now.choice[row], seen.view)
        waits = ~deployed & ((queue_s[best] > 0) | ~jnp.any(rows))
        plan = jax.tree.map(lambda old, new: jnp.where(waits, old, new[0]), target, plan)
        return plan, memory


def queueing_s(regions: Array, asked: Array, free: Array, held: Array, leaves_s: Array) -> Array:
    """[P] [s] until each row's region has the GPUs it asks for, infinite where it never will.

    `regions` [P, K] bool has one region per row, `asked` [P] GPUs; `held` [J, K] are the GPUs of
    the other jobs, who leave in `leaves_s` [J] [s], and `free` [K] those of nobody.
    """
    gone = leaves_s[:, None] >= leaves_s[None, :]  # [J, J]: who is gone when j leaves
    then = free[None] + jnp.sum(jnp.where(gone[:, :, None], held[None], 0), axis=1)  # [J, K]
    room = jnp.max(jnp.where(regions[:, None, :], then[None], 0), axis=2)  # [P, J]
    waits_s = jnp.where(room >= asked[:, None], leaves_s[None], jnp.inf).min(axis=1)
    at_once = jnp.max(jnp.where(regions, free[None], 0), axis=1) >= asked
    return jnp.where(at_once, 0.0, waits_s)


def _leaves_s(setup: JobsSetup, others: OtherJobs) -> Array:
    """[J] [s] until each other job is done at its present speed."""
    seen: Observation = others.observation
    common: Setup = setup.common
    cost = step_cost(
        seen.target, common.problem, seen.view, ResourceShare.of_whole_links(others.gpus)
    )
    rate = jnp.where(cost.runs, cost.efficiency / cost.step_s, 0.0)
    left = common.problem.work.step_budget - seen.steps_done
    return jnp.where(rate > 0, left / jnp.maximum(rate, 1e-30), jnp.inf)
