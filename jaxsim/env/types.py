"""What an environment is made of: the scenario, its state and what a step returns."""

from __future__ import annotations

import jraph
from flax import struct
from jax import Array

from jaxsim.env.rows import PlanRows
from jaxsim.load import LoadProcess
from jaxsim.network import NetworkProcess, NetworkState
from jaxsim.plan import ALL_SCHEDULES, Plan, Problem
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, StepCost, Transition


class EnvParams(Pytree):
    """One scenario. Sizes J, K, V and the traces' lengths are static, all values are traced."""

    problem: Problem  # jobs [J] in order of arrival, which is their priority on GPUs
    network: NetworkProcess
    load: LoadProcess
    initial_plan: Plan  # [J], in force at reset
    progress_ref: Array  # [J] [training steps] per interval of the best static plan, base network
    weights: Array  # [4] w1..w4
    interval_s: Array  # [] [s]
    horizon: Array  # [] int32 intervals
    # The world's course [T, ...], where it is known beforehand; None = `network` and `load` draw it.
    tape: NetworkView | None = None
    # Plans prepared once, see `with_rows`: actions are then their numbers. None = actions are plans.
    rows: PlanRows | None = None
    # Static: those that plans may have; one with another does not run.
    schedules: tuple[int, ...] = struct.field(pytree_node=False, default=ALL_SCHEDULES)
    sharing: str = struct.field(
        pytree_node=False, default="fair"
    )  # of `jaxsim.env.sharing.SHARING`


class State(Pytree):
    """Markov state; [J] leads where a field belongs to a job."""

    key: Array  # the scenario's key: the world is a function of (params, key, t)
    t: Array  # [] int32 interval about to be played
    network: NetworkState
    view: NetworkView  # what was measured in the last interval
    plan: Plan  # [J] in force
    target: Plan  # [J] being moved to; equals plan when no transition runs
    moving: Array  # [J] bool
    transition: Transition  # [J]
    owed_gb: Array  # [J, K, K] [GB] outer sync that the plan in force owes before it changes
    steps_done: Array  # [J] [training steps], efficiency included
    since_sync: Array  # [J] [training steps] since the last outer sync
    since_switch: Array  # [J] int32 intervals since the last reconfiguration began
    # With EnvParams.rows:
    row: Array | None = None  # [J] int32, of `plan`
    target_row: Array | None = None  # [J] int32, of `target`
    lower: Array | None = None  # [J, V] bool, lower choices that fit with the GPUs in `view`


class ActionMask(Pytree):
    """True = allowed."""

    retarget: Array  # [J] a reconfiguration may begin
    domains: Array  # [K] the domain exists and has a free GPU
    lower: Array  # [J, V] the choice fits memory with the present split of the batch


class Observation(Pytree):
    """Measured up to the interval before the decision.

    `graph` is fully connected, edge k * K + k' leads from k to k'; padded domains are zero and
    `graph_mask` tells them apart.
    """

    graph: jraph.GraphsTuple  # nodes [K, NODE_FEATURES], edges [K * K, EDGE_FEATURES]
    graph_mask: Array  # [K] bool
    job_nodes: Array  # [J, K, JOB_NODE_FEATURES] the plan in force, domain by domain
    view: NetworkView  # links and GPUs as measured; geo-jobs' own GPUs count as free
    plan: Plan  # [J] in force
    target: Plan  # [J]
    moving: Array  # [J] bool
    transition: Transition  # [J] what is left of it
    since_switch: Array  # [J] int32 intervals
    since_sync: Array  # [J] [training steps]
    steps_done: Array  # [J] [training steps]
    job_mask: Array  # [J] bool, False for padding, finished jobs and those still to come
    mask: ActionMask
    t: Array  # [] int32
    # [P, V] [training steps / s] of the rows and lower choices of everybody's plan table under `view`,
    # where whoever plays the episode has scored it already; None = each scheduler scores it itself
    rates: Array | None = None


class RewardParts(Pytree):
    """[] each, before weighting."""

    efficiency: Array  # progress / progress_ref - 1, mean over jobs
    utilisation: Array  # useful FLOPs / peak FLOPs of the available GPUs
    cost: Array  # egress USD / GPU USD
    fairness: Array  # variance of load between domains


class IntervalRecord(Pytree):
    """What happened in the interval, for metrics; not for schedulers."""

    progress: Array  # [J] [training steps], efficiency included
    train_s: Array  # [J] [s] in which the job computed
    cost: StepCost  # [J] of the plan that computed
    wan_gb: Array  # [K, K] [GB] training traffic
    migration_gb: Array  # [K, K] [GB] reconfiguration traffic
    egress_usd: Array  # [] [USD]
    gpu_usd: Array  # [] [USD]
    switched: Array  # [J] bool, a reconfiguration began
    reward_parts: RewardParts


class TimeStep(Pytree):
    """What the scheduler gets back."""

    observation: Observation
    reward: Array  # []
    terminated: Array  # [] bool
    truncated: Array  # [] bool
    final_observation: Observation  # differs from observation only after an automatic reset
    record: IntervalRecord
