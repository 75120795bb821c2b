"""Where the jobs of a state stand: here, unfinished, free to move."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxsim.env.types import EnvParams, State


def unfinished(state: State, params: EnvParams) -> Array:
    """[J] bool: neither padding nor finished, arrived or not."""
    return params.problem.work.mask & (state.steps_done < params.problem.work.step_budget)


def arrived(state: State, params: EnvParams) -> Array:
    """[J] bool: arrived before the interval to be played; the first one, t = 1, begins at 0 s."""
    return params.problem.work.arrival_s <= (state.t - 1).astype(jnp.float32) * params.interval_s


def active(state: State, params: EnvParams) -> Array:
    """[J] bool: arrived and not finished."""
    return unfinished(state, params) & arrived(state, params)


def may_retarget(state: State) -> Array:
    """[J] bool: not in a transition, or the transition's target lost a domain."""
    lost = state.target.used & (state.view.gpus_available == 0)[None, :]
    return ~state.moving | jnp.any(lost, axis=1)
