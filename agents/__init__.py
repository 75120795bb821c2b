"""Who decides: every scheduler, by name.

    world = jaxsim.make_world("four-aws-regions")
    params = jaxsim.make("four-aws-regions", seed=0)
    scheduler = agents.make("hysteresis", world, params, horizon=5.0)
    memory = scheduler.init(key)
    plan, memory = scheduler.decide(key, timestep.observation, memory)

Names load when they are first used: importing the package alone imports no JAX.

protocol   What a scheduler is: `Scheduler`, and what schedulers of a plan table share
paying     When a move pays: what a row brings over a horizon, time and price of the move off
shrinkage  How far an average of what was measured says what comes
staying    What it is worth to stay in a plan while links move and GPUs come and go
registry   One entry for every scheduler
foresight  Deciding on futures, known or imagined: the dynamic programme, rollout
baselines  Rivals that choose rows of the common plan table by a rule
planners   Rivals that plan by rules of their own
oracles    Schedulers that read the future: they say what was possible
hi_ppo     The learned scheduler
many_jobs  What only several jobs on one cluster need
episodes   Playing whole episodes, and what they come to
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agents.protocol import Scheduler, TableScheduler, make_setup
    from agents.registry import make, names, plan_rules

__all__ = ["Scheduler", "TableScheduler", "make", "make_setup", "names", "plan_rules"]
_HOME = {
    "agents.protocol": ("Scheduler", "TableScheduler", "make_setup"),
    "agents.registry": ("make", "names", "plan_rules"),
}
_MODULES = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'agents' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
