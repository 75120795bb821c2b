"""A jit-compiled, vmapped simulator of training large models over several data centres.

    import jax
    import jaxsim

    params = jaxsim.make("four-aws-regions", seed=0)
    state, timestep = jaxsim.reset(jax.random.key(0), params)
    state, timestep = jaxsim.step(jax.random.key(1), state, params.initial_plan, params)

Names load when they are first used: importing the package alone imports no JAX. The folders in
reading order; README.md says more:

files        reading and refusing input
cluster      domains, GPUs, links at base, efficiency of a GPU type
workload     the model and the batch being trained
plan         the decision: which domains take part, who computes what
network      how links move
load         who else wants the GPUs
step_time    plan + network -> seconds, and what a change of plan costs
reference    an independent simulator of a pipeline, for tests
learning     what a token is worth when replicas talk seldom, in few bits or late
planning     which plans there are, what they are worth, plan tables
env          one decision interval per step
scenario     worlds drawn from seeds
calibration  efficiencies learned from measured runs
presets      data that ships
worlds       worlds by name, for `make`
pytree       the base of all pytrees
trees        one of many pytrees, and many as one
vmap_last    `jax.vmap` whose axis stands last
short_axes   `jax.jit` for programs whose reductions are over short axes
materialise  results that are computed once, however many read them
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxsim.cluster import ClusterSpec, list_clusters, load_cluster
    from jaxsim.env import EnvParams, State, TimeStep, auto_reset, observe, reset, step
    from jaxsim.plan import Plan, Problem
    from jaxsim.scenario import ScenarioSettings, World, build_world, scenario_bank
    from jaxsim.step_time import NetworkView, StepCost, event_step_cost, job_step_cost
    from jaxsim.worlds import list_worlds, make, make_world

_HOME = {
    "jaxsim.worlds": ("list_worlds", "make", "make_world"),
    "jaxsim.cluster": ("ClusterSpec", "list_clusters", "load_cluster"),
    "jaxsim.env": ("EnvParams", "State", "TimeStep", "auto_reset", "observe", "reset", "step"),
    "jaxsim.plan": ("Plan", "Problem"),
    "jaxsim.scenario": ("ScenarioSettings", "World", "build_world", "scenario_bank"),
    "jaxsim.step_time": ("NetworkView", "StepCost", "event_step_cost", "job_step_cost"),
}
_MODULES = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "ClusterSpec",
    "EnvParams",
    "NetworkView",
    "Plan",
    "Problem",
    "ScenarioSettings",
    "State",
    "StepCost",
    "TimeStep",
    "World",
    "auto_reset",
    "build_world",
    "event_step_cost",
    "job_step_cost",
    "list_clusters",
    "list_worlds",
    "load_cluster",
    "make",
    "make_world",
    "observe",
    "reset",
    "scenario_bank",
    "step",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'jaxsim' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
