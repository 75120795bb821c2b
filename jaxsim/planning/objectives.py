"""What a plan is worth besides its speed: the three objectives of a trade-off, all to be small."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from jaxsim.plan import Plan, Problem
from jaxsim.planning.balance import complete
from jaxsim.step_time import NetworkView, StepCost, job_step_cost


def objectives(cost: StepCost, problem: Problem) -> Float[Array, "3"]:
    """[3] of one job's plan, statistical efficiency included.

    Time per step [s], and what a million tokens take of the WAN [GB] and cost [USD], GPUs and egress;
    infinite where the plan cannot run. Utilisation is none of them: while the free GPUs stay the same
    it is a constant over the time.
    """
    work, cluster = problem.work, problem.cluster
    step_s = cost.step_s / cost.efficiency
    usd_per_hour = jnp.sum(cost.gpus_used.astype(jnp.float32) * cluster.usd_per_gpu_hour)
    usd_per_step = cost.egress_usd / cost.efficiency + usd_per_hour * step_s / 3600.0
    mtokens = work.tokens_per_step / 1e6
    values = jnp.stack(
        [step_s, jnp.sum(cost.wan_gb) / cost.efficiency / mtokens, usd_per_step / mtokens]
    )
    return jnp.where(cost.runs, values, jnp.inf)


def plan_objectives(
    plans: Plan,
    view: NetworkView,
    problem: Problem,
) -> Float[Array, "V P 3"]:
    """[V, P, 3] objectives of every plan [P, ...] with every lower choice under one view; infinite
    where the choice is illegal."""

    def one(plan, choice):
        done, legal = complete(plan, choice, problem, view)
        cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
        return jnp.where(legal, objectives(cost, problem), jnp.inf)

    menu = jnp.arange(problem.choices.size, dtype=jnp.int32)
    return jax.lax.map(lambda choice: jax.vmap(lambda plan: one(plan, choice))(plans), menu)


def usd_per_hour(plan: Plan, view: NetworkView, problem: Problem) -> Float[Array, ""]:
    """[] [USD/h] of one job's plan under a view, GPUs and egress."""
    cost = job_step_cost(plan, problem, view, schedules=problem.choices.schedules)
    gpus = cost.gpus_used.astype(jnp.float32)
    return jnp.vdot(gpus, problem.cluster.usd_per_gpu_hour) + 3600.0 * cost.egress_usd / cost.step_s
