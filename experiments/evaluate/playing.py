"""Playing a block of scenarios: a host loop over two compiled programs, the decision and the world.

The world's program is the same for all schedulers and takes longest to compile; that of a decision is
compiled once for a class of schedulers. How many intervals are played costs no compilation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agents.episodes import Episode, EpisodeMetrics, episode_metrics
from agents.many_jobs import JobsScheduler, make_jobs_setup
from agents.oracles import Truth
from agents.protocol import Scheduler, ScoredTable, Setup, make_setup
from experiments.evaluate.programs import wide
from jaxsim.env import EnvParams, Observation, State, reset, step
from jaxsim.plan import Plan
from jaxsim.planning import PlanTable, in_front
from jaxsim.scenario import JobsWorld
from jaxsim.short_axes import ShortAxes, threadsafe
from jaxsim.step_time import NetworkView

# Not compiled functions of their own here: threads trace them at once, in several structures.
_reset, _step = inspect.unwrap(reset), inspect.unwrap(step)


class Scenes(NamedTuple):
    """Scenarios [S, ...] that are played at once."""

    params: EnvParams
    scored: ScoredTable  # what schedulers expect of the table
    truth: Truth  # what the future holds, for oracles
    rates: Any  # [S, T + 1, P, V] the table's, as measured before each interval
    keys: jax.Array
    decision_keys: jax.Array


class JobsScenes(NamedTuple):
    """Scenarios [S, ...] of many jobs that are played at once."""

    params: EnvParams
    keys: jax.Array
    views: NetworkView  # [S, T + 1, ...] what the future holds, for oracles


def play_block(
    scheduler: Scheduler, intervals: int, table: PlanTable, scenes: Scenes
) -> tuple[EpisodeMetrics, Episode]:
    """Metrics and episodes of one scheduler in each scenario, leaves [S, ...] and [S, T, ...]; the
    episodes' are NumPy's."""
    params = scenes.params
    rates, facts = jnp.asarray(scenes.rates), (table, params, scenes.scored)
    truth = jax.tree.map(jnp.asarray, scenes.truth) if scheduler.oracle else None
    own, memory, keys = bound(scheduler, facts, scenes.decision_keys)

    def decide(t, observation, memory):
        return decided(scheduler, own, facts, (truth, rates, keys, t), observation, memory)

    whole = _played(intervals, decide, memory, params, scenes.keys)
    return measured(whole, params), whole


def play_in_turn(
    scheduler: JobsScheduler, intervals: int, world: JobsWorld, scenes: JobsScenes
) -> Episode:
    """Episodes of many jobs, leaves [S, T, ...] of NumPy. In an interval the scenarios decide one after
    the other: what is skipped for jobs that are not there would be computed if they did at once."""
    params, keys, views = scenes
    ready, memory, key = bound_for_jobs(scheduler, world, params)
    truth = (views,) if scheduler.oracle else ()

    def decide(t, observation, memory):
        return decided_in_turn(ready, truth, key, t, observation, memory)

    return _played(intervals, decide, memory, params, keys)


def _played(
    intervals: int, decide: Callable[..., Any], memory: Any, params: EnvParams, keys: jax.Array
) -> Episode:
    """Episodes [S, T, ...] of NumPy, where `decide(t, observation, memory)` names the plans for
    interval t and the next memory."""
    (state, observation), played = begun(params, keys), []
    for t in map(np.int32, range(intervals)):
        action, memory = decide(t, observation, memory)
        state, observation, episode = stepped(params, keys, t, state, action)
        played.append(episode)
    return jax.tree.map(lambda *xs: np.stack(xs, axis=1), *played)


@threadsafe
def begun(params: EnvParams, keys: jax.Array) -> tuple[State, Observation]:
    """Every scenario at its start."""
    state, timestep = jax.vmap(_reset)(keys, params)
    return state, timestep.observation


@threadsafe
def bound(scheduler: Scheduler, facts: tuple, decision_keys: jax.Array) -> tuple[list, Any, Any]:
    """What the scheduler computes once for each scenario, its first memory, and keys for what is drawn
    in the intervals."""
    table, params, scored = facts

    def one(params, scored, key):
        init_key, loop_key = jax.random.split(key)
        setup = _setup(table, params, scored)
        ready = scheduler.bind(setup)
        return _own(scheduler, setup, ready), ready.init(init_key), loop_key

    return jax.vmap(one)(params, scored, decision_keys)


@functools.partial(ShortAxes, where=lambda _, __, facts, *___: wide(facts[0].plans))
def decided(
    scheduler: Scheduler, own: list, facts: tuple, known: tuple, seen: Observation, memory: Any
) -> tuple[Plan, Any]:
    """Every scenario's plan for interval t, and the next memory."""
    (table, params, scored), (truth, rates, keys, t) = facts, known

    def one(own, params, scored, truth, rates, key, seen, memory):
        setup = _setup(table, params, scored)
        ready = _with_own(scheduler, setup, own)
        seen = seen.replace(rates=rates[t])
        extra = (truth,) if scheduler.oracle else ()
        return ready.decide(jax.random.fold_in(key, t), seen, memory, *extra)

    return jax.vmap(one)(own, params, scored, truth, rates, keys, seen, memory)


@threadsafe
def bound_for_jobs(scheduler: JobsScheduler, world: JobsWorld, params: EnvParams) -> tuple:
    """The scheduler as it is bound in each scenario, its first memory there, and the key for what is
    drawn in the intervals."""
    init_key, loop_key = jax.random.split(jax.random.key(20))

    def one(params):
        ready = scheduler.bind(make_jobs_setup(params, world))
        return ready, ready.init(init_key)

    return *jax.vmap(one)(params), loop_key


@functools.partial(ShortAxes, where=lambda *args: in_front(args[4].graph_mask.shape[-1]))
def decided_in_turn(
    ready: JobsScheduler, truth: tuple, key: jax.Array, t: jax.Array, seen: Observation, memory: Any
) -> tuple[Plan, Any]:
    """Every scenario's plans for interval t, and the next memory."""

    def one(scenario):
        ready, truth, seen, memory = scenario
        return ready.decide(jax.random.fold_in(key, t), seen, memory, *truth)

    return jax.lax.map(one, (ready, truth, seen, memory))


@threadsafe
def stepped(
    params: EnvParams, keys: jax.Array, t: jax.Array, state: State, action: Plan
) -> tuple[State, Observation, Episode]:
    """Every scenario an interval on, and what is to be recorded of it."""

    def one(params, key, state, action):
        state, timestep = _step(jax.random.fold_in(key, t), state, action, params)
        links, moving = state.view.bandwidth_gb_per_s, state.moving
        out = Episode(timestep.record, links, state.plan, moving, timestep.reward)
        return state, timestep.observation, out

    return jax.vmap(one)(params, keys, state, action)


measured = threadsafe(jax.vmap(episode_metrics))


def _setup(table: PlanTable, params: EnvParams, scored: ScoredTable) -> Setup:
    return make_setup(params, table).replace(scored=scored)


def _own(scheduler: Scheduler, setup: Setup, ready: Scheduler) -> list[jax.Array]:
    """The leaves that `bind` computed, beyond those it was given."""
    given = {id(x) for x in jax.tree.leaves((scheduler, setup))}
    return [x for x in jax.tree.leaves(ready) if id(x) not in given]


def _with_own(scheduler: Scheduler, setup: Setup, own: list[jax.Array]) -> Scheduler:
    """The scheduler as it was bound. It is bound again for its structure alone: what it would compute
    anew is taken from `own` instead, and not compiled."""
    ready = scheduler.bind(setup)
    given, known = {id(x) for x in jax.tree.leaves((scheduler, setup))}, iter(own)
    return jax.tree.map(lambda x: x if id(x) in given else next(known), ready)
