"""Per-job schedulers: every job has a scheduler of one job, and the jobs decide one after another.

Jobs decide in order of arrival. Each sees the GPUs that the others leave: the earlier ones by what
they have just decided, the later ones by what they hold. No decision pushes anybody out, and who
finds no room waits. (The cluster may: a job that local load has shrunk grows again when that leaves,
over jobs that came after it.) While several jobs are there, none asks for more than an equal part of
the GPUs or the smallest plan of its rule, so that a greedy rule does not keep the cluster for the
first of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Bool, Int, Key

from agents.oracles import Truth
from agents.protocol import Scheduler, Setup, make_setup
from jaxsim.env import ActionMask, EnvParams, Observation, allocate_gpus, held_gpus
from jaxsim.plan import Plan, needs_reconfiguration
from jaxsim.planning import PlanTable
from jaxsim.pytree import Pytree
from jaxsim.scenario import JobsWorld
from jaxsim.step_time import NetworkView, job_step_cost
from jaxsim.trees import stack, take


class JobsSetup(Pytree):
    """What every scheduler of many jobs is given once."""

    common: Setup  # work with leaves [J, ...], tables with leaves [U, P, ...]
    kind: Int[Array, "*batch J"]  # each job's table

    def of(self, job: Int[Array, ""], others: Int[Array, " K"]) -> Setup:
        """The setup of one job, given the GPUs [K] that the others hold."""
        common, prior = self.common, self.common.prior
        left = jnp.maximum(prior.gpus_available - others, 0)
        return common.replace(
            problem=common.problem.of(_row(common.problem.work, job)),
            table=_row(common.table, self.kind[job]),
            prior=prior.replace(gpus_available=left),
        )


class OtherJobs(Pytree):
    """What one job knows of the other jobs when it decides."""

    gpus: Int[Array, "*batch J K"]  # held, none by the job itself
    observation: Observation  # of all jobs


class DecidingJob(NamedTuple):
    """One job at its decision, with what the other jobs leave it."""

    number: Array  # [] int32, its place in the order of arrival
    setup: Setup  # of a cluster without the GPUs that the other jobs hold
    observation: Observation  # job axis of one, the same GPUs left out
    others: OtherJobs


def make_jobs_setup(params: EnvParams, world: JobsWorld) -> JobsSetup:
    """Collect a scenario's public facts, as `make_setup` does for one job."""
    return JobsSetup(make_setup(params, world.tables).replace(problem=params.problem), world.kind)


class JobsScheduler(Pytree, Scheduler):
    """A scheduler of many jobs that asks them one after another: subclasses write `decide_one`.

    Attributes:
        setup: set by `bind`
    """

    setup: JobsSetup = struct.field(default=None, kw_only=True)

    def bind(self, setup: JobsSetup) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.replace(setup=setup)

    def rows(self, job: Int[Array, ""], table: PlanTable) -> Bool[Array, " P"]:
        """[P] bool, the rows of a job's table that its rule may play."""
        del job
        return jnp.ones_like(table.mask)

    def order(self, observation: Observation) -> Int[Array, " J"]:
        """[J] int32, the jobs in the order in which they decide: that of arrival."""
        del observation
        return jnp.arange(self.setup.kind.shape[0])

    def decide_one(
        self,
        key: Key[Array, ""],
        job: DecidingJob,
        memory: Any,
        *truth: Any,
    ) -> tuple[Plan, Any]:
        """The plan of one job, no job axis, and its next memory."""
        raise NotImplementedError

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: Any, *truth: Any
    ) -> tuple[Plan, Any]:
        """`truth`, for oracles, is the views of all intervals."""
        n_jobs = self.setup.kind.shape[0]
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
            target = take(seen.target, 0)

            def decides():
                own = self.setup.of(job, taken)
                own = _within(own, self.rows(job, own.table), target, equal_part)
                deciding = DecidingJob(job, own, seen, OtherJobs(others, observation))
                plan, memory = self.decide_one(own_key, deciding, own_memory, *truth)
                return _if_room(own, plan, target, seen.view), memory

            plan, own_memory = jax.lax.cond(
                present[job], decides, lambda: (_row(observation.target, job), own_memory)
            )
            held = jnp.where(present[job], held_gpus(plan, left), 0)
            return holding.at[job].set(held), (plan, own_memory)

        keys, order = jax.random.split(key, n_jobs), self.order(observation)
        first_to_last = jax.tree.map(lambda x: x[order], (keys, memory))
        decided = jax.lax.scan(body, holding, (order, *first_to_last))[1]
        return jax.tree.map(lambda x: jnp.zeros_like(x).at[order].set(x), decided)


class PerJobScheduler(JobsScheduler):
    """Every job is decided by a scheduler of one job. A fixed one never moves a job it has deployed.

    Attributes:
        each: schedulers of one job, leaves [J, ...]
    """

    each: Scheduler

    @classmethod
    def of(cls, schedulers: Sequence[Scheduler]) -> Self:
        """From one scheduler for each job, all of one class, not bound to a setup."""
        return cls(stack(schedulers))

    @property
    def oracle(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Do the jobs' schedulers read the future?"""
        return self.each.oracle

    def rows(self, job: Int[Array, ""], table: PlanTable) -> Bool[Array, " P"]:
        candidates = getattr(self.each, "candidates", None)
        if candidates is None:
            return jnp.ones_like(table.mask)
        return jnp.any(_row(candidates, job), axis=1)

    def init(self, key: Key[Array, ""]) -> Any:
        """One memory for each job, leaves [J, ...]."""
        n_jobs = self.setup.kind.shape[0]
        nobody = jnp.zeros_like(self.setup.common.problem.cluster.gpus)

        def one(key, job, scheduler):
            return scheduler.bind(self.setup.of(job, nobody)).init(key)

        return jax.vmap(one)(jax.random.split(key, n_jobs), jnp.arange(n_jobs), self.each)

    def decide_one(
        self,
        key: Key[Array, ""],
        job: DecidingJob,
        memory: Any,
        *truth: Any,
    ) -> tuple[Plan, Any]:
        seen, own = job.observation, _row(self.each, job.number)

        def decides(seen: Observation) -> tuple[Plan, Any]:
            known = [_for_one(views, jnp.sum(job.others.gpus, axis=0)) for views in truth]
            return own.bind(job.setup).decide(key, seen, memory, *known)

        if self.each.fixed:
            deployed = jnp.any(seen.target.used, axis=1)
            mask = seen.mask.replace(retarget=seen.mask.retarget & ~deployed)
            seen = seen.replace(mask=mask)
        kept = own.stays(job.setup, seen)
        if kept is None:
            plan, memory = decides(seen)
        else:
            may_move = seen.mask.retarget[0] & ~seen.moving[0]
            plan, memory = jax.lax.cond(may_move, lambda: decides(seen), lambda: (kept, memory))
        return take(plan, 0), memory


def _for_one(views: NetworkView, others: Array) -> Truth:
    """The truth for an oracle that reads the coming interval: the views [T, ...] less the GPUs [K]
    of the other jobs. No optimum over all intervals is known for many jobs."""
    left = jnp.maximum(views.gpus_available - others[None], 0)
    unknown: Any = None
    return Truth(views.replace(gpus_available=left), *[unknown] * 5)


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


def _within(own: Setup, rows: Array, target: Plan, equal_part: Array) -> Setup:
    """The setup with the rows that ask for no more than an equal part, than the smallest of the `rows`
    [P] that the rule may play, or than the job asks for already."""
    asked = jnp.sum(jax.vmap(lambda plan: plan.gpus)(own.table.plans), axis=1)
    playable = own.table.mask & rows
    smallest = jnp.min(jnp.where(playable, asked, jnp.iinfo(jnp.int32).max))
    most = jnp.maximum(jnp.maximum(equal_part, smallest), jnp.sum(target.gpus))
    return own.replace(table=own.table.replace(mask=own.table.mask & (asked <= most)))


def _if_room(own: Setup, plan: Plan, target: Plan, view: NetworkView) -> Plan:
    """The plan; where it would stop the job for a place at which nothing runs, the target instead.
    A job without a target waits."""
    schedules = own.problem.choices.schedules
    cost = job_step_cost(plan, own.problem, view, schedules=schedules)
    stays = needs_reconfiguration(target, plan) & ~cost.runs
    return jax.tree.map(lambda a, b: jnp.where(stays, a, b), target, plan)
