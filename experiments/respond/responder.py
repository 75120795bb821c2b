"""A scheduler that listens: a measurement comes in, both levels decide, the new plan goes out.

    python -m experiments.respond --cluster FILE --scheduler hi_ppo

One JSON object per line on standard input: what was measured, of a link or of a domain. Both may
carry the `time` of the measurement, in seconds or as text; the answer repeats it.

    {"src": "ohio", "dst": "oregon", "bandwidth_gbps": 2.1, "rtt_ms": 50}
    {"time": "2026-03-01T12:00:00Z", "domain": "ohio", "gpus_available": 4}

One JSON object per line on standard output: first `ready` with the plan to start from, then one
answer to every measurement:

    time         as it was given, if it was
    feasible     can the plan run on the free GPUs? If not, there is no plan: `plan` and `fields` are
                 null, and what was in force stays
    plan         the domains of each pipeline in order, pipelines separated by |
    switch       does it stop the job to be put into force?
    step_s       [s] one training step of the plan, as measured now
    gain_pct     [%] how much faster it trains than what was in force; null where that cannot run
    switch_s     [s] until the job trains again: restart, then bytes over the links as measured
    switch_gb    [GB] that the switch moves between domains
    switch_usd   [USD] of egress for them
    reason       one sentence
    decision_ms  [ms] of the decision, both levels
    fields       the whole plan, field by field, as `jaxsim.plan.Plan` names them

A line that cannot be used is answered by `error`; nothing else changes. A plan counts as carried out
when the next measurement comes. The end of the input ends the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from agents.hi_ppo import HiPPO
from agents.protocol import Scheduler, find_row, make_setup
from agents.registry import plan_rules, rivals_with_rules
from experiments.common import load_regions, load_world, one_line, read_running
from experiments.evaluate import bound_scheduler, contestants, requested_without_truth
from experiments.respond.config import RespondConfig
from experiments.respond.measurements import Measured, stamped
from experiments.respond.memory import as_numbers, digest, from_numbers
from jaxsim.cluster import ClusterSpec
from jaxsim.env import EnvParams, State, observe
from jaxsim.files import InputError
from jaxsim.network import init_network
from jaxsim.plan import Plan, Problem, describe, needs_reconfiguration
from jaxsim.pytree import Pytree
from jaxsim.scenario import ScenarioSettings, World, scenario_bank
from jaxsim.step_time import (
    NetworkView,
    Transition,
    begin_transition,
    job_step_cost,
    transition_s,
)
from jaxsim.trees import take
from jaxsim.workload import load_model


class Service(Pytree):
    """State of the service between two measurements."""

    plan: Plan  # [J] carried out
    memory: Any  # the scheduler's
    since_switch: jax.Array  # [J] int32 measurements
    t: jax.Array  # [] int32


class Outcome(Pytree):
    """What a decision comes to, [J] each."""

    feasible: jax.Array  # bool
    switch: jax.Array  # bool, the job stops
    step_s: jax.Array  # [s]
    gain_pct: jax.Array  # [%] over the plan in force, NaN where that cannot run
    switch_s: jax.Array  # [s]
    switch_gb: jax.Array  # [GB]
    switch_usd: jax.Array  # [USD]


@jax.jit
def respond(
    bound: Scheduler, params: EnvParams, service: Service, view: NetworkView
) -> tuple[Service, Outcome]:
    """Decide on both levels under a measured view, as a scheduler that is `bound` to this world;
    returns the service with the new plan [J] (the old one where the new cannot run) and the
    outcome [J]."""
    n_jobs, n_domains = service.plan.group.shape
    zeros = jnp.zeros((n_jobs,), jnp.float32)
    nothing_gb = jnp.zeros((n_jobs, n_domains, n_domains), jnp.float32)
    key = jax.random.key(0)
    state = State(
        key=key,
        t=service.t,
        network=init_network(params.network, key),
        view=view,
        plan=service.plan,
        target=service.plan,
        moving=jnp.zeros((n_jobs,), bool),
        transition=Transition(zeros, nothing_gb, zeros, zeros),
        owed_gb=nothing_gb,
        steps_done=zeros,
        since_sync=zeros,
        since_switch=service.since_switch,
    )
    observation = observe(state, params)
    key = jax.random.fold_in(jax.random.key(1), service.t)
    plan, memory = bound.decide(key, observation, service.memory)
    outcome = jax.vmap(_outcome, (0, 0, 0, None, None, None))(
        service.plan, plan, params.problem.work, params.problem, view, params.schedules
    )
    # What cannot run is not put into force.
    plan = jax.tree.map(
        lambda new, old: jnp.where(_like(outcome.feasible, new), new, old), plan, service.plan
    )
    since = jnp.where(outcome.switch, 0, service.since_switch + 1)
    return Service(plan, memory, since, service.t + 1), outcome


def _like(flags: jax.Array, array: jax.Array) -> jax.Array:
    """[J] with as many axes as `array` [J, ...]."""
    return flags.reshape(flags.shape + (1,) * (array.ndim - 1))


def _outcome(
    old: Plan, new: Plan, work, problem: Problem, view: NetworkView, schedules: tuple[int, ...]
) -> Outcome:
    """What putting `new` into force in place of `old` comes to under a view (one job)."""
    problem = problem.of(work)
    costs = [job_step_cost(plan, problem, view, schedules=schedules) for plan in (old, new)]
    before, after = (jnp.where(c.runs, c.efficiency / c.step_s, 0.0) for c in costs)
    feasible = costs[1].runs
    switch = feasible & needs_reconfiguration(old, new)
    change = begin_transition(old, new, problem)
    rate = view.bandwidth_gb_per_s * problem.calibration.wan_efficiency
    usd = jnp.sum(change.bytes_gb * problem.cluster.egress_usd_per_gb)
    return Outcome(
        feasible=feasible,
        switch=switch,
        step_s=costs[1].step_s,
        gain_pct=jnp.where(before > 0, 100.0 * (after / jnp.maximum(before, 1e-30) - 1.0), jnp.nan),
        switch_s=jnp.where(switch, transition_s(change, rate), 0.0),
        switch_gb=jnp.where(switch, jnp.sum(change.bytes_gb), 0.0),
        switch_usd=jnp.where(switch, usd, 0.0),
    )


class Proposal(NamedTuple):
    """A decision that is not carried out yet."""

    answer: dict[str, Any]
    plan: Plan  # of the one job, on the host
    service: Service  # once it is carried out


class Responder:
    """A scheduler as a service: the network as last measured, the plan as last decided."""

    def __init__(
        self,
        world: World,
        spec: ClusterSpec,
        scheduler: Scheduler,
        interval_s: float,
        running: Plan | None = None,
    ):
        """Deploy the first plan on the network that the cluster file states, or go on with the plan
        that is `running` (no job axis)."""
        settings = ScenarioSettings(jitter="none", interval_s=interval_s)
        bank, _ = scenario_bank(world, settings, range(1), "respond")
        params = take(bank, 0)
        self.spec = spec
        self._params, self._asked = params, (scheduler, world.table)
        self.measured = Measured(spec, params.problem.cluster)
        n_jobs = params.initial_plan.group.shape[0]
        self._bound, memory = bound_scheduler(scheduler, make_setup(params, world.table))
        plan = params.initial_plan
        if running is not None:
            plan = jax.tree.map(lambda x, like: jnp.asarray(x, like.dtype)[None], running, plan)
        self._service = Service(plan, memory, jnp.full((n_jobs,), 1000, jnp.int32), jnp.int32(1))
        self.first = self.decide() if running is None else self._go_on()

    def _go_on(self) -> dict[str, Any]:
        """The answer that keeps the plan in force, whatever the scheduler thinks of it: what is better
        is said once something was measured. The scheduler has decided once, and is compiled."""
        proposal = self.propose()
        self.accept(proposal, keep_plan=True)
        nothing = dict.fromkeys(("step_s", "gain_pct", "switch_s", "switch_gb", "switch_usd"))
        reason = "This plan was running already."
        kept = {"feasible": True, "switch": False, **nothing, "reason": reason}
        return {**proposal.answer, **kept, **self.in_force}

    def decide(self) -> dict[str, Any]:
        """The answer to the network as it is now known, carried out."""
        proposal = self.propose()
        self.accept(proposal)
        return proposal.answer

    def propose(self) -> Proposal:
        """The answer to the network as it is now known; nothing changes until it is accepted."""
        start = time.perf_counter()
        view = self.measured.view
        before = self._service.plan
        service, outcome = respond(self._bound, self._params, self._service, view)
        plan, old, outcome = jax.tree.map(
            lambda x: np.asarray(x)[0], (service.plan, before, outcome)
        )
        decision_ms = 1e3 * (time.perf_counter() - start)
        feasible = bool(outcome.feasible)
        figures = ("step_s", "gain_pct", "switch_s", "switch_gb", "switch_usd")
        answer = {
            "feasible": feasible,
            "plan": describe(plan, self.spec.domains) if feasible else None,
            "switch": bool(outcome.switch),
            **{name: _figure(getattr(outcome, name), feasible) for name in figures},
            "reason": _reason(old, plan, outcome),
            "decision_ms": decision_ms,
            "fields": _fields(plan) if feasible else None,
        }
        return Proposal(answer, plan, service)

    def accept(self, proposal: Proposal, keep_plan: bool = False) -> None:
        """Carry a proposal out: its plan is in force, and the scheduler remembers one interval more.
        With `keep_plan` the plan of before stays, as while a switch is under way."""
        new, old = proposal.service, self._service
        if keep_plan:
            new = new.replace(plan=old.plan, since_switch=old.since_switch + 1)
        self._service = new

    @property
    def plan(self) -> Plan:
        """In force, on the host."""
        return jax.tree.map(lambda x: np.asarray(x)[0], self._service.plan)

    @property
    def in_force(self) -> dict[str, Any]:
        """The plan in force as answers name it: `plan` and `fields`."""
        plan = self.plan
        return {"plan": describe(plan, self.spec.domains), "fields": _fields(plan)}

    def snapshot(self) -> list[np.ndarray]:
        """All that it remembers: the network as last measured, the plan, the scheduler's memory."""
        return [*self.measured.arrays, *(as_numbers(x) for x in jax.tree.leaves(self._service))]

    def restore(self, snapshot: Sequence[np.ndarray]) -> None:
        """Go on from a snapshot of a process like this one. Raises InputError for another's."""
        now = self.snapshot()
        if [(x.shape, x.dtype) for x in snapshot] != [(x.shape, x.dtype) for x in now]:
            raise InputError("holds the memory of another scheduler, or of another release")
        self.measured.put(*snapshot[:3])
        leaves, treedef = jax.tree.flatten(self._service)
        back = [from_numbers(x, leaf) for x, leaf in zip(snapshot[3:], leaves, strict=True)]
        self._service = jax.tree.unflatten(treedef, back)

    def identity(self) -> dict[str, str]:
        """Digests of what a snapshot belongs to: the cluster, the job with its table of plans, the
        scheduler with its settings."""
        (scheduler, table), params = self._asked, self._params
        job = (params.problem.work, params.problem.calibration, table.plans)
        return {
            "cluster": digest((), self.spec.to_yaml()),
            "job": digest(job, ""),
            "scheduler": digest((scheduler, params.interval_s), type(scheduler).__name__),
        }

    def answer(self, line: str) -> dict[str, Any]:
        """The new plan after one measurement, or {"error": why} for a line that is none."""
        stamp: dict[str, Any] = {}
        try:
            stamp, body = stamped(json.loads(line))
            self.measured.take(body)
        # Broken JSON or InputError; JSON nested too deep; a number too large for a float.
        except (ValueError, RecursionError, OverflowError) as error:
            return {**stamp, "error": one_line(str(error))}
        return {**stamp, **self.decide()}


def _fields(plan: Plan) -> dict[str, Any]:
    return {name: np.asarray(getattr(plan, name)).tolist() for name in vars(plan)}


def _figure(value: np.ndarray, feasible: bool) -> float | None:
    return float(value) if feasible and np.isfinite(value) else None


def _reason(old: Plan, new: Plan, outcome: Outcome) -> str:
    """Why the answer is what it is, in one sentence; `old` was in force, `new` is now."""
    if not outcome.feasible:
        return "The plan that the scheduler chose cannot run on the GPUs that are free."
    if np.max(old.group) < 0:
        return "This is the first plan."
    if outcome.switch and np.isnan(outcome.gain_pct):
        return "The plan that was in force can no longer run."
    if outcome.switch and outcome.gain_pct > 0:
        return (
            f"The new plan trains {outcome.gain_pct:.1f} % faster and the switch to it takes "
            f"{outcome.switch_s:.0f} s."
        )
    if outcome.switch:
        return "The scheduler expects more of the new plan than the last measurement shows."
    if all(np.array_equal(getattr(old, name), getattr(new, name)) for name in vars(old)):
        return "No other plan is worth the time that a switch takes."
    return "The domains stay; settings change that need no stop."


def make_responder(config: RespondConfig) -> Responder:
    """Load the world and the scheduler; the first decision is compiled when this returns.

    Raises InputError, for the oracles too: a process that listens does not know the future.
    """
    name, checkpoints = requested_without_truth(config.scheduler, "scheduler")
    # What cannot be read is refused before anything is said.
    spec = load_regions(config.cluster)
    load_model(config.model)
    running = None
    if config.running is not None:
        running = read_running(config.running, spec, config.allow)
    print("looking for plans, and compiling what is new", file=sys.stderr, flush=True)
    spec, world, _ = load_world(
        config.cluster,
        config.model,
        config.global_batch,
        config.seq,
        config.table_size,
        plan_rules(rivals_with_rules()),
        layout_limit=config.layout_limit,
        loaded=True,
        efficiency=config.efficiency,
        allow=config.allow,
        running=running,
    )
    if running is not None:
        row, _ = find_row(world.table, running)
        if float(world.table.base_rate[row]) <= 0.0:
            raise InputError(f"{config.running}: fields: this plan cannot run on {spec.name}")
    scheduler = contestants(name, checkpoints, {}, world)[0].scheduler
    return Responder(world, spec, at_every_measurement(scheduler), config.interval_s, running)


def at_every_measurement(scheduler: Scheduler) -> Scheduler:
    """The scheduler with an upper level that decides at every measurement; others do so anyway."""
    return scheduler.replace(every=jnp.int32(1)) if isinstance(scheduler, HiPPO) else scheduler


def serve(responder: Responder, lines: TextIO, out: TextIO) -> None:
    """Answer every line until the input ends."""
    _put({"ready": True, "domains": responder.spec.domains, **responder.first}, out)
    for line in lines:
        if line.strip():
            _put(responder.answer(line), out)


def _put(answer: dict, out: TextIO) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()
