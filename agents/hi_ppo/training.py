"""Training by PPO: one compiled epoch is one batch of whole episodes, the host loops over epochs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key, UInt32

from agents.foresight import MigrationTable, migration_table
from agents.hi_ppo.features import (
    Measurement,
    Reference,
    Statistics,
    init_statistics,
    lower_inputs,
    reference_of,
    update_statistics,
    upper_inputs,
)
from agents.hi_ppo.filter import ViewFilter, expected_view, init_filter, update_filter
from agents.hi_ppo.gae import advantages
from agents.hi_ppo.networks import UpperInputs, lower_network, upper_network
from agents.hi_ppo.ppo import Decisions, Losses, make_optimizer, ppo_update
from agents.hi_ppo.scheduler import PolicyParams, init_policy
from agents.hi_ppo.settings import Networks, TrainSettings, check_sizes
from agents.oracles import solve_truth
from agents.protocol import (
    Setup,
    best_choices,
    carry_out,
    find_row,
    make_setup,
    pick_row,
    table_rates,
    usd_worths,
)
from agents.staying import losses_along
from jaxsim.env import EnvParams, Observation, State, reset, step, world_tape
from jaxsim.plan import empty_plan
from jaxsim.planning import PlanTable
from jaxsim.pytree import Pytree
from jaxsim.step_time import Transition, transition_s
from jaxsim.trees import take


class Tape(Pytree):
    """A training scenario with all that can be known of it, made once; [S, ...] in a bank."""

    params: EnvParams
    key: Key[Array, "*batch"]
    rates: Float[Array, "*batch T P V"]  # [T + 1, P, V] [training steps / s]
    lost: Float[Array, "*batch T P"]  # [T + 1, P] of the best, by rows that were in force before
    value: Float[Array, "*batch _ P"]  # [T + 2, P] [training steps] the clairvoyant still gets
    moves: MigrationTable
    reference: Reference


class TrainState(Pytree):
    """Everything that training carries from epoch to epoch, for one policy seed."""

    policy: PolicyParams
    upper_opt: Any
    lower_opt: Any
    key: UInt32[Array, "*batch 2"]  # raw key data, uint32; epochs fold their number into it
    epoch: Int[Array, "*batch"]  # epochs done


class EpochMetrics(Pytree):
    """Means over one epoch, [] each."""

    progress_rel: Float[Array, "*batch"]  # progress / that of the best static plan at base
    reward: Float[Array, "*batch"]
    reward_eff: Float[Array, "*batch"]
    reward_util: Float[Array, "*batch"]
    reward_cost: Float[Array, "*batch"]
    reward_fair: Float[Array, "*batch"]
    switch_rate: Float[Array, "*batch"]  # reconfigurations per interval
    upper: Losses
    lower: Losses

    def columns(self) -> dict[str, Float[Array | np.ndarray, "..."]]:
        """What a run records of an epoch, by name."""
        parts = (
            "progress_rel",
            "reward",
            *(f"reward_{x}" for x in ("eff", "util", "cost", "fair")),
        )
        levels = {"upper": self.upper, "lower": self.lower}
        losses = {"entropy": "entropy", "kl": "kl", "value_loss": "value"}
        losses["explained_variance"] = "explained"
        return {
            **{name: getattr(self, name) for name in parts},
            **{f"{k}_{n}": getattr(x, f) for n, f in losses.items() for k, x in levels.items()},
            "switch_rate": self.switch_rate,
        }


class _Carry(Pytree):
    """One environment between two intervals."""

    state: State
    observation: Observation
    measured: Measurement  # what `observation` says of the plans of the table
    stats: Statistics  # of all measurements so far, `measured` among them
    filtered: ViewFilter  # of them as well
    before: Array  # [P] the rates of the measurement before it
    potential: Array  # [] the clairvoyant value when the job last trained


class _Choice(Pytree):
    """One decision as it was taken."""

    inputs: Any
    action: Array
    log_prob: Array
    value: Array
    weight: Array


def make_tape(
    params: EnvParams,
    table: PlanTable,
    key: Key[Array, ""],
    horizon: int,
    networks: Networks,
) -> Tape:
    """Record one scenario for policies of `networks`; jit and vmap over a bank."""
    setup = make_setup(params, table)
    views = world_tape(params, key, horizon + 1)
    rates = table_rates(setup, views)
    return Tape(
        params=params,
        key=key,
        rates=rates,
        lost=losses_along(setup, views, best_choices(rates).rate),
        value=solve_truth(setup, views, rates).value,
        moves=migration_table(setup.table.plans, setup.problem),
        reference=reference_of(setup, networks),
    )


class Trainer:
    """Compiled pieces of a training run; all state is in TrainState."""

    def __init__(
        self,
        settings: TrainSettings,
        table: PlanTable,
        tapes: Tape,
        horizon: int,
        epochs: int,
        options: dict[str, bool] | None = None,
    ):
        """`options`: of the compiler for the program of an epoch."""
        check_sizes(settings, horizon)
        self.settings, self.table, self.tapes, self.horizon = settings, table, tapes, horizon
        self.n_scenarios = tapes.rates.shape[0]
        self.upper, self.lower = upper_network(settings.networks), lower_network(settings.networks)
        updates = epochs * (horizon // settings.rollout)
        self.upper_optimizer = make_optimizer(settings.upper, updates)
        self.lower_optimizer = make_optimizer(settings.lower, updates)
        self.init = jax.jit(jax.vmap(self._init))
        self.run_epoch = jax.jit(jax.vmap(self._epoch), compiler_options=options)

    @property
    def steps_per_epoch(self) -> int:
        """Environment steps of one epoch and one policy seed."""
        return self.settings.envs * self.horizon

    def _init(self, seed: Array) -> TrainState:
        """Fresh state for a seed (uint32)."""
        key = jax.random.key(seed)
        policy_key, run_key = jax.random.split(key)
        policy = init_policy(policy_key, self.settings.networks)
        return TrainState(
            policy=policy,
            upper_opt=self.upper_optimizer.init(policy.upper),
            lower_opt=self.lower_optimizer.init(policy.lower),
            key=jax.random.key_data(run_key),
            epoch=jnp.int32(0),
        )

    def _start(self, key: Array) -> tuple[_Carry, Tape]:
        """Begin a random scenario from a random row: good play must not depend on a good start."""
        which, where, whether = jax.random.split(key, 3)
        index = jax.random.randint(which, (), 0, self.n_scenarios)
        tape = take(self.tapes, index)
        runs = jnp.where(tape.rates[0].max(axis=-1) > 0, 0.0, jnp.finfo(jnp.float32).min)
        row = jax.random.categorical(where, runs)
        idle = jax.random.uniform(whether) < self.settings.idle_start
        row = jnp.where(idle, tape.reference.static_row, row)

        def deploy(planned, empty):
            return jnp.where(idle, empty, planned)[None]

        nothing = empty_plan(self.table.plans.group.shape[-1])
        plan = jax.tree.map(deploy, pick_row(self.table, row), nothing)
        state, timestep = reset(tape.key, tape.params.replace(initial_plan=plan))
        measured = self._measured(timestep.observation, tape)
        fresh = init_statistics(tape.reference)
        stats = update_statistics(fresh, measured.rates.max(axis=-1), measured.lost)
        filtered = init_filter(make_setup(tape.params, self.table).prior)
        filtered = update_filter(filtered, timestep.observation.view)
        value = tape.value[1, row]
        seen = timestep.observation, measured, stats, filtered, fresh.last
        return _Carry(state, *seen, value), tape

    def _epoch(self, train: TrainState) -> tuple[TrainState, EpochMetrics]:
        """Play one batch of episodes with an update every `rollout` intervals."""
        key = jax.random.fold_in(jax.random.wrap_key_data(train.key), train.epoch)
        start_key, loop_key = jax.random.split(key)
        carry, tape = jax.vmap(self._start)(jax.random.split(start_key, self.settings.envs))
        body = functools.partial(self._rollout_and_update, tape)
        keys = jax.random.split(loop_key, self.horizon // self.settings.rollout)
        (train, _), metrics = jax.lax.scan(body, (train, carry), keys)
        train = train.replace(epoch=train.epoch + 1)
        return train, jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)

    def _rollout_and_update(self, tape: Tape, carry, key: Array):
        train, envs = carry
        play_key, upper_key, lower_key = jax.random.split(key, 3)
        n_segments = self.settings.rollout // self.settings.every
        segment_keys = jax.random.split(play_key, (n_segments, self.settings.envs))
        play = jax.vmap(self._segment, in_axes=(None, 0, 0, 0))

        def body(envs, keys):
            return play(train.policy, tape, envs, keys)

        envs, (high, low, rewards, info) = jax.lax.scan(body, envs, segment_keys)
        upper_last, lower_last = jax.vmap(self._values, in_axes=(None, 0, 0))(
            train.policy, tape, envs
        )
        s = self.settings
        high_batch = _high_batch(high, rewards, upper_last, s)
        low_batch = _low_batch(low, rewards, lower_last, s)
        upper, upper_opt, upper_losses = ppo_update(
            *(upper_key, train.policy.upper, train.upper_opt, high_batch),
            *(self.upper.apply, self.upper_optimizer, s.upper),
        )
        lower, lower_opt, lower_losses = ppo_update(
            *(lower_key, train.policy.lower, train.lower_opt, low_batch),
            *(self.lower.apply, self.lower_optimizer, s.lower),
        )
        train = train.replace(
            policy=PolicyParams(upper, lower), upper_opt=upper_opt, lower_opt=lower_opt
        )
        means = jax.tree.map(jnp.mean, info)
        return (train, envs), EpochMetrics(*means, upper=upper_losses, lower=lower_losses)

    def _segment(self, policy: PolicyParams, tape: Tape, carry: _Carry, key: Array):
        """One upper decision and `every` lower ones, of one environment."""
        upper_key, lower_key = jax.random.split(key)
        setup = make_setup(tape.params, self.table)
        inputs = _upper_inputs(setup, carry, tape.reference)
        high = _sample(upper_key, self.upper.apply(policy.upper, inputs), inputs)

        def interval(held, i):
            carry, wanted = held
            key = jax.random.fold_in(lower_key, i)
            carry, *out = self._interval(policy, tape, carry, key, wanted)
            return (carry, carry.measured.row), out

        # A loop, so that the interval is compiled once.
        numbers = jnp.arange(self.settings.every)
        (carry, _), out = jax.lax.scan(interval, (carry, high.action), numbers)
        return carry, (high, *out)

    def _interval(self, policy: PolicyParams, tape: Tape, carry: _Carry, key: Array, row: Array):
        """One lower decision for `row`, carried out in the environment."""
        setup, observation = make_setup(tape.params, self.table), carry.observation
        inputs = lower_inputs(setup, observation, carry.measured.rates, row)
        low = _sample(key, self.lower.apply(policy.lower, inputs), inputs)
        expected = expected_view(carry.filtered, observation.view)
        action = carry_out(setup, row, low.action, expected)
        state, timestep = step(key, carry.state, action, tape.params)
        t_next = jnp.minimum(state.t, tape.value.shape[0] - 1)
        trained = ~state.moving[0]
        potential = jnp.where(trained, tape.value[t_next, row], carry.potential)
        ref = tape.params.progress_ref[0]
        # With weight w1 on relative progress, r + w1 + w1 dV / ref is minus the loss against
        # the clairvoyant in this interval: credit does not have to wait for a move to pay off.
        w1 = tape.params.weights[0]
        gained = self.settings.shaping * (w1 + w1 * (potential - carry.potential) / ref)
        reward = timestep.reward + gained
        record = timestep.record
        parts = record.reward_parts
        info = (
            record.progress[0] / ref,
            timestep.reward,
            parts.efficiency,
            parts.utilisation,
            parts.cost,
            parts.fairness,
            record.switched[0].astype(jnp.float32),
        )
        measured = self._measured(timestep.observation, tape)
        stats = update_statistics(carry.stats, measured.rates.max(axis=-1), measured.lost)
        filtered = update_filter(carry.filtered, timestep.observation.view)
        seen = timestep.observation, measured, stats, filtered, carry.stats.last
        carry = _Carry(state, *seen, potential)
        return carry, low, reward, info

    def _measured(self, observation: Observation, tape: Tape) -> Measurement:
        """What `scheduler.measure` computes live, looked up on the tape."""
        row, found = find_row(self.table, take(observation.target, 0))
        row = jnp.where(found, row, tape.reference.static_row)
        view, calibration = observation.view, tape.params.problem.calibration
        rate = view.bandwidth_gb_per_s * calibration.wan_efficiency
        moves = take(tape.moves, row)
        # On idle domains every row costs a restart and nothing has to move.
        moves = Transition(
            restart_s=jnp.where(found, moves.restart_s, calibration.restart_s),
            bytes_gb=jnp.where(found, moves.bytes_gb, 0.0),
            fabric_s=jnp.where(found, moves.fabric_s, 0.0),
            goes_on=jnp.where(found, moves.goes_on, 0.0),
        )
        switch_s = jax.vmap(transition_s, (0, None))(moves, rate)
        setup = make_setup(tape.params, self.table)
        usd = jnp.tensordot(moves.bytes_gb, setup.problem.cluster.egress_usd_per_gb, axes=2)
        return Measurement(
            rates=tape.rates[observation.t - 1],
            lost=tape.lost[observation.t - 1],
            switch_s=switch_s * (1.0 - moves.goes_on),
            price=usd * usd_worths(setup, view),
            row=row,
        )

    def _values(self, policy: PolicyParams, tape: Tape, carry: _Carry) -> tuple[Array, Array]:
        """Values after the last interval, to bootstrap from: a cut episode is not a finished one."""
        setup = make_setup(tape.params, self.table)
        high, low = self._inputs(setup, carry, tape.reference)
        return self.upper.apply(policy.upper, high)[1], self.lower.apply(policy.lower, low)[1]

    def _inputs(self, setup: Setup, carry: _Carry, reference: Reference):
        """What the networks of both levels see."""
        high = _upper_inputs(setup, carry, reference)
        rates, row = carry.measured.rates, carry.measured.row
        return high, lower_inputs(setup, carry.observation, rates, row)


def _upper_inputs(setup: Setup, carry: _Carry, reference: Reference) -> UpperInputs:
    seen = (carry.observation, carry.stats, carry.before, reference, carry.measured)
    return upper_inputs(setup, *seen)


def _sample(key: Array, output: tuple[Array, Array], inputs: Any) -> _Choice:
    logits, value = output
    action = jax.random.categorical(key, logits).astype(jnp.int32)
    return _Choice(
        inputs=inputs,
        action=action,
        log_prob=jax.nn.log_softmax(logits)[action],
        value=value,
        weight=(inputs.mask.sum() > 1).astype(jnp.float32),
    )


def _high_batch(
    high: _Choice, rewards: Array, last_value: Array, settings: TrainSettings
) -> Decisions:
    """Decisions of the upper policy; `high` [S, E, ...], rewards [S, E, every].

    Semi-Markov: the reward of a decision is the discounted sum until the next one.
    """
    powers = settings.upper_discount ** jnp.arange(settings.every, dtype=jnp.float32)
    total = jnp.sum(rewards * powers[None, None, :], axis=-1)
    discount = jnp.full_like(total, settings.upper_discount**settings.every)
    return _decisions(high, total, last_value, discount, settings.upper.trace_decay)


def _low_batch(
    low: _Choice, rewards: Array, last_value: Array, settings: TrainSettings
) -> Decisions:
    """Decisions of the lower policy; leaves [S, E, every, ...] become [S * every, E, ...]."""

    def in_time(x):
        moved = jnp.moveaxis(x, 2, 1)
        return moved.reshape((-1, *moved.shape[2:]))

    low, rewards = jax.tree.map(in_time, low), in_time(rewards)
    discount = jnp.full_like(rewards, settings.lower_discount)
    return _decisions(low, rewards, last_value, discount, settings.lower.trace_decay)


def _decisions(
    choice: _Choice, rewards: Array, last_value: Array, discount: Array, trace_decay: float
) -> Decisions:
    advantage, target = advantages(rewards, choice.value, last_value, discount, trace_decay)
    batch = Decisions(
        choice.inputs, choice.action, choice.log_prob, advantage, target, choice.weight
    )
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), batch)
