"""BACE-Pipe for many jobs: who computes much and sends little goes first, none blocks the others.

arXiv 2605.25375: see `agents.baselines.bace_pipe` for paths and prices. Jobs decide in order of
priority instead of arrival: the time that the job still computes over the time that it still sends, on
the links as measured and with the plan it has or would deploy alone. A job with little traffic can
take GPUs anywhere and need not wait behind one that must have the good links; a short one is not kept
by a long one, as remaining work divides the priority. All decide again whenever a job comes or goes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key

from agents.baselines import BacePipe, row_costs
from agents.many_jobs.scheduling import DecidingJob, JobsScheduler
from agents.protocol import score_table
from jaxsim.env import Observation
from jaxsim.plan import Plan
from jaxsim.trees import take


def priority(
    compute_s: Float[Array, " J"], busy_s: Float[Array, " J"], steps: Float[Array, " J"]
) -> Float[Array, " J"]:
    """[J] of jobs that compute `compute_s` and keep a WAN link busy for `busy_s` in each of the
    `steps` that are left: computation over traffic, over the time that is left."""
    left_s = jnp.maximum(compute_s * jnp.where(jnp.isfinite(steps), steps, 1e9), 1e-9)
    return compute_s / (compute_s + busy_s) / left_s


class JobsBacePipe(JobsScheduler):
    """Paths and prices job by job, the job of the highest priority first."""

    def init(self, key: Key[Array, ""]) -> Int[Array, " J"]:
        del key
        return jnp.full(self.setup.kind.shape, -1, jnp.int32)

    def order(self, observation: Observation) -> Int[Array, " J"]:
        n_jobs = self.setup.kind.shape[0]
        nobody = jnp.zeros_like(observation.view.gpus_available)

        def alone(job):
            setup = self.setup.of(job, nobody)
            now = score_table(setup, observation.view)
            best = jnp.argmax(now.rate)
            cost = take(row_costs(setup, now.choice, observation.view), best)
            compute_s = jnp.where(cost.runs, cost.compute_s, 1.0)
            return compute_s, cost.wan_busy_s, setup.problem.work.step_budget

        compute_s, busy_s, budget = jax.lax.map(alone, jnp.arange(n_jobs))
        rank = priority(compute_s, busy_s, budget - observation.steps_done)
        rank = jnp.where(observation.job_mask, rank, -1.0)
        return jnp.argsort(-rank, stable=True).astype(jnp.int32)

    def decide_one(
        self,
        key: Key[Array, ""],
        job: DecidingJob,
        memory: Any,
        *truth: Any,
    ) -> tuple[Plan, Any]:
        del truth
        scheduler = BacePipe().bind(job.setup)
        present = jnp.sum(job.others.observation.job_mask.astype(jnp.int32))
        free = job.observation.view.gpus_available
        # The same number of jobs as before: what was decided then stands.
        seen = jnp.where(present == memory, free, jnp.full_like(free, -1))
        plan, _ = scheduler.decide(key, job.observation, seen)
        return take(plan, 0), present
