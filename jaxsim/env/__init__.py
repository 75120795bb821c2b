"""The environment: one decision interval per step.

env          `reset`, `step`, `auto_reset`, and the world of an interval
types        scenario, state, observation, time step
chosen       plans as an action: themselves, or numbers of prepared rows
prepare      prepares plans as rows, on the host
rows         rows whose network-independent costs are looked up
status       which jobs are here, unfinished, free to move
observation  what a scheduler sees: measured links, plan in force, masks
reward       progress, cost and the parts of the reward
resizing     what staying in a plan costs where local jobs take or return GPUs
sharing      who holds which GPUs, and how jobs share links
"""

from jaxsim.env.env import auto_reset, first_states, reset, step, world_tape
from jaxsim.env.observation import (
    EDGE_FEATURES,
    JOB_NODE_FEATURES,
    NODE_FEATURES,
    observe,
    wan_graph,
)
from jaxsim.env.prepare import with_rows
from jaxsim.env.resizing import Resizing, resize
from jaxsim.env.rows import PlanRows
from jaxsim.env.sharing import SHARING, ResourceShare, allocate_gpus, held_gpus, step_cost
from jaxsim.env.types import (
    ActionMask,
    EnvParams,
    IntervalRecord,
    Observation,
    Samples,
    State,
    TimeStep,
)

__all__ = [
    "EDGE_FEATURES",
    "JOB_NODE_FEATURES",
    "NODE_FEATURES",
    "SHARING",
    "ActionMask",
    "EnvParams",
    "IntervalRecord",
    "Observation",
    "PlanRows",
    "Resizing",
    "ResourceShare",
    "Samples",
    "State",
    "TimeStep",
    "allocate_gpus",
    "auto_reset",
    "first_states",
    "held_gpus",
    "observe",
    "reset",
    "resize",
    "step",
    "step_cost",
    "wan_graph",
    "with_rows",
    "world_tape",
]
