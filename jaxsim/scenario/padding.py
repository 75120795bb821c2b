"""Worlds with domains that are not there and rows that nobody plays, so that clusters of several sizes
share compiled programs.

What is drawn for a padded world is what is drawn for the world itself, and what is played in it comes
to the same.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxsim.cluster import ClusterSpec, padded_calibration
from jaxsim.plan import Plan, Problem, empty_plan
from jaxsim.planning import PlanTable, filled, repeated
from jaxsim.scenario.jobs import JobsWorld
from jaxsim.scenario.world import World
from jaxsim.trees import take

AnyWorld = TypeVar("AnyWorld", World, JobsWorld)
ROWS_STEP, PAIRS_STEP = 96, 256  # tables are filled up to multiples of these


def padded_world(world: AnyWorld, spec: ClusterSpec, n_domains: int) -> AnyWorld:
    """The world of one job or of many on `spec`, with masked domains up to `n_domains`, which no plan
    uses, and that of one job with masked rows. Raises InputError for a cluster of more domains."""
    problem = padded_problem(world.problem, spec, n_domains)
    if isinstance(world, World):
        table = world.table.replace(plans=padded_plans(world.table.plans, n_domains))
        family = padded_plans(world.family, n_domains)
        return world.replace(problem=problem, table=filled_table(table), family=family)
    tables = world.tables.replace(plans=padded_plans(world.tables.plans, n_domains))
    return world.replace(problem=problem, tables=tables)


def filled_table(table: PlanTable) -> PlanTable:
    """A table with masked rows and repeated pairs up to multiples of ROWS_STEP and PAIRS_STEP."""
    there = jnp.arange(filled(table.size, ROWS_STEP)) < table.size
    rows = take(table.replace(pairs=None), np.minimum(np.arange(len(there)), table.size - 1))
    pairs = table.pairs
    if pairs is not None:
        pairs = jnp.asarray(repeated(np.asarray(pairs), filled(len(pairs), PAIRS_STEP)))
    return rows.replace(
        mask=rows.mask & there,
        base_rate=jnp.where(there, rows.base_rate, 0.0),
        single_domain=rows.single_domain & there,
        even_split=rows.even_split & there,
        candidates_of={name: own & there[:, None] for name, own in rows.candidates_of.items()},
        pairs=pairs,
    )


def padded_problem(problem: Problem, spec: ClusterSpec, n_domains: int) -> Problem:
    """A problem on `spec`, with masked domains up to `n_domains`."""
    work, cluster = problem.work, spec.to_arrays(n_domains)
    if work.data is not None:
        nowhere = [(0, 0)] * (work.data.at.ndim - 1) + [(0, n_domains - spec.n_domains)]
        work = work.replace(data=work.data.replace(at=jnp.pad(work.data.at, nowhere)))
    calibration = padded_calibration(problem.calibration, n_domains)
    return problem.replace(work=work, cluster=cluster, calibration=calibration)


def padded_plans(plans: Plan, n_domains: int) -> Plan:
    """Plans [..., K] with `n_domains` domains and as many groups, of which the last are unused."""
    missing = n_domains - plans.group.shape[-1]
    if not missing:
        return plans

    def fill(x, empty):
        if not np.ndim(empty):  # one figure for the whole plan
            return x
        rest = jnp.broadcast_to(empty[-missing:], (*x.shape[:-1], missing))
        return jnp.concatenate([x, rest], axis=-1)

    return jax.tree.map(fill, plans, empty_plan(n_domains))
