"""Who decides: every scheduler, by name.

    scheduler = agents.make("hysteresis", setup, horizon=5.0)
    memory = scheduler.init(key)
    plan, memory = scheduler.decide(key, observation, memory)

protocol   What a scheduler is: `Scheduler`, and what schedulers of a plan table share
registry   One entry for every scheduler
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
    from agents.protocol import Scheduler
    from agents.registry import make, names

__all__ = ["Scheduler", "make", "names"]
_WHERE = {"Scheduler": "agents.protocol", "make": "agents.registry", "names": "agents.registry"}


def __getattr__(name: str) -> Any:
    """Load what is asked for when it is asked for: `import agents` alone loads nothing."""
    if name not in _WHERE:
        raise AttributeError(f"module 'agents' has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
