"""What an environment is made of: the scenario, its state and what a step returns."""

from __future__ import annotations

import jraph
from flax import struct
from jax import Array
from jaxtyping import Bool, Float, Int, Key

from jaxsim.env.rows import PlanRows
from jaxsim.load import LoadProcess
from jaxsim.network import NetworkProcess, NetworkState
from jaxsim.plan import ALL_SCHEDULES, Plan, Problem
from jaxsim.planning import Objective
from jaxsim.pytree import Pytree
from jaxsim.step_time import NetworkView, StepCost, Transition


class Samples(Pytree):
    """States of links and free GPUs, leaves [W, ...], each with the state an interval before it."""

    before: NetworkView
    now: NetworkView


class EnvParams(Pytree):
    """One scenario. Sizes J, K, V and the traces' lengths are static, all values are traced."""

    problem: Problem  # jobs [J] in order of arrival, which is their priority on GPUs
    network: NetworkProcess
    load: LoadProcess
    initial_plan: Plan  # [J], in force at reset
    # [training steps] per interval of the best static plan, base network
    progress_ref: Float[Array, "*batch J"]
    weights: Float[Array, "*batch 4"]  # w1..w4
    interval_s: Float[Array, "*batch"]  # [s]
    horizon: Int[Array, "*batch"]  # intervals
    # What schedulers are to maximise; None = progress alone. Rewards go by `weights`.
    objective: Objective | None = None
    # The world's course [T, ...], where it is known beforehand; None = `network` and `load` draw it.
    tape: NetworkView | None = None
    # What links and free GPUs may look like, W samples: drawn as the scenario is, but not from its
    # course. Public; None = their mean alone is known.
    outlook: Samples | None = None
    # Plans prepared once, see `with_rows`: actions are then their numbers. None = actions are plans.
    rows: PlanRows | None = None
    # Static: may the GPUs that a job finds change while its plan is in force? False where nobody else
    # wants them: what changes would cost is not compiled then.
    gpus_vary: bool = struct.field(pytree_node=False, default=True)
    # Static: the schedules that plans may have. A plan with another one does not run.
    schedules: tuple[int, ...] = struct.field(pytree_node=False, default=ALL_SCHEDULES)
    sharing: str = struct.field(
        pytree_node=False, default="fair"
    )  # of `jaxsim.env.sharing.SHARING`


class State(Pytree):
    """Markov state; [J] leads where a field belongs to a job."""

    key: Key[Array, "*batch"]  # the scenario's key: the world is a function of (params, key, t)
    t: Int[Array, "*batch"]  # interval about to be played
    network: NetworkState
    view: NetworkView  # what was measured in the last interval
    plan: Plan  # [J] in force
    target: Plan  # [J] being moved to; equals plan when no transition runs
    moving: Bool[Array, "*batch J"]
    transition: Transition  # [J]
    # [GB] outer sync that the plan in force owes before it changes
    owed_gb: Float[Array, "*batch J K K"] | None
    steps_done: Float[Array, "*batch J"]  # [training steps], efficiency included
    since_sync: Float[Array, "*batch J"]  # [training steps] since the last outer sync
    since_switch: Int[Array, "*batch J"]  # intervals since the last reconfiguration began
    # Where GPUs vary: those that each job used in the last interval
    gpus_used: Int[Array, "*batch J K"] | None = None
    # [GB] of state that groups of local SGD lack after they had lost their GPUs
    behind_gb: Float[Array, "*batch J K K"] | None = None
    # With EnvParams.rows:
    row: Int[Array, "*batch J"] | None = None  # of `plan`
    target_row: Int[Array, "*batch J"] | None = None  # of `target`
    lower: Bool[Array, "*batch J V"] | None = None  # lower choices that fit with the GPUs in `view`


class ActionMask(Pytree):
    """True = allowed."""

    retarget: Bool[Array, "*batch J"]  # a reconfiguration may begin
    domains: Bool[Array, "*batch K"]  # the domain exists and has a free GPU
    lower: Bool[Array, "*batch J V"]  # the choice fits memory with the present split of the batch


class Observation(Pytree):
    """Measured up to the interval before the decision.

    `graph` is fully connected, edge k * K + k' leads from k to k'; padded domains are zero and
    `graph_mask` tells them apart.
    """

    graph: jraph.GraphsTuple  # nodes [K, NODE_FEATURES], edges [K * K, EDGE_FEATURES]
    graph_mask: Bool[Array, "*batch K"]
    job_nodes: Float[Array, "*batch J K F"]  # the plan in force, domain by domain
    view: NetworkView  # links and GPUs as measured; geo-jobs' own GPUs count as free
    plan: Plan  # [J] in force
    target: Plan  # [J]
    moving: Bool[Array, "*batch J"]
    transition: Transition  # [J] what is left of it
    since_switch: Int[Array, "*batch J"]  # intervals
    since_sync: Float[Array, "*batch J"]  # [training steps]
    steps_done: Float[Array, "*batch J"]  # [training steps]
    job_mask: Bool[Array, "*batch J"]  # False for padding, finished jobs and those still to come
    mask: ActionMask
    t: Int[Array, "*batch"]
    # [GB] of state that groups of local SGD still fetch; None where no plan may need it
    behind_gb: Float[Array, "*batch J K K"] | None
    # [P, V] [training steps / s] of the rows and lower choices of everybody's plan table under `view`,
    # where whoever plays the episode has scored it already; None = each scheduler scores it itself
    rates: Float[Array, "*batch P V"] | None = None


class RewardParts(Pytree):
    """[] each, before weighting."""

    efficiency: Float[Array, "*batch"]  # progress / progress_ref - 1, mean over jobs
    utilisation: Float[Array, "*batch"]  # useful FLOPs / peak FLOPs of the available GPUs
    cost: Float[Array, "*batch"]  # egress USD / GPU USD
    fairness: Float[Array, "*batch"]  # variance of load between domains


class IntervalRecord(Pytree):
    """What happened in the interval, for metrics; not for schedulers."""

    progress: Float[Array, "*batch J"]  # [training steps], efficiency included
    train_s: Float[Array, "*batch J"]  # [s] in which the job computed
    cost: StepCost  # [J] of the plan that computed
    wan_gb: Float[Array, "*batch K K"]  # [GB] training traffic
    migration_gb: Float[Array, "*batch K K"]  # [GB] reconfiguration traffic
    egress_usd: Float[Array, "*batch"]  # [USD]
    gpu_usd: Float[Array, "*batch"]  # [USD]
    switched: Bool[Array, "*batch J"]  # a reconfiguration began
    reward_parts: RewardParts


class TimeStep(Pytree):
    """What the scheduler gets back."""

    observation: Observation
    reward: Float[Array, "*batch"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    final_observation: Observation  # differs from observation only after an automatic reset
    record: IntervalRecord
