"""The environment: one decision interval per step, as pure functions on pytrees.

Problem: keep training jobs at full speed on domains joined by links that move. In each interval a
scheduler names a full plan for every job; free changes take effect at once, all others stop the job
until the restart is over and the state it lacks has crossed the links. Jobs come, wait for GPUs and
leave: `jaxsim.env.sharing` says who holds which GPUs and how links are shared.

- observation: `Observation`, what was measured in the interval before and nothing newer
- action: a `Plan` with leading job axis [J]; ignored for a job whose mask `retarget` is False. With
  `params.rows` the number of a prepared plan, [J] int32: the same results, several times faster
- reward: w1 R_eff + w2 R_util - w3 R_cost - w4 R_fair, the parts returned beside it
- end: `truncated` after `horizon` intervals; `terminated` when all jobs, those still to come
  included, have used their budget
- `step` never resets: `auto_reset` wraps it and keeps the final observation

    state, timestep = reset(key, params)
    state, timestep = step(key, state, params.initial_plan, params)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int, Key, Shaped

from jaxsim.cluster import Cluster
from jaxsim.env.chosen import Chosen, begin_transitions, chosen_plans, reconfigures
from jaxsim.env.observation import observe
from jaxsim.env.resizing import Resizing, resize
from jaxsim.env.reward import account, weighted_reward
from jaxsim.env.rows import row_cost
from jaxsim.env.sharing import ResourceShare, allocate_gpus, share_resources, step_cost
from jaxsim.env.status import active, may_retarget, unfinished
from jaxsim.env.types import EnvParams, State, TimeStep
from jaxsim.load import LoadProcess, gpus_available
from jaxsim.materialise import materialised
from jaxsim.network import (
    NetworkProcess,
    NetworkState,
    init_network,
    interval_key,
    interval_uniforms,
    step_network,
)
from jaxsim.plan import Plan
from jaxsim.step_time import (
    LayerSpan,
    NetworkView,
    StepCost,
    Transition,
    advance_transition,
)
from jaxsim.trees import take


def world_at(
    params: EnvParams, key: Key[Array, ""], network: NetworkState, t: Int[Array, ""]
) -> tuple[NetworkState, NetworkView]:
    """The network and the free GPUs in interval t: independent of every action."""
    if params.tape is not None:
        return network, take(params.tape, t)
    return _draw_world(params.network, params.load, params.problem.cluster, key, network, t)


@materialised
def _draw_world(
    process: NetworkProcess,
    load: LoadProcess,
    cluster: Cluster,
    key: Array,
    network: NetworkState,
    t: Array,
) -> tuple[NetworkState, NetworkView]:
    moment = interval_key(key, t)
    links, domains = interval_uniforms(moment, cluster.mask.shape[0])
    network, factor, rtt_factor = step_network(process, network, moment, t, links)
    view = NetworkView(
        bandwidth_gb_per_s=cluster.bandwidth_gb_per_s * factor,
        rtt_s=cluster.rtt_s * rtt_factor,
        gpus_available=gpus_available(load, cluster.gpus, moment, t, domains),
    )
    return network, view


def world_tape(params: EnvParams, key: Key[Array, ""], length: int) -> NetworkView:
    """The views of intervals 0..length-1 of a scenario, leaves [T, ...]; interval 0 is what a
    scheduler has measured at reset, decisions begin in interval 1. For oracles and for training."""

    def body(network, t):
        return world_at(params, key, network, t)

    _, views = jax.lax.scan(body, init_network(params.network, key), jnp.arange(length))
    return views


# `reset` and `step` are traced once for all their callers, see `jaxsim.step_time.stages.stages`.
@functools.partial(jax.jit, inline=True)
def reset(key: Key[Array, ""], params: EnvParams) -> tuple[State, TimeStep]:
    """Start the scenario that `key` names."""
    network, view = world_at(params, key, init_network(params.network, key), jnp.int32(0))
    n_jobs, n_domains = params.initial_plan.group.shape
    zeros = jnp.zeros((n_jobs,), jnp.float32)
    links = jnp.zeros((n_jobs, n_domains, n_domains), jnp.float32)
    plan = params.initial_plan
    shares = None
    if n_jobs > 1:  # static; nothing is sent before the first interval
        at_once = params.problem.work.mask & (params.problem.work.arrival_s <= 0)
        shares = ResourceShare.of_whole_links(allocate_gpus(plan, at_once, view.gpus_available))
    row = None if params.rows is None else jnp.full((n_jobs,), params.rows.size - 1, jnp.int32)
    cost, lower = _step_cost(params, view, Chosen(plan, row), shares)
    state = State(
        key=key,
        t=jnp.int32(1),
        network=network,
        view=view,
        plan=plan,
        target=plan,
        moving=jnp.zeros((n_jobs,), bool),
        transition=Transition(restart_s=zeros, bytes_gb=links, fabric_s=zeros, goes_on=zeros),
        owed_gb=_owed_gb(params, plan, cost),
        steps_done=zeros,
        since_sync=zeros,
        since_switch=jnp.full((n_jobs,), 1000, jnp.int32),
        gpus_used=cost.gpus_used if params.gpus_vary else None,
        behind_gb=links if params.gpus_vary and _local_sgd(params) else None,
        row=row,
        target_row=row,
        lower=lower,
    )
    observation = observe(state, params)
    record = account(params, view, cost, jnp.zeros_like(zeros), zeros, None, jnp.zeros((), bool))
    return state, TimeStep(
        observation=observation,
        reward=jnp.float32(0.0),
        terminated=jnp.array(False),
        truncated=jnp.array(False),
        final_observation=observation,
        record=record,
    )


@functools.partial(jax.jit, inline=True)
def step(
    key: Key[Array, ""], state: State, action: Plan | Int[Array, " J"], params: EnvParams
) -> tuple[State, TimeStep]:
    """Play one interval. The world draws from the scenario's key, so `key` is not used: the same
    scenario is the same world for every scheduler."""
    del key
    network, view = world_at(params, state.key, state.network, state.t)
    wanted = chosen_plans(params, action)
    chosen, target, moving, transition, switched = _apply(state, wanted, params)
    played = _play(state, params, view, chosen, target, moving, transition)
    plan, cost, running, train_s = played.chosen.plan, played.cost, played.running, played.train_s
    progress = jnp.where(running, train_s / cost.step_s * cost.efficiency, 0.0)
    progress = jnp.minimum(progress, params.problem.work.step_budget - state.steps_done)
    period = plan.sync_period.astype(jnp.float32)
    since_sync = jnp.where(switched, 0.0, state.since_sync + progress / cost.efficiency)
    new = State(
        key=state.key,
        t=state.t + 1,
        network=network,
        view=view,
        plan=plan,
        target=target.plan,
        moving=moving & ~played.arrived,
        transition=played.transition,
        owed_gb=played.owed_gb,
        steps_done=state.steps_done + progress,
        since_sync=jnp.where(period > 1.0, since_sync % period, 0.0),
        since_switch=jnp.where(switched, 0, state.since_switch + 1),
        gpus_used=cost.gpus_used if params.gpus_vary else None,
        behind_gb=played.behind_gb,
        row=played.chosen.row,
        target_row=target.row,
        lower=played.lower,
    )
    jobs = params.problem.work.replace(mask=active(state, params))
    billed = params.replace(problem=params.problem.of(jobs))
    record = account(billed, view, cost, progress, train_s, played.moved, switched)
    observation = observe(new, params)
    finished = ~jnp.any(unfinished(new, params))
    timestep = TimeStep(
        observation=observation,
        reward=weighted_reward(record.reward_parts, params.weights),
        terminated=finished,
        truncated=(new.t > params.horizon) & ~finished,
        final_observation=observation,
        record=record,
    )
    return new, timestep


def first_states(keys: Key[Array, " N"], params: EnvParams) -> tuple[State, TimeStep]:
    """`reset` of N known scenarios, keys [N], leaves [N, ...]: to start one again is an index."""
    return jax.jit(jax.vmap(reset, (0, None)))(keys, params)


def auto_reset(
    draw_scenario: Callable[[Key[Array, ""]], tuple[Shaped[Array, ""], EnvParams]],
    first: tuple[State, TimeStep] | None = None,
) -> Callable[
    [Key[Array, ""], State, Plan | Int[Array, " J"], EnvParams], tuple[State, TimeStep, EnvParams]
]:
    """Wrap `step` so that an ended episode starts another scenario.

    `draw_scenario(key)` returns a scenario key and its params (an index into a bank: keep it cheap,
    it runs in every step under vmap); with `first`, the `first_states` of a bank, the number of a
    scenario in it and its params. The wrapped step also returns the params now in force;
    `timestep.final_observation` is the observation before the reset.
    """

    def wrapped(key: Array, state: State, action: Plan | Array, params: EnvParams):
        step_key, draw_key = jax.random.split(key)
        state, timestep = step(step_key, state, action, params)
        scenario, fresh_params = draw_scenario(draw_key)
        if first is None:
            fresh_state, fresh = reset(scenario, fresh_params)
        else:
            fresh_state, fresh = take(first, scenario)
        over = timestep.terminated | timestep.truncated

        def choose(new, old):
            return jax.tree.map(lambda a, b: jax.lax.select(over, a, b), new, old)

        timestep = timestep.replace(observation=choose(fresh.observation, timestep.observation))
        return choose(fresh_state, state), timestep, choose(fresh_params, params)

    return wrapped


def _apply(state: State, action: Chosen, params: EnvParams):
    """Take the action: free changes at once, a reconfiguration where one is needed and allowed."""
    may = may_retarget(state)
    chosen, target = Chosen(state.plan, state.row), Chosen(state.target, state.target_row)
    changes = reconfigures(params, chosen, action)
    # During a move a new plan is compared with the target. To hold on to a target whose
    # domain is lost does not start over; to go back to the plan in force does (a restart).
    differs = jnp.where(state.moving, reconfigures(params, target, action), changes)
    # A finished job stays as it is: its moves would only crowd the links of the others.
    switched = may & differs & active(state, params)
    # Free fields follow the action, those of the target while a transition runs.
    free = (state.moving | may) & ~differs
    fresh = begin_transitions(params, chosen, action, state.owed_gb)
    target = _select(switched | free, action, target)
    chosen = _select(free & ~state.moving, action, chosen)
    transition = _select(switched, fresh, state.transition)
    return chosen, target, state.moving | switched, transition, switched


class _Played(NamedTuple):
    """What the jobs came to in an interval, [J] leading."""

    chosen: Chosen
    lower: Array | None  # [J, V] bool, with rows
    transition: Transition
    arrived: Array  # bool, a move ended
    moved: Array  # [J, K, K] [GB]
    owed_gb: Array | None  # [J, K, K] [GB]
    behind_gb: Array | None  # [J, K, K] [GB]
    cost: StepCost
    running: Array  # bool, the job trained
    train_s: Array  # [s]


def _play(
    state: State,
    params: EnvParams,
    view: NetworkView,
    chosen: Chosen,
    target: Chosen,
    moving: Array,
    moves: Transition,
) -> _Played:
    """Moves go on, some end; who is not moving trains."""
    rate = view.bandwidth_gb_per_s * params.problem.calibration.wan_efficiency
    present = active(state, params)
    transition, train_s, moved = _ADVANCE(moves, rate, params.interval_s)
    landed = moving & (train_s > 0)
    following = _select(landed, target, chosen)
    # Jobs that are finished or still moving leave the links to the others.
    training = present & (~moving | landed | (moves.goes_on > 0))
    shares = _share_resources(params, view, following.plan, present, training, moves)
    cost, lower = _step_cost(params, view, following, shares)
    owed_gb = _owed_gb(params, following.plan, cost)
    found = jnp.broadcast_to(rate[None], moved.shape)
    if shares is not None:
        # The target's GPUs were reserved: at the links' whole rate the move might have ended.
        # Moves begin together: each is as slow as their sum.
        crowd = jnp.maximum(jnp.sum((moves.bytes_gb > 0).astype(jnp.float32), axis=0), 1.0)
        found = rate[None] * jnp.minimum(shares.share, 1.0 / crowd[None])
        transition, train_s, moved = _ADVANCE_EACH(moves, found, params.interval_s)
        landed = moving & (train_s > 0)
        training = present & (~moving | landed | (moves.goes_on > 0))
        owed_gb = _select(training, owed_gb, state.owed_gb)
        following = _select(landed, target, chosen)
    running = training & cost.runs
    # What goes on meanwhile does so at the pace of the plan in force, in the interval of the arrival
    # at that of the plan that arrives.
    train_s = train_s + moves.goes_on * (params.interval_s - train_s)
    train_s = jnp.where(moving, train_s, params.interval_s)
    behind_gb = None
    if params.gpus_vary:  # static
        resized = _resize(params, state, following, cost, found)
        train_s = jnp.where(moving, train_s, params.interval_s - resized.lost_s)
        moved = jnp.where(moving[:, None, None], moved, resized.moved_gb)
        if resized.behind_gb is not None:
            # Who has just arrived has all of the state, but for groups that find no GPUs there.
            here = (cost.gpus_used > 0)[:, None, :] | ~landed[:, None, None]
            behind_gb = jnp.where(moving[:, None, None] & here, 0.0, resized.behind_gb)
    train_s = jnp.where(running, train_s, 0.0)
    return _Played(
        following, lower, transition, landed, moved, owed_gb, behind_gb, cost, running, train_s
    )


# All jobs at the rates of the links, and each at its own.
_ADVANCE = jax.vmap(advance_transition, in_axes=(0, None, None))


_ADVANCE_EACH = jax.vmap(advance_transition, in_axes=(0, 0, None))


def _resize(
    params: EnvParams, state: State, chosen: Chosen, cost: StepCost, rate: Array
) -> Resizing:
    """What it costs the jobs [J] that the GPUs of the plans in force are not those of the last
    interval; `rate` [J, K, K] [GB/s]."""

    def one(span, work, before, now, rate, behind_gb):
        problem = params.problem.of(work)
        return resize(span, problem, before, now, rate, params.interval_s, behind_gb)

    if params.rows is None:
        spans = jax.vmap(LayerSpan.of)(chosen.plan)
    else:
        spans = take(params.rows.span, chosen.row)  # pyright: ignore[reportArgumentType]
    args = (spans, params.problem.work, state.gpus_used, cost.gpus_used, rate)
    return jax.vmap(one)(*args, state.behind_gb)


def _share_resources(
    params: EnvParams,
    view: NetworkView,
    plan: Plan,
    active: Array,
    computing: Array,
    moves: Transition,
) -> ResourceShare | None:
    """Who has what; None for one job (static), which shares with nobody."""
    if plan.group.shape[0] == 1:
        return None
    rate = jnp.maximum(view.bandwidth_gb_per_s * params.problem.calibration.wan_efficiency, 1e-9)
    pending = moves.bytes_gb / (rate[None] * params.interval_s)
    return share_resources(
        plan,
        active,
        computing,
        pending,
        params.problem,
        view,
        params.sharing,
        params.schedules,
    )


def _step_cost(
    params: EnvParams, view: NetworkView, chosen: Chosen, shares: ResourceShare | None
) -> tuple[StepCost, Array | None]:
    """The cost of a step [J], and with rows the lower choices that fit [J, V]."""
    if params.rows is None:
        return step_cost(chosen.plan, params.problem, view, shares, params.schedules), None
    one = row_cost(params.rows, chosen.row[0], params.problem.job(0), view, params.schedules)  # pyright: ignore[reportOptionalSubscript]
    return jax.tree.map(lambda x: x[None], one)


def _local_sgd(params: EnvParams) -> bool:
    """Static: may a plan sync less than every step?"""
    return params.rows is None or params.rows.local_sgd


def _owed_gb(params: EnvParams, plan: Plan, cost: StepCost) -> Array | None:
    """[J, K, K] [GB] of the outer sync before the next reconfiguration: local SGD alone owes one.
    None where no plan does."""
    if not _local_sgd(params):
        return None
    return jnp.where((plan.sync_period > 1)[:, None, None], cost.sync_gb, 0.0)


def _select(mask: Array, new: Any, old: Any) -> Any:
    """Choose between pytrees with leading [J]."""

    def pick(a, b):
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - 1)), a, b)

    return jax.tree.map(pick, new, old)
