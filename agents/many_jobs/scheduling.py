"""Schedulers of one job, lifted to many: the jobs decide one after another, in order of arrival.

Each sees the GPUs that the others leave: the earlier ones by what they have just decided, the later
ones by what they hold. No decision pushes anybody out, and who finds no room waits. (The cluster may:
a job that local load has shrunk grows again when that leaves, over jobs that came after it.) While
several jobs are there, none asks for more than an equal part of the GPUs or the smallest plan of its
rule, so that a greedy rule does not keep the cluster for the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array

from agents.oracles import Truth
from agents.protocol import Scheduler, Setup, make_setup
from jaxsim.env import ActionMask, EnvParams, Observation, allocate_gpus, held_gpus
from jaxsim.plan import Plan, needs_reconfiguration
from jaxsim.planning import PlanTable
from jaxsim.scenario import JobsWorld
from jaxsim.step_time import NetworkView, job_step_cost

# One job's turn: (key, setup, observation, memory, others, *truth) -> (plan, memory), as a
# scheduler's `decide` on what the others leave.
Turn = Callable[..., tuple[Plan, Any]]
# [P] bool, the rows of a table that a rule may play.
Rows = Callable[[PlanTable], Array]


def every_row(table: PlanTable) -> Array:
    """[P] bool, for rules that may play them all."""
    return jnp.ones_like(table.mask)


@struct.dataclass
class JobsSetup:
    """What every scheduler of many jobs is given once."""

    common: Setup  # work with leaves [J, ...], tables with leaves [U, P, ...]
    kind: Array  # [J] int32, each job's table

    def of(self, job: Array, others: Array) -> Setup:
        """The setup of one job, given the GPUs [K] that the others hold."""
        common, usual = self.common, self.common.usual
        left = jnp.maximum(usual.gpus_available - others, 0)
        return common.replace(
            problem=common.problem.of(_row(common.problem.work, job)),
            table=_row(common.table, self.kind[job]),
            usual=usual.replace(gpus_available=left),
        )


@struct.dataclass
class Others:
    """What one job knows of the other jobs at its turn."""

    gpus: Array  # [J, K] int32 held, none by the job itself
    observation: Observation  # of all jobs


def make_jobs_setup(params: EnvParams, world: JobsWorld) -> JobsSetup:
    """Collect a scenario's public facts, as `make_setup` does for one job."""
    return JobsSetup(make_setup(params, world.tables).replace(problem=params.problem), world.kind)


def lifted(
    make: Callable[[Setup], Scheduler], setup: JobsSetup, settled: bool, rows: Rows = every_row
) -> Scheduler:
    """Many jobs under a scheduler of one, which plays some `rows`; `settled` = a job that is deployed
    stays where it is, as static plans do. The truth of an oracle is the views of all intervals."""
    n_jobs, n_domains = setup.kind.shape[0], setup.common.problem.cluster.mask.shape[0]
    nobody = jnp.zeros((n_domains,), jnp.int32)

    def init(key):
        def one(key, job):
            return make(setup.of(job, nobody)).init(key)

        return jax.vmap(one)(jax.random.split(key, n_jobs), jnp.arange(n_jobs))

    def turn(key, own, seen, memory, others, *truth):
        if settled:
            deployed = jnp.any(seen.target.used, axis=1)
            seen = seen.replace(mask=seen.mask.replace(retarget=seen.mask.retarget & ~deployed))
        truth = [_for_one(views, jnp.sum(others.gpus, axis=0)) for views in truth]
        plan, memory = make(own).decide(key, seen, memory, *truth)
        return jax.tree.map(lambda x: x[0], plan), memory

    oracle = make(setup.of(jnp.int32(0), nobody)).oracle
    return Scheduler(init, in_turn(setup, turn, rows), oracle)


def _for_one(views: NetworkView, others: Array) -> Truth:
    """What an oracle that reads the coming interval is told: the views [T, ...] less the GPUs [K]
    of the other jobs. No optimum over all intervals is known for many jobs."""
    left = jnp.maximum(views.gpus_available - others[None], 0)
    return Truth(views.replace(gpus_available=left), None, None, None, None, None)


def in_turn(
    setup: JobsSetup, turn: Turn, rows: Rows = every_row
) -> Callable[..., tuple[Plan, Any]]:
    """`decide` for many jobs from what one of them does at its turn, of the `rows` it may play."""

    def decide(key, observation, memory, *truth):
        n_jobs = setup.kind.shape[0]
        available = observation.view.gpus_available
        present = observation.job_mask
        holding = allocate_gpus(observation.target, present, available)
        n_present = jnp.maximum(jnp.sum(present.astype(jnp.int32)), 1)
        equal_part = jnp.sum(available) // n_present

        def body(holding, scanned):
            job, own_key, own_memory = scanned
            others = jnp.where((jnp.arange(n_jobs) == job)[:, None], 0, holding)
            taken = jnp.sum(others, axis=0)
            left = jnp.maximum(available - taken, 0)
            seen = observation_of(observation, job, left)
            target = jax.tree.map(lambda x: x[0], seen.target)

            def decides():
                own = _within(setup.of(job, taken), rows, target, equal_part)
                crowd = Others(others, observation)
                plan, memory = turn(own_key, own, seen, own_memory, crowd, *truth)
                return _if_room(own, plan, target, seen.view), memory

            plan, own_memory = jax.lax.cond(
                present[job], decides, lambda: (_row(observation.target, job), own_memory)
            )
            held = jnp.where(present[job], held_gpus(plan, left), 0)
            return holding.at[job].set(held), (plan, own_memory)

        keys = jax.random.split(key, n_jobs)
        return jax.lax.scan(body, holding, (jnp.arange(n_jobs), keys, memory))[1]

    return decide


def observation_of(observation: Observation, job: Array, gpus: Array) -> Observation:
    """What one job sees: itself on a job axis of one, and `gpus` [K] as the free ones."""

    def own(tree):
        return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, job, 1), tree)

    names = ("job_nodes", "plan", "target", "moving", "transition")
    names += ("since_switch", "since_sync", "steps_done", "job_mask")
    mask = observation.mask
    return observation.replace(
        **{name: own(getattr(observation, name)) for name in names},
        view=observation.view.replace(gpus_available=gpus),
        mask=ActionMask(own(mask.retarget), mask.domains & (gpus > 0), own(mask.lower)),
    )


def _row(tree: Any, index: Array) -> Any:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), tree)


def _within(own: Setup, rows: Rows, target: Plan, equal_part: Array) -> Setup:
    """The setup with the rows that ask for no more than an equal part, than the smallest row that
    the rule may play, or than the job asks for already."""
    asked = jnp.sum(jax.vmap(lambda plan: plan.gpus)(own.table.plans), axis=1)
    playable = own.table.mask & rows(own.table)
    smallest = jnp.min(jnp.where(playable, asked, jnp.iinfo(jnp.int32).max))
    most = jnp.maximum(jnp.maximum(equal_part, smallest), jnp.sum(target.gpus))
    return own.replace(table=own.table.replace(mask=own.table.mask & (asked <= most)))


def _if_room(own: Setup, plan: Plan, target: Plan, view: NetworkView) -> Plan:
    """The plan; where it would stop the job for a place at which nothing runs, the target instead.
    A job without a target waits."""
    cost = job_step_cost(plan, own.problem, view)
    stays = needs_reconfiguration(target, plan) & ~cost.runs
    return jax.tree.map(lambda a, b: jnp.where(stays, a, b), target, plan)
