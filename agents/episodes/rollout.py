"""Playing whole episodes: one scheduler, one scenario, everything recorded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Key

from agents.protocol import Scheduler
from jaxsim.env import EnvParams, IntervalRecord, reset, step
from jaxsim.plan import Plan
from jaxsim.pytree import Pytree


class Episode(Pytree):
    """One episode, leaves [T, ...]."""

    record: IntervalRecord
    bandwidth_gb_per_s: Float[Array, "*batch T K K"]  # [GB/s]
    plan: Plan  # [T, J] in force at the end of the interval
    moving: Bool[Array, "*batch T J"]
    reward: Float[Array, "*batch T"]


def play(
    scheduler: Scheduler,
    params: EnvParams,
    setup: Any,
    truth: Any,
    key: Key[Array, ""],
    decision_key: Key[Array, ""],
    horizon: int,
    rates: Float[Array, "T P V"] | None = None,
) -> Episode:
    """Play `horizon` intervals of the scenario `key` with a scheduler that this binds to `setup`.

    `truth` reaches oracles only. `rates` [T, P, V] are the table's as measured before each interval,
    for everybody (None: not at hand). `setup` and `truth` are those of one job or of many.
    """
    scheduler = scheduler.bind(setup)
    init_key, loop_key = jax.random.split(decision_key)
    state, timestep = reset(key, params)

    def body(carry, t):
        state, observation, memory = carry
        interval_key = jax.random.fold_in(loop_key, t)
        extra = (truth,) if scheduler.oracle else ()
        if rates is not None:
            observation = observation.replace(rates=rates[t])
        action, memory = scheduler.decide(interval_key, observation, memory, *extra)
        state, timestep = step(interval_key, state, action, params)
        out = Episode(
            timestep.record,
            state.view.bandwidth_gb_per_s,
            state.plan,
            state.moving,
            timestep.reward,
        )
        return (state, timestep.observation, memory), out

    carry = (state, timestep.observation, scheduler.init(init_key))
    _, episode = jax.lax.scan(body, carry, jnp.arange(horizon))
    return episode
