"""Who plays: schedulers by name, and checkpoints with an entry for each of their policy seeds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from agents.baselines import keep_best
from agents.hi_ppo import Checkpoint, load_checkpoint, load_shipped, make_hi_ppo, policies
from agents.protocol import Scheduler, Setup
from agents.registry import (
    KEPT,
    LEARNED,
    LOW_COMMUNICATION,
    ORACLES,
    SCHEDULERS,
    TUNING_GRID,
    SchedulerSettings,
    keeper_number,
    kept_plans,
    make_by_name,
)
from jaxsim.files import InputError
from jaxsim.planning import PlanTable

Maker = Callable[[Setup, Any], Scheduler]  # (setup, policy) -> scheduler; one compilation per maker


class Contestant(NamedTuple):
    """One scheduler, or one policy seed of a learned one."""

    policy_seed: int | None
    maker: Maker
    policy: Any


@functools.cache
def learned_maker(hidden: int, every: int) -> Maker:
    """Hi-PPO as a function of its parameters, so that all policy seeds share one compilation."""
    return lambda setup, policy: make_hi_ppo(setup, policy, hidden, every)


@functools.cache
def _tuned_maker(name: str) -> Maker:
    """A scheduler as a function of what it is tuned in, so that no value costs a compilation."""

    def make(setup, value):
        settings = {TUNING_GRID[name][0]: value} if name in TUNING_GRID else {}
        return make_by_name(name, SchedulerSettings(**settings))(setup)

    return make


def _keep_by_number(setup: Setup, number: Array) -> Scheduler:
    """Any of those who keep one plan."""
    return keep_best(setup, kept_plans(setup, number))


def named(name: str, table: PlanTable, settings: SchedulerSettings) -> tuple[Maker, Any]:
    """A scheduler that is not learned, and what it takes as its policy.

    Raises ValueError for one who keeps a plan and brought none into the table.
    """
    if name in KEPT:
        return _keep_by_number, keeper_number(name, table)
    value = jnp.float32(getattr(settings, TUNING_GRID[name][0])) if name in TUNING_GRID else ()
    return _tuned_maker(name), value


def requested(
    schedulers: str, checkpoint: str | None = None
) -> tuple[list[str], dict[str, Checkpoint]]:
    """The names in a list separated by commas (all = every one), and the checkpoints among them;
    `checkpoint` is what the name hi_ppo means, None the one that ships.

    Raises InputError that lists the known names for what is neither.
    """
    names = [n.strip() for n in schedulers.split(",") if n.strip()]
    if names == ["all"]:
        names = [*SCHEDULERS, LEARNED, *LOW_COMMUNICATION]
    checkpoints = {}
    for name in names:
        if name == LEARNED:
            shipped = checkpoint is None
            checkpoints[name] = load_shipped() if shipped else load_checkpoint(checkpoint)
        elif name not in (*SCHEDULERS, *LOW_COMMUNICATION):
            if not Path(name).exists():
                known = ", ".join((*SCHEDULERS, LEARNED, *LOW_COMMUNICATION))
                raise InputError(
                    f"schedulers: {name!r} is neither a checkpoint nor one of: {known}"
                )
            checkpoints[name] = load_checkpoint(name)
    if not set(names) - set(LOW_COMMUNICATION):
        apart = " and ".join(LOW_COMMUNICATION)
        raise InputError(f"schedulers: expected at least one name beside {apart}")
    return list(dict.fromkeys(names)), checkpoints


def requested_without_truth(scheduler: str, key: str) -> tuple[str, dict[str, Checkpoint]]:
    """The one scheduler that option `key` asks for, and its checkpoint where it has one.

    Raises InputError for none, for several, and for the oracles.
    """
    names, checkpoints = requested(scheduler)
    if len(names) != 1 or names[0] in ORACLES:
        raise InputError(
            f"{key}: expected one that needs no truth (not {', '.join(ORACLES)}), got {scheduler!r}"
        )
    return names[0], checkpoints


def contestants(
    name: str,
    checkpoints: dict[str, Checkpoint],
    settings: SchedulerSettings,
    table: PlanTable,
) -> list[Contestant]:
    """What plays under a name on a table: one entry, or one for each policy seed."""
    if name not in checkpoints:
        return [Contestant(None, *named(name, table, settings))]
    meta = checkpoints[name].meta
    maker = learned_maker(meta["hidden"], meta["every"])
    seeds = zip(meta["seeds"], policies(checkpoints[name]), strict=True)
    return [Contestant(seed, maker, policy) for seed, policy in seeds]
