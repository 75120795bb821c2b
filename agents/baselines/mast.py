"""MAST: a job goes to exactly one region, the one in which it would be done first.

Choudhury et al., OSDI 2024: global scheduling of atomic jobs. All regions that can hold the job are
scored by when it could start there (queue, and data that is not there yet) and how long it would
run, with the best plan inside each region. For one job on idle regions whose data is everywhere
this is `single_domain`; `many_jobs.mast` has queues and data. Left out: pre-emption by priority and
the daily placement of data by demand.
"""

from __future__ import annotations

from typing import Self

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from agents.baselines.static import StaticPlan, with_any_choice
from agents.protocol import Setup
from agents.staying import expected_rates
from jaxsim.env import Observation


def finish_s(
    delay_s: Float[Array, " K"], steps: Float[Array, ""], steps_per_s: Float[Array, " K"]
) -> Float[Array, " K"]:
    """[K] [s] until a job of `steps` [] would be done in each region, infinite where it cannot run."""
    runtime_s = steps / jnp.maximum(steps_per_s, 1e-30)
    return jnp.where(steps_per_s > 0, delay_s + runtime_s, jnp.inf)


def region_rates(setup: Setup, rate: Array) -> Array:
    """[K] steps per second of the best row inside each region, from the rates [P] of all rows."""
    inside = setup.table.single_domain & setup.table.mask
    mine = (setup.table.plans.group >= 0) & inside[:, None]  # [P, K]
    return jnp.max(jnp.where(mine, rate[:, None], 0.0), axis=0)


class Mast(StaticPlan):
    """One job alone: no queue, no data to fetch; a job without a budget counts as one step."""

    def bind(self, setup: Setup) -> Self:
        rows = setup.table.single_domain & setup.table.mask
        inside = with_any_choice(rows, setup.problem.choices.size)
        by_region = region_rates(setup, expected_rates(setup, inside))
        budget = setup.problem.work.step_budget
        steps = jnp.where(jnp.isfinite(budget), budget, 1.0)
        region = jnp.argmin(finish_s(jnp.zeros_like(by_region), steps, by_region))
        group = setup.table.plans.group
        there = jax.lax.dynamic_index_in_dim(group, region, 1, keepdims=False) >= 0
        best = self.replace(candidates=with_any_choice(rows & there, setup.problem.choices.size))
        return super(Mast, best).bind(setup)

    def stays(self, setup: Setup, observation: Observation) -> None:
        """What it may play is known to whom it was bound alone."""
        del setup, observation
