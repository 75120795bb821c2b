"""What is to be had from a plan: the one objective that tables, schedulers and oracles share."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from jaxsim.plan import Plan, Problem
from jaxsim.planning.balance import complete
from jaxsim.planning.scoring import over_plans, pairs_of, rows_under_each, spread, under_each
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, StepCost, job_step_cost

# Of plans that are equal in all that the weights name the faster is better.
LEAST_PROGRESS = 1e-3
# What an interval of a plan loses that costs twice the budget, or is infinitely too slow.
PENALTY = 10.0
NEVER = -1e6  # [reward / s] of what must not be chosen: finite, as it is averaged and multiplied
# The weights that a table is made for where any may be asked: corners, edges and middle.
SAMPLED = tuple(
    (a / 3, b / 3, (3 - a - b) / 3, 0.0) for a in range(3, -1, -1) for b in range(3 - a, -1, -1)
)

# What may be spent, as shares of what the plan of most progress costs per hour.
BUDGET_SHARES = (0.75, 0.5, 0.25)


class Preference(NamedTuple):
    """What somebody asks for: weights as in `Objective`, and what may be spent."""

    weights: tuple[float, float, float, float]
    budget_usd_per_hour: float = np.inf


class Objective(Pytree):
    """Weights of the reward's parts, and limits.

    A limit is not a wall: a plan beyond it loses the more the further it is beyond, and far more than
    any weight gives, so that the least bad plan is still found where none keeps it.
    """

    weights: Float[Array, "*batch 4"]  # progress, utilisation, cost, fairness
    budget_usd_per_hour: Float[Array, "*batch"]  # GPUs and egress; infinite = none
    deadline_s: Float[Array, "*batch"]  # [s] for the job's step budget; infinite = none

    @staticmethod
    def of(
        weights: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0),
        budget_usd_per_hour: float = np.inf,
        deadline_s: float = np.inf,
    ) -> Objective | None:
        """The objective; None for progress alone, which every scheduler takes for granted.

        Raises ValueError for weights that are not four finite numbers >= 0 or are all zero, and for
        limits that are not > 0.
        """
        if len(weights) != 4 or not all(0 <= w < np.inf for w in weights) or not any(weights):
            raise ValueError(f"weights: expected four numbers >= 0, not all 0, got {weights}")
        for name, value in (("budget", budget_usd_per_hour), ("deadline", deadline_s)):
            if not value > 0:
                raise ValueError(f"{name}: expected a number > 0, got {value}")
        if not any(weights[1:]) and np.isinf([budget_usd_per_hour, deadline_s]).all():
            return None
        return Objective(
            jnp.asarray(weights, jnp.float32),
            jnp.float32(budget_usd_per_hour),
            jnp.float32(deadline_s),
        )


class Worth(Pytree):
    """What a plan brings under one view, [] each; intervals and their reward as in `jaxsim.env`."""

    trained: Float[Array, "*batch"]  # [reward / s] of training, 0 where the plan cannot run
    held: Float[Array, "*batch"]  # [reward / s] of being in force, training or not
    per_usd: Float[Array, "*batch"]  # [reward / USD] that an interval with it in force sends


def plan_worth(
    cost: StepCost,
    problem: Problem,
    view: NetworkView,
    objective: Objective,
    progress_ref: Float[Array, ""],
    interval_s: Float[Array, ""],
) -> Worth:
    """Worth of one job's plan with its step's `cost` under `view`, in units of the reward.

    `progress_ref` [training steps] is what an interval's progress is measured in. The constant -1 of
    the reward's first part is left out. Where the limits hold and the first weight is at least
    LEAST_PROGRESS, the worth of a course of plans is its return up to a constant.
    """
    cluster, work = problem.cluster, problem.work
    weights = objective.weights
    rate = jnp.where(cost.runs, cost.efficiency / cost.step_s, 0.0)
    peak = cluster.peak_tflops(view.gpus_available)
    used = cost.gpus_used.astype(jnp.float32)
    gpu_usd_per_s = jnp.sum(used * cluster.usd_per_gpu_hour) / 3600.0
    egress_usd_per_s = jnp.where(cost.runs, cost.egress_usd / cost.step_s, 0.0)
    gpu_usd = cluster.gpu_usd(used, interval_s)
    usefulness = rate * work.useful_tflop / jnp.maximum(peak, 1e-9)
    trained = jnp.maximum(weights[0], LEAST_PROGRESS) * rate / progress_ref
    trained = (
        trained + weights[1] * usefulness / interval_s - weights[2] * egress_usd_per_s / gpu_usd
    )
    usd_per_hour = 3600.0 * (gpu_usd_per_s + egress_usd_per_s)
    over = jnp.maximum(usd_per_hour / objective.budget_usd_per_hour - 1.0, 0.0)
    needed = jnp.where(jnp.isinf(work.step_budget), 0.0, work.step_budget / objective.deadline_s)
    late = jnp.where(needed > 0, jnp.maximum(1.0 - rate / jnp.maximum(needed, 1e-30), 0.0), 0.0)
    beyond = PENALTY * (over + late) / interval_s
    real = cluster.mask.astype(jnp.float32)
    busy = used + (cluster.gpus - view.gpus_available).astype(jnp.float32)
    load = busy / jnp.maximum(cluster.gpus, 1).astype(jnp.float32)
    mean = jnp.sum(load * real) / jnp.sum(real)
    uneven = jnp.sum(real * (load - mean) ** 2) / jnp.sum(real)
    return Worth(
        trained=jnp.where(cost.runs, trained - beyond, 0.0),
        held=-weights[3] * uneven / interval_s,
        per_usd=-weights[2] / gpu_usd,
    )


def choice_worths(
    plans: Plan,
    views: NetworkView,
    problem: Problem,
    objective: Objective,
    progress_ref: Float[Array, ""],
    interval_s: Float[Array, ""],
    pairs: Int[Array, " N"] | None = None,
    balanced: NetworkView | None = None,
) -> Float[Array, "W P V"]:
    """[W, P, V] reward per second of every plan [P, ...] with every lower choice under views [W, ...],
    in force and training. 0 is for a plan that cannot run (apart from what it is to be in force);
    a choice that is illegal for a plan which runs with another one is NEVER.

    `pairs` [N], row x V + choice: those that are computed, all if None; the others count as illegal.
    `balanced` as in `choice_rates`.
    """
    n_plans, n_choices = plans.group.shape[0], problem.choices.size
    row, choice = pairs_of(n_plans, n_choices, pairs)
    each = jax.tree.map(lambda x: x[row], plans)
    worth_of = _worth_of(problem, objective, progress_ref, interval_s)
    by_pair = over_plans(worth_of, (None, None, 0, 0), plans.group.shape[-1])
    worth, runs = under_each(lambda *seen: by_pair(*seen, each, choice), views, balanced)
    # What a plan is worth by being in force is the same with every choice that it has.
    known = spread(jnp.ones_like(runs), n_plans, n_choices, pairs)
    gained = spread(worth.trained + worth.held, n_plans, n_choices, pairs)
    runs = spread(runs, n_plans, n_choices, pairs)
    useless = (~runs & jnp.any(runs, axis=-1, keepdims=True)) | ~known
    return jnp.where(useless, NEVER, gained)


def row_worths(
    plans: Plan,
    choice: Int[Array, "W P"] | Int[Array, " P"],
    views: NetworkView,
    problem: Problem,
    objective: Objective,
    progress_ref: Float[Array, ""],
    interval_s: Float[Array, ""],
    balanced: NetworkView | None = None,
) -> Worth:
    """[W, P] worth of plans [P, ...], `choice` and `balanced` as in `row_rates`."""
    worth_of = _worth_of(problem, objective, progress_ref, interval_s)
    by_plan = over_plans(worth_of, (None, None, 0, 0), plans.group.shape[-1])
    return rows_under_each(by_plan, plans, choice, views, balanced)[0]


def _worth_of(problem: Problem, objective: Objective, progress_ref: Array, interval_s: Array):
    """(view, balanced, plan, choice) -> its worth and [] bool whether it runs."""

    def worth(view, balanced, plan, choice):
        done, legal = complete(plan, choice, problem, balanced)
        cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
        cost = cost.replace(runs=legal & cost.runs)
        return plan_worth(cost, problem, view, objective, progress_ref, interval_s), cost.runs

    return worth
