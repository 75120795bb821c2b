"""The environment: one decision interval per step, as pure functions on pytrees.

chosen       Plans as an environment takes them: themselves, or the numbers of prepared ones
env          The environment: one decision interval per step, as pure functions on pytrees
observation  What a scheduler sees: the WAN as a graph, the jobs, the raw measurements, the
prepare      Preparing plans as rows, on the host
reward       The books of one interval: what the jobs achieved, what it cost, the parts of the
rows         Plans prepared once as rows of a table, for environments that play nothing else
sharing      Several jobs on one cluster: which GPUs each of them holds, and how they share the
types        What an environment is made of: the scenario, its state and what a step returns
"""

from jaxsim.env.env import first_states, reset, step, world_tape
from jaxsim.env.observation import EDGE_FEATURES, JOB_NODE_FEATURES, NODE_FEATURES, observe
from jaxsim.env.prepare import with_rows
from jaxsim.env.rows import PlanRows
from jaxsim.env.sharing import SHARING, ResourceShare, allocate_gpus, held_gpus, step_cost
from jaxsim.env.types import ActionMask, EnvParams, IntervalRecord, Observation, State, TimeStep

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
    "ResourceShare",
    "State",
    "TimeStep",
    "allocate_gpus",
    "first_states",
    "held_gpus",
    "observe",
    "reset",
    "step",
    "step_cost",
    "with_rows",
    "world_tape",
]
