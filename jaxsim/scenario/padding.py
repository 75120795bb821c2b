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
# Tables and menus of lower choices are filled up to multiples of these.
ROWS_STEP, PAIRS_STEP, CHOICES_STEP = 96, 256, 8


def padded_world(world: AnyWorld, spec: ClusterSpec, n_domains: int) -> AnyWorld:
    """The world of one job or of many on `spec`, with masked domains up to `n_domains`, which no plan
    uses, and that of one job with masked rows and repeated choices. Raises InputError for a cluster of
    more domains."""
    problem = padded_problem(world.problem, spec, n_domains)
    if isinstance(world, World):
        menu = problem.choices
        every = np.minimum(np.arange(filled(menu.size, CHOICES_STEP)), menu.size - 1)
        problem = problem.replace(choices=take(menu, every))
        table = world.table.replace(plans=padded_plans(world.table.plans, n_domains))
        family = padded_plans(world.family, n_domains)
        table = filled_table(table, menu.size, len(every))
        return world.replace(problem=problem, table=table, family=family)
    tables = world.tables.replace(plans=padded_plans(world.tables.plans, n_domains))
    return world.replace(problem=problem, tables=tables)


def filled_table(table: PlanTable, n_choices: int, n_filled: int) -> PlanTable:
    """A table with masked rows and repeated pairs up to multiples of ROWS_STEP and PAIRS_STEP, whose
    menu of `n_choices` has become one of `n_filled`; nobody plays the choices that were added."""
    there = jnp.arange(filled(table.size, ROWS_STEP)) < table.size
    rows = take(table.replace(pairs=None), np.minimum(np.arange(len(there)), table.size - 1))
    pairs = table.pairs
    if pairs is not None:
        row, choice = np.divmod(np.asarray(pairs), n_choices)
        again = filled(len(pairs), PAIRS_STEP)
        pairs = jnp.asarray(repeated(row * n_filled + choice, again), jnp.int32)

    def own(allowed):
        return jnp.pad(allowed & there[:, None], [(0, 0), (0, n_filled - n_choices)])

    return rows.replace(
        mask=rows.mask & there,
        base_rate=jnp.where(there, rows.base_rate, 0.0),
        single_domain=rows.single_domain & there,
        even_split=rows.even_split & there,
        candidates_of={name: own(allowed) for name, allowed in rows.candidates_of.items()},
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
