"""Preparing plans as rows, on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.env.observation import job_nodes
from jaxsim.env.rows import PlanRows
from jaxsim.env.types import EnvParams
from jaxsim.files import InputError
from jaxsim.plan import FREE_FIELDS, Plan, Schedule
from jaxsim.planning.exact import build_step_table
from jaxsim.step_time import LayerSpan, choice_fits


def with_rows(params: EnvParams, plans: Plan) -> EnvParams:
    """Prepare P complete plans of the one job, leaves [P, ...]: actions are then numbers of rows, [J]
    int32. The initial plan becomes row P.

    Raises InputError for more than one job, and for a schedule that `params` do not have or that
    follows the network (greedy).
    """
    if params.problem.work.mask.shape[0] != 1:
        raise InputError(f"jobs: rows are for one job, got {params.problem.work.mask.shape[0]}")
    every = (plans, params.initial_plan)
    plans = jax.tree.map(lambda *x: np.concatenate([np.asarray(y) for y in x]), *every)
    used = plans.group >= 0
    strange = set(plans.schedule[used].tolist()) - set(params.schedules)
    if strange:
        words = [
            ", ".join(Schedule(x).word for x in sorted(s)) for s in (strange, params.schedules)
        ]
        raise InputError(f"plans: schedule: {words[0]} not among those of params: {words[1]}")
    problem = params.problem.job(0)

    @jax.jit
    def prepare(plans):
        def one(plan):
            # Its own GPUs are enough: all replicas run.
            lower = choice_fits(plan, problem, plan.gpus, params.schedules)
            nodes = job_nodes(plan, problem.work, jnp.array(True), problem.cluster.mask)
            return lower, LayerSpan.of(plan), nodes

        return jax.vmap(one)(plans)

    lower, span, nodes = prepare(plans)
    stop = [
        getattr(plans, name).reshape(used.shape[0], -1)
        for name in Plan.__dataclass_fields__
        if name not in FREE_FIELDS
    ]
    _, classes = np.unique(np.concatenate(stop, axis=1), axis=0, return_inverse=True)
    rows = PlanRows(
        plans=jax.tree.map(jnp.asarray, plans),
        costs=build_step_table(plans, problem),
        lower=lower,
        span=span,
        job_nodes=nodes,
        restart_class=jnp.asarray(classes.reshape(-1), jnp.int32),
        local_sgd=bool(np.any(plans.sync_period > 1)),
    )
    return params.replace(rows=rows)
