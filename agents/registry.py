"""Schedulers by name."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from agents.baselines import (
    even_splits,
    every_plan,
    inside_one_domain,
    keep_best,
    make_hysteresis,
    make_mast,
    make_random,
    make_self_tuning_hysteresis,
)
from agents.oracles import make_clairvoyant, make_replan_oracle
from agents.planners import alpa, crosspipe, diloco, hyperion, megatron, sailor, zero
from agents.protocol import Scheduler, Setup, admitted_plans
from jaxsim.planning import PlanTable

LEARNED = "hi_ppo"
ORACLES = ("replan_oracle", "clairvoyant")

# Rivals with plans of their own, which join the table that everybody plays.
RULES = {
    "megatron": megatron.RULES,
    "zero": zero.RULES,
    "alpa": alpa.RULES,
    "sailor": sailor.RULES,
    "crosspipe": crosspipe.RULES,
    "hyperion": hyperion.RULES,
}
# Rivals that change what a training step learns: they stand apart, with a table of their own.
LOW_COMMUNICATION_RULES = {
    "diloco": diloco.RULES,
    "streaming_diloco": diloco.STREAMING_RULES,
}


@dataclasses.dataclass(frozen=True)
class SchedulerSettings:
    """What the tunable rivals are tuned in, on training scenarios.

    Attributes:
        hysteresis_horizon: intervals over which a switch is spread
        self_tuning_decay: memory of the self-tuning re-planner per interval
        replan_oracle_horizon: intervals over which the oracle spreads a switch
        random_mean_stay: mean intervals between random moves
        sailor_horizon: intervals over which Sailor spreads a move when the free GPUs have changed
    """

    hysteresis_horizon: float = 10.0
    self_tuning_decay: float = 0.99
    replan_oracle_horizon: float = 10.0
    random_mean_stay: float = 20.0
    sailor_horizon: float = 10.0


TUNING_GRID = {
    "hysteresis": ("hysteresis_horizon", (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0)),
    "self_tuning_hysteresis": ("self_tuning_decay", (0.9, 0.97, 0.99, 0.997)),
    "replan_oracle": ("replan_oracle_horizon", (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 40.0)),
    "sailor": ("sailor_horizon", (2.0, 5.0, 10.0, 20.0, 40.0)),
}


# Who deploys one plan and keeps it: the plans [P, V] that it is chosen from.
KEPT: dict[str, Callable[[Setup], Array]] = {
    "static_even_split": even_splits,
    "single_domain": inside_one_domain,
    "best_static": every_plan,
    **{
        name: functools.partial(admitted_plans, name=name)
        for name in ("megatron", "zero", "alpa", "crosspipe", *LOW_COMMUNICATION_RULES)
    },
}


def _keeper(name: str) -> Callable[..., Scheduler]:
    return lambda setup, s: keep_best(setup, KEPT[name](setup))


_MAKERS: dict[str, Callable[..., Scheduler]] = {
    "random": lambda setup, s: make_random(setup, s.random_mean_stay),
    **{name: _keeper(name) for name in KEPT if name not in LOW_COMMUNICATION_RULES},
    "mast": lambda setup, s: make_mast(setup),
    "sailor": lambda setup, s: sailor.make_sailor(setup, s.sailor_horizon),
    "hyperion": lambda setup, s: hyperion.make_hyperion(setup),
    "hysteresis": lambda setup, s: make_hysteresis(setup, s.hysteresis_horizon),
    "self_tuning_hysteresis": lambda setup, s: make_self_tuning_hysteresis(
        setup, s.self_tuning_decay
    ),
    "replan_oracle": lambda setup, s: make_replan_oracle(setup, s.replan_oracle_horizon),
    "clairvoyant": lambda setup, s: make_clairvoyant(setup),
}
SCHEDULERS = tuple(_MAKERS)
_MAKERS |= {name: _keeper(name) for name in LOW_COMMUNICATION_RULES}
LOW_COMMUNICATION = tuple(LOW_COMMUNICATION_RULES)


def keepers(table: PlanTable) -> list[str]:
    """Names in KEPT that can play on a table: rivals among them brought their plans into it."""
    brought = {**RULES, **LOW_COMMUNICATION_RULES}
    return [name for name in KEPT if name not in brought or name in table.admitted]


def keeper_number(name: str, table: PlanTable) -> Array:
    """[] int32 of one in KEPT, for this table alone: traced, it lets them all share a compilation.

    Raises ValueError for one who brought no plans into the table.
    """
    able = keepers(table)
    if name not in able:
        raise ValueError(f"{name}: its plans were not nominated when the table was made")
    return jnp.int32(able.index(name))


def kept_plans(setup: Setup, number: Array) -> Array:
    """[P, V] bool: the plans from which the keeper of a `keeper_number` chooses its one."""
    able = keepers(setup.table)
    return jax.lax.switch(number, [functools.partial(KEPT[name], setup) for name in able])


def make_by_name(name: str, settings: SchedulerSettings) -> Callable[[Setup], Scheduler]:
    """Return `make(setup)` of a scheduler that is not learned; KeyError for an unknown name."""
    return functools.partial(_MAKERS[name], s=settings)
