"""The protocol of all schedulers, and what schedulers of a plan table share.

    scheduler = agents.make("hysteresis", world, params)
    memory = scheduler.init(key)
    plan, memory = scheduler.decide(key, observation, memory)

A scheduler knows the public facts of a scenario from its `Setup` and the present from the observation.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jaxsim.env import EnvParams, Observation
from jaxsim.plan import Plan, Problem, empty_plan, needs_reconfiguration
from jaxsim.planning import PlanTable, choice_rates, complete
from jaxsim.pytree import Pytree
from jaxsim.scenario import mean_view
from jaxsim.step_time import NetworkView, begin_transition, transition_s
from jaxsim.trees import take


class Setup(Pytree):
    """What every scheduler is given once: the cluster file, the job, the table, the menu."""

    problem: Problem  # one job, no job axis
    table: PlanTable
    prior: NetworkView  # base bandwidth and the configured mean load
    interval_s: Float[Array, "*batch"]  # [s]


def make_setup(params: EnvParams, table: PlanTable, job: int = 0) -> Setup:
    """Collect a scenario's public facts. The setup holds nothing of the scenario's future.

    A load trace is future: of local jobs only the configured share is known ahead.
    """
    no_trace = params.load.replace(trace=jnp.zeros_like(params.load.trace))
    return Setup(
        problem=params.problem.job(job),
        table=table,
        prior=mean_view(params.replace(load=no_trace)),
        interval_s=params.interval_s,
    )


@runtime_checkable
class Scheduler(Protocol):
    """Who decides: a frozen pytree (`jaxsim.pytree.Pytree`) with three pure methods.

    Its numbers are leaves. One compiled program therefore serves all values of a class, and
    `jax.vmap` over a leaf tunes it.

    `bind` gives a scheduler the setup of one scenario and computes what depends on nothing else.
    `init` returns the first memory, any pytree. `decide` is called before every interval: it returns
    the plan that should be in force, leaves [J, ...], and the next memory. A plan that differs from
    the one in force starts a reconfiguration; the environment carries it out.

    Most schedulers choose a row of the plan table: see `TableScheduler`, which leaves only `choose`
    to be written. This one moves when another row is faster by a margin:

        class Greedy(TableScheduler):
            margin: float = 1.2

            def choose(self, key, seen, memory):
                rate = seen.now.rate
                best = jnp.argmax(rate).astype(jnp.int32)
                move = seen.idle | (rate[best] > self.margin * rate[seen.row])
                return jnp.where(move, best, seen.row), memory

    A line in `agents.registry.ENTRIES` gives it a name.
    """

    # Oracles read the future: `decide` takes the truth as a fourth argument.
    oracle: ClassVar[bool] = False
    # A fixed scheduler never moves a job that is deployed.
    fixed: ClassVar[bool] = False

    def bind(self, setup: Setup) -> Self:
        """The scheduler for one scenario."""
        ...

    def init(self, key: Key[Array, ""]) -> Any:
        """The memory before the first decision."""
        ...

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: Any, *truth: Any
    ) -> tuple[Plan, Any]:
        """The plan for the coming interval, leaves [J, ...], and the next memory."""
        ...


class Estimate(Pytree):
    """A table scored under one view of the network."""

    # [training steps / s], 0 where the plan cannot run or the row is padding
    rate: Float[Array, "*batch P"]
    choice: Int[Array, "*batch P"]  # the lower choice that gives this rate


class EvaluatedTable(Pytree):
    """The plan table as a scheduler sees it before a decision."""

    row: Int[Array, "*batch"]  # of the plan in force, or of the target while moving
    idle: Bool[Array, "*batch"]  # nothing was deployed yet: `row` means nothing
    may_switch: Bool[Array, "*batch"]
    now: Estimate  # under the measured view
    # [s] to reach each row at the measured rates, 0 for the row in force
    switch_s: Float[Array, "*batch P"]
    view: NetworkView
    t: Int[Array, "*batch"]


def table_rates(setup: Setup, views: NetworkView) -> Float[Array, "T P V"]:
    """[T, P, V] training steps per second of every row and lower choice under views [T, ...], 0 where
    illegal."""
    rates = choice_rates(setup.table.plans, views, setup.problem)
    return jnp.where(setup.table.mask[None, :, None], rates, 0.0)


def measured_rates(setup: Setup, observation: Observation) -> Float[Array, "P V"]:
    """[P, V] `table_rates` under the measured view."""
    if observation.rates is not None:
        return jnp.where(setup.table.mask[:, None], observation.rates, 0.0)
    return table_rates(setup, jax.tree.map(lambda x: x[None], observation.view))[0]


def best_choices(
    rates: Float[Array, "*batch P V"], candidates: Bool[Array, "P V"] | None = None
) -> Estimate:
    """Every row with the lower choice that suits it best, given rates [..., P, V]. Only `candidates`
    [P, V] bool count, all if None."""
    rates = rates if candidates is None else jnp.where(candidates, rates, 0.0)
    return Estimate(rates.max(axis=-1), jnp.argmax(rates, axis=-1).astype(jnp.int32))


def score_table(
    setup: Setup, view: NetworkView, candidates: Bool[Array, "P V"] | None = None
) -> Estimate:
    """Score every row under a view, each with the best of its `candidates` [P, V]."""
    rates = table_rates(setup, jax.tree.map(lambda x: x[None], view))[0]
    return best_choices(rates, candidates)


def find_row(table: PlanTable, plan: Plan) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """[] int32 row that equals the plan but for free fields, and [] bool whether there is one."""
    same = ~jax.vmap(needs_reconfiguration, in_axes=(0, None))(table.plans, plan) & table.mask
    return jnp.argmax(same).astype(jnp.int32), jnp.any(same)


def pick_row(table: PlanTable, row: Int[Array, ""]) -> Plan:
    """The plan of a row."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, row, keepdims=False), table.plans)


def switch_times(setup: Setup, plan: Plan, view: NetworkView) -> Float[Array, " P"]:
    """[P] [s] a reconfiguration from `plan` to each row takes at the view's rates."""
    rate = view.bandwidth_gb_per_s * setup.problem.calibration.wan_efficiency

    def one(target):
        needed = needs_reconfiguration(plan, target)
        duration = transition_s(begin_transition(plan, target, setup.problem), rate)
        return jnp.where(needed, duration, 0.0)

    return jax.vmap(one)(setup.table.plans)


def evaluate_table(
    setup: Setup,
    observation: Observation,
    job: int = 0,
    candidates: Bool[Array, "P V"] | None = None,
) -> EvaluatedTable:
    """Score the table on what was observed; `candidates` [P, V] bool as in `best_choices`."""
    plan, target = (take(p, job) for p in (observation.plan, observation.target))
    row, found = find_row(setup.table, target)
    return EvaluatedTable(
        row=row,
        idle=~found,
        may_switch=observation.mask.retarget[job] & ~observation.moving[job],
        now=best_choices(measured_rates(setup, observation), candidates),
        switch_s=switch_times(setup, plan, observation.view),
        view=observation.view,
        t=observation.t,
    )


def carry_out(setup: Setup, row: Int[Array, ""], choice: Int[Array, ""], view: NetworkView) -> Plan:
    """The row's plan with the lower choice and balanced shares, with a job axis of one."""
    plan, _ = complete(pick_row(setup.table, row), choice, setup.problem, view)
    return jax.tree.map(lambda x: x[None], plan)


class TableScheduler(Pytree, Scheduler):
    """A scheduler that picks a row of the plan table by a rule: subclasses write `choose`.

    The lower level is the same for all of them. In every interval it takes the lower choice that is
    best under the measurement.

    Attributes:
        candidates: [P, V] bool, the rows and lower choices that the scheduler may play; None = all.
            Where no row of the table is a candidate, nothing is deployed
        setup: set by `bind`
    """

    candidates: Bool[Array, "*batch P V"] | None = struct.field(default=None, kw_only=True)
    setup: Setup = struct.field(default=None, kw_only=True)

    def bind(self, setup: Setup) -> Self:
        return self.replace(setup=setup)

    def init(self, key: Key[Array, ""]) -> Any:
        del key
        return ()

    def choose(
        self, key: Key[Array, ""], seen: EvaluatedTable, memory: Any
    ) -> tuple[Int[Array, ""], Any]:
        """[] int32, the row to be in, and the next memory. The row is ignored while a move lasts."""
        raise NotImplementedError

    @property
    def rows(self) -> Bool[Array, " P"]:
        """[P] bool, the rows that the scheduler may play."""
        mask = self.setup.table.mask
        return mask if self.candidates is None else jnp.any(self.candidates, axis=1) & mask

    def decide(
        self, key: Key[Array, ""], observation: Observation, memory: Any, *truth: Any
    ) -> tuple[Plan, Any]:
        del truth
        seen = evaluate_table(self.setup, observation, candidates=self.candidates)
        wanted, memory = self.choose(key, seen, memory)
        row = jnp.where(seen.may_switch, wanted, seen.row)
        plan = carry_out(self.setup, row, seen.now.choice[row], observation.view)
        if self.candidates is not None:
            some, idle = jnp.any(self.rows), empty_plan(plan.group.shape[-1])
            plan = jax.tree.map(lambda x, y: jnp.where(some, x, y[None]), plan, idle)
        return plan, memory


def amortised_gain(
    seen: EvaluatedTable,
    rate: Float[Array, " P"],
    interval_s: Float[Array, ""],
    horizon: Float[Array, ""],
) -> Float[Array, " P"]:
    """[P] training steps over `horizon` intervals if each row were switched to now and never left.

    `rate` [P] is what the scheduler believes of the future; time spent moving is lost. Where nothing
    would be done within the horizon, because the plan in force cannot run and every move takes longer,
    the horizon ends one interval after the quickest move: to wait would be to stand still for ever.
    """
    span = horizon * interval_s
    quickest = jnp.min(jnp.where(rate > 0, seen.switch_s, jnp.inf))
    too_far = (quickest >= span) & jnp.isfinite(quickest)
    span = jnp.where(too_far, quickest + interval_s, span)
    return rate * jnp.maximum(span - seen.switch_s, 0.0)
