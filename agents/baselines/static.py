"""Plans that never change: one rule picks a row at the start, the lower level still adapts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from agents.protocol import Scheduler, Setup, score_table, table_scheduler
from jaxsim.plan import empty_plan


def keep_best(setup: Setup, admitted: Array, worth: Array | None = None) -> Scheduler:
    """Keep the best row at base bandwidth and usual load, of those `admitted` [P, V] bool; `worth`
    [P] is a factor on the rows' rates, 1 if None.

    Best is fastest in the simulator, also for a planner with an objective of its own that nominated
    several rows. Only the row is kept: the admitted lower choice is the best of every interval.
    """
    rate = score_table(setup, setup.usual, admitted).rate
    rate = rate if worth is None else rate * worth
    allowed = jnp.any(admitted, axis=1) & setup.table.mask
    # Where no allowed row fits, the job waits on the first: an honest zero, not another plan.
    row = jnp.argmax(jnp.where(allowed, rate, -1.0)).astype(jnp.int32)
    scheduler = table_scheduler(
        setup, lambda key: (), lambda key, seen, memory: (row, memory), admitted
    )
    return idle_unless(jnp.any(allowed), scheduler)


def idle_unless(some: Array, scheduler: Scheduler) -> Scheduler:
    """Deploy nothing where the table holds no row of the kind: that too is an honest zero."""

    def decide(key, observation, memory):
        plan, memory = scheduler.decide(key, observation, memory)
        idle = empty_plan(plan.group.shape[-1])
        return jax.tree.map(lambda x, y: jnp.where(some, x, y[None]), plan, idle), memory

    return scheduler._replace(decide=decide)


def with_any_choice(setup: Setup, rows: Array) -> Array:
    """[P, V] bool: `rows` [P] bool, each with every lower choice."""
    return jnp.broadcast_to(rows[:, None], (rows.shape[0], setup.problem.choices.size))


def every_plan(setup: Setup) -> Array:
    """[P, V] bool: what best_static chooses from, every row with every choice. The best of all at base
    is what a careful engineer deploys once."""
    return with_any_choice(setup, jnp.ones_like(setup.table.mask))


def inside_one_domain(setup: Setup) -> Array:
    """[P, V] bool: what single_domain chooses from, the rows inside one domain: the classical way,
    exhaustively searched."""
    return with_any_choice(setup, setup.table.single_domain)


def even_splits(setup: Setup) -> Array:
    """[P, V] bool: what static_even_split chooses from, rows that treat all domains alike: one even
    pipeline in the file's order, or one replica each."""
    return with_any_choice(setup, setup.table.even_split)
