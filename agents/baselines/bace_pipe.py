"""BACE-Pipe: pipelines over regions whose links keep up, in the cheapest of them.

arXiv 2605.25375 (May 2026), many jobs over regions: (1) jobs have priorities that balance computation
and network use, so that none blocks the head of the line; (2) a path finder looks for pipelines over
regions on which communication does not stall the pipeline; (3) an allocator takes the GPUs of the
cheapest regions that keep the pipeline efficient. Decisions are made when jobs come and go, on the
links as measured. Here paths are rows of the table: (2) keeps those whose exposed WAN time is at most
STALL of the step (the least exposed where none is), (3) takes the one of least USD per step, GPUs and
egress, among those within SLACK of the fastest that is left. A row that is still among them is kept.
The numbers are ours: the paper was known from its abstract. `many_jobs.bace_pipe` has (1). Left out:
the price of electricity by the hour.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from agents.protocol import EvaluatedTable, Setup, TableScheduler, pick_row
from jaxsim.planning import complete
from jaxsim.step_time import NetworkView, StepCost, job_step_cost

STALL, SLACK = 0.05, 0.10


class BacePipe(TableScheduler):
    """Deploy the cheapest row that its links do not stall; decide again when free GPUs change."""

    def init(self, key: Key[Array, ""]) -> Int[Array, " K"]:
        del key
        return jnp.full_like(self.setup.prior.gpus_available, -1)  # nothing was seen yet

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Int[Array, " K"]]:
        del key
        free = seen.view.gpus_available
        changed = jnp.any(free != memory) & seen.may_switch
        cost = row_costs(self.setup, seen.now.choice, seen.view)
        stalled = jnp.where(cost.runs, cost.exposed_wan_s / cost.step_s, jnp.inf)
        good = good_paths(seen.now.rate, stalled, self.rows)
        usd = step_usd(self.setup, cost)
        cheapest = jnp.argmin(jnp.where(good, usd, jnp.inf)).astype(jnp.int32)
        move = seen.idle | (changed & ~good[seen.row] & jnp.any(good))
        return jnp.where(move, cheapest, seen.row), jnp.where(changed, free, memory)


def good_paths(
    rate: Float[Array, " P"], stalled: Float[Array, " P"], rows: Bool[Array, " P"]
) -> Bool[Array, " P"]:
    """[P] bool: of the `rows` that run, those that stall hardly, or as little as can be; of these the
    near fastest. `stalled` is the share of a step."""
    runs = rows & (rate > 0)
    least = jnp.min(jnp.where(runs, stalled, jnp.inf))
    flows = runs & (stalled <= jnp.maximum(least, STALL))
    return flows & (rate >= (1.0 - SLACK) * jnp.max(jnp.where(flows, rate, 0.0)))


def row_costs(setup: Setup, choice: Int[Array, " P"], view: NetworkView) -> StepCost:
    """[P] a step of every row with its lower choice."""

    def one(row, choice):
        done, legal = complete(pick_row(setup.table, row), choice, setup.problem, view)
        schedules = setup.problem.choices.schedules
        cost = job_step_cost(done, setup.problem, view, schedules=schedules)
        return cost.replace(runs=cost.runs & legal)

    return jax.vmap(one)(jnp.arange(setup.table.size), choice)


def step_usd(setup: Setup, cost: StepCost) -> Float[Array, " P"]:
    """[P] [USD] of a step, its GPUs and its egress, by what the step is worth."""
    price = setup.problem.cluster.usd_per_gpu_hour / 3600.0
    gpu_usd = jnp.sum(cost.gpus_used.astype(jnp.float32) * price[None], axis=1) * cost.step_s
    return (gpu_usd + cost.egress_usd) / cost.efficiency
