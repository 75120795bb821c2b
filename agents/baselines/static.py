"""Plans that never change: one rule picks a row at the start, the lower level still adapts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from agents.protocol import Scheduler, Setup, score_table, table_scheduler
from jaxsim.plan import empty_plan


def _never_moves(setup: Setup, allowed: Array) -> Scheduler:
    """Keep the best allowed row at base bandwidth and usual load."""
    rate = score_table(setup, setup.usual).rate
    allowed = allowed & setup.table.mask
    # Where no allowed row fits, the job waits on the first: an honest zero, not another plan.
    row = jnp.argmax(jnp.where(allowed, rate, -1.0)).astype(jnp.int32)
    scheduler = table_scheduler(setup, lambda key: (), lambda key, seen, memory: (row, memory))
    return _idle_unless(jnp.any(allowed), scheduler)


def _idle_unless(some: Array, scheduler: Scheduler) -> Scheduler:
    """Deploy nothing where the table holds no row of the kind: that too is an honest zero."""

    def decide(key, observation, memory):
        plan, memory = scheduler.decide(key, observation, memory)
        idle = empty_plan(plan.group.shape[-1])
        return jax.tree.map(lambda x, y: jnp.where(some, x, y[None]), plan, idle), memory

    return scheduler._replace(decide=decide)


def make_best_static(setup: Setup) -> Scheduler:
    """The best row of all at base: what a careful engineer deploys once."""
    return _never_moves(setup, jnp.ones_like(setup.table.mask))


def make_single_domain(setup: Setup) -> Scheduler:
    """The best plan inside the best single domain: the classical way, exhaustively searched."""
    return _never_moves(setup, setup.table.single_domain)


def make_static_even_split(setup: Setup) -> Scheduler:
    """All domains alike: one even pipeline in the file's order, or one replica each, the better."""
    return _never_moves(setup, setup.table.even_split)
