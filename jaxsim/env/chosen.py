"""Plans as an environment takes them: themselves, or the numbers of prepared ones."""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import Array

from jaxsim.env.types import EnvParams
from jaxsim.plan import Plan, needs_reconfiguration
from jaxsim.step_time import Transition, begin_between, begin_transition
from jaxsim.trees import take


class Chosen(NamedTuple):
    """Plans [J, ...], and their rows [J] where they are prepared."""

    plan: Plan
    row: Array | None


def chosen_plans(params: EnvParams, action: Plan | Array) -> Chosen:
    """Raises TypeError for a plan where `params.rows` asks for numbers, and for numbers without."""
    if isinstance(action, Plan) == (params.rows is not None):
        wanted = "a Plan" if params.rows is None else "[J] numbers of rows"
        raise TypeError(f"action: expected {wanted}, got {type(action).__name__}")
    if params.rows is None:
        return Chosen(action, None)  # pyright: ignore[reportArgumentType]
    return Chosen(take(params.rows.plans, action), action)  # pyright: ignore[reportArgumentType]


def reconfigures(params: EnvParams, old: Chosen, new: Chosen) -> Array:
    """[J] bool: does going from `old` to `new` stop the job?"""
    if params.rows is None:
        return jax.vmap(needs_reconfiguration)(old.plan, new.plan)
    return params.rows.restart_class[old.row] != params.rows.restart_class[new.row]


def begin_transitions(
    params: EnvParams, old: Chosen, new: Chosen, owed_gb: Array | None
) -> Transition:
    """The reconfigurations from `old` to `new`, [J] leading."""
    problem = params.problem
    if params.rows is None:

        def begin(old, new, work, owed_gb):
            return begin_transition(old, new, problem.of(work), owed_gb)

        return jax.vmap(begin)(old.plan, new.plan, problem.work, owed_gb)
    before, after = (take(params.rows.span, chosen.row) for chosen in (old, new))  # pyright: ignore[reportArgumentType]

    def between(old, new, work, owed_gb):
        return begin_between(old, new, problem.of(work), owed_gb)

    return jax.vmap(between)(before, after, problem.work, owed_gb)
