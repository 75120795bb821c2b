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

from jaxsim.env import EnvParams, Observation, Samples
from jaxsim.learning import lower_end
from jaxsim.plan import Plan, Problem, empty_plan, needs_reconfiguration
from jaxsim.planning import (
    NEVER,
    Objective,
    PlanTable,
    Worth,
    choice_rates,
    choice_worths,
    complete,
    over_plans,
    row_rates,
    row_worths,
    same_gpus,
)
from jaxsim.pytree import Pytree
from jaxsim.scenario import mean_view
from jaxsim.step_time import NetworkView, begin_transition, transition_s
from jaxsim.trees import take


class ScoredTable(Pytree):
    """The table's rates under what a `Setup` expects, where they were computed for all schedulers."""

    prior: Float[Array, "*batch P V"]  # `table_rates` under the prior
    outlook: Float[Array, "*batch W P V"]  # `outlook_rates`
    # and under the states before, by which lower choices go; None where free GPUs never change
    before: Float[Array, "*batch W P V"] | None = None


class Setup(Pytree):
    """What every scheduler is given once: the cluster file, the job, the table, the menu."""

    problem: Problem  # one job, no job axis
    table: PlanTable
    prior: NetworkView  # base bandwidth and the configured mean load
    interval_s: Float[Array, "*batch"]  # [s]
    # What is to be maximised, None = progress, and the progress [training steps] of an interval that
    # counts as one. "Rates" below are training steps per second, or the objective's reward per second.
    objective: Objective | None = None
    progress_ref: Float[Array, "*batch"] | None = None
    # What links and free GPUs may look like, W samples; None = `prior` alone is known
    outlook: Samples | None = None
    # The table under the prior and the outlook; None = schedulers score it themselves
    scored: ScoredTable | None = None
    gpus_vary: bool = struct.field(pytree_node=False, default=True)  # may free GPUs change?

    @property
    def reference(self) -> Float[Array, "*batch"]:
        """`progress_ref` where there is an objective."""
        if self.progress_ref is None:
            raise ValueError("an objective needs progress_ref")
        return self.progress_ref


def make_setup(params: EnvParams, table: PlanTable, job: int = 0) -> Setup:
    """Collect a scenario's public facts. The setup holds nothing of the scenario's future.

    A load trace is future: of local jobs only the configured share is known ahead.
    """
    no_trace = params.load.replace(trace=jnp.zeros_like(params.load.trace))
    problem = params.problem.job(job)
    return Setup(
        # What tokens are worth in this scenario is nobody's to know: plans are chosen by the lower end.
        problem=problem.replace(learning=lower_end(problem.learning)),
        table=table,
        prior=mean_view(params.replace(load=no_trace)),
        interval_s=params.interval_s,
        objective=params.objective,
        progress_ref=None if params.objective is None else params.progress_ref[job],
        outlook=params.outlook,
        gpus_vary=params.gpus_vary,
    )


@runtime_checkable
class Scheduler(Protocol):
    """Who decides: a frozen pytree (`jaxsim.pytree.Pytree`) with three pure methods, and a fourth,
    `stays`, that need not be written.

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
    fixed: ClassVar[bool] = False  # never moves a job that is deployed
    scores_table: ClassVar[bool] = True  # before it decides, unless `Observation.rates` holds that

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

    def stays(self, setup: Setup, observation: Observation) -> Plan | None:
        """What `decide` comes to where the job may not be moved, if that can be told for less, with no
        memory and before `bind`; None = ask `decide`."""
        del setup, observation
        return None


class Estimate(Pytree):
    """A table scored under one view of the network."""

    # [training steps / s] or [reward / s]: 0 cannot run; padding is 0, under an objective NEVER
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
    # [reward] that a move to each row costs at once; None where there is no objective
    switch_worth: Float[Array, "*batch P"] | None = None


def table_rates(
    setup: Setup, views: NetworkView, balanced: NetworkView | None = None
) -> Float[Array, "T P V"]:
    """[T, P, V] training steps per second of every row and lower choice under views [T, ...], 0 where
    illegal or not among the table's `pairs`; under an objective the reward per second. Batch shares
    are balanced on `balanced` [T, ...], on the views themselves if None."""
    views = same_gpus(views, unless=setup.gpus_vary)
    args, last = (setup.table.plans, views, setup.problem), (setup.table.pairs, balanced)
    if setup.objective is None:
        rates = choice_rates(*args, *last)
    else:
        scale = (setup.objective, setup.reference, setup.interval_s)
        rates = choice_worths(*args, *scale, *last)
    return jnp.where(setup.table.mask[None, :, None], rates, nothing(setup))


def prior_rates(setup: Setup) -> Float[Array, "P V"]:
    """[P, V] `table_rates` under the prior."""
    if setup.scored is not None:
        return setup.scored.prior
    return table_rates(setup, jax.tree.map(lambda x: x[None], setup.prior))[0]


def outlook_rates(setup: Setup) -> Float[Array, "W P V"]:
    """[W, P, V] `table_rates` under the outlook; of the prior alone, W = 1, where none is known.

    Where free GPUs change, batch shares are balanced on the state before, as they are in play: replicas
    side by side wait for the one whose GPUs were taken. Links that move cost them some per cent.
    """
    if setup.outlook is None:
        return prior_rates(setup)[None]
    if setup.scored is not None:
        return setup.scored.outlook
    return table_rates(setup, setup.outlook.now, setup.outlook.before if setup.gpus_vary else None)


def score_rows(
    setup: Setup,
    plans: Plan,
    choice: Int[Array, "T R"] | Int[Array, " R"],
    views: NetworkView,
    balanced: NetworkView | None = None,
) -> tuple[Float[Array, "T R"], Worth | None]:
    """[T, R] rates of plans [R, ...], each with one lower choice, or one per view [T, ...], and under
    an objective what they are made of; `balanced` as in `table_rates`."""
    views = same_gpus(views, unless=setup.gpus_vary)
    if setup.objective is None:
        return row_rates(plans, choice, views, setup.problem, balanced), None
    scale = (setup.objective, setup.reference, setup.interval_s)
    worth = row_worths(plans, choice, views, setup.problem, *scale, balanced)
    return worth.trained + worth.held, worth


def nothing(setup: Setup) -> float:
    """The rate of what must not be chosen."""
    return 0.0 if setup.objective is None else NEVER


def measured_rates(setup: Setup, observation: Observation) -> Float[Array, "P V"]:
    """[P, V] `table_rates` under the measured view."""
    if observation.rates is not None:
        return jnp.where(setup.table.mask[:, None], observation.rates, nothing(setup))
    return table_rates(setup, jax.tree.map(lambda x: x[None], observation.view))[0]


def best_choices(
    rates: Float[Array, "*batch P V"],
    candidates: Bool[Array, "P V"] | None = None,
    otherwise: float = 0.0,
) -> Estimate:
    """Every row with the lower choice that suits it best, given rates [..., P, V]. Only `candidates`
    [P, V] bool count, all if None; the rate of the others is `otherwise`."""
    rates = rates if candidates is None else jnp.where(candidates, rates, otherwise)
    return Estimate(rates.max(axis=-1), jnp.argmax(rates, axis=-1).astype(jnp.int32))


def score_table(
    setup: Setup, view: NetworkView, candidates: Bool[Array, "P V"] | None = None
) -> Estimate:
    """Score every row under a view, each with the best of its `candidates` [P, V]."""
    rates = table_rates(setup, jax.tree.map(lambda x: x[None], view))[0]
    return best_choices(rates, candidates, nothing(setup))


def score_prior(setup: Setup, candidates: Bool[Array, "P V"] | None = None) -> Estimate:
    """`score_table` under the prior."""
    return best_choices(prior_rates(setup), candidates, nothing(setup))


def find_row(table: PlanTable, plan: Plan) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """[] int32 row that equals the plan but for free fields, and [] bool whether there is one; of rows
    that differ in the bits that are sent alone, the plan's own."""
    plans = table.plans
    differs = over_plans(needs_reconfiguration, (0, None), plan.group.shape[-1])
    same = ~differs(plans, plan) & table.mask
    own = (plans.wire_bits == plan.wire_bits) & (plans.activation_bits == plan.activation_bits)
    likeness = jnp.where(same, 1 + own.astype(jnp.int32), 0)
    return jnp.argmax(likeness).astype(jnp.int32), jnp.any(same)


def pick_row(table: PlanTable, row: Int[Array, ""]) -> Plan:
    """The plan of a row."""
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, row, keepdims=False), table.plans)


def switch_times(setup: Setup, plan: Plan, view: NetworkView) -> Float[Array, " P"]:
    """[P] [s] of training that a reconfiguration from `plan` to each row costs at the view's rates."""
    rate = view.bandwidth_gb_per_s * setup.problem.calibration.wan_efficiency

    def one(target):
        change = begin_transition(plan, target, setup.problem)
        lost_s = transition_s(change, rate) * (1.0 - change.goes_on)
        return jnp.where(needs_reconfiguration(plan, target), lost_s, 0.0)

    return over_plans(one, (0,), plan.group.shape[-1])(setup.table.plans)


def switch_worths(setup: Setup, plan: Plan, view: NetworkView) -> Float[Array, " P"] | None:
    """[P] what the traffic of a move from `plan` costs of the reward; None without an objective."""
    if setup.objective is None:
        return None
    usd_per_gb = setup.problem.cluster.egress_usd_per_gb

    def usd(target):
        bytes_gb = begin_transition(plan, target, setup.problem).bytes_gb
        return jnp.where(needs_reconfiguration(plan, target), jnp.vdot(bytes_gb, usd_per_gb), 0.0)

    return over_plans(usd, (0,), plan.group.shape[-1])(setup.table.plans) * usd_worths(setup, view)


def usd_worths(setup: Setup, view: NetworkView) -> Float[Array, " P"]:
    """[P] [reward / USD] of traffic against the price of an interval in the row; 0: no objective."""
    if setup.objective is None:
        return jnp.zeros((setup.table.size,), jnp.float32)
    gpus = jax.vmap(lambda plan: plan.gpus)(setup.table.plans)
    held = jnp.minimum(gpus, view.gpus_available[None]).astype(jnp.float32)
    gpu_usd = jax.vmap(setup.problem.cluster.gpu_usd, (0, None))(held, setup.interval_s)
    return setup.objective.weights[2] / gpu_usd


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
        now=best_choices(measured_rates(setup, observation), candidates, nothing(setup)),
        switch_s=switch_times(setup, plan, observation.view),
        view=observation.view,
        t=observation.t,
        switch_worth=switch_worths(setup, plan, observation.view),
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
        return self.unless_empty(plan), memory

    def unless_empty(self, plan: Plan) -> Plan:
        """The plan, or none where the scheduler may play no row."""
        if self.candidates is None:
            return plan
        some, idle = jnp.any(self.rows), empty_plan(plan.group.shape[-1])
        return jax.tree.map(lambda x, y: jnp.where(some, x, y[None]), plan, idle)
