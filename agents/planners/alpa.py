"""Alpa: inter-operator parallelism, every bound on the slowest stage tried in turn.

Zheng et al., OSDI 2022, sec. 5.2: minimise sum t_i + (B - 1) t_max over (layer range, submesh)
under 1F1B's memory; stage costs are the simulator's for the best of the shapes of a submesh. Of its
enumeration of t_max with a dynamic programme inside, the loop is left: layers are alike, so that
for a given bound every stage takes what it can (`stage_costs.min_max_layers`). Submeshes never straddle
domains, domains stand in the pipeline in any order (beyond five domains along the fastest links:
`stage_costs.domain_orders`), and the user may leave some out. Alpa knows the measured matrix, so a hop
between domains counts beside the stages, and its link like a stage; it knows no jitter. Runs 1F1B
or eager 1F1B (Zhuang et al., MLSys 2023, its own runtime's). Static: of the plans that its
objective found for several networks, the simulator's fastest at base is deployed, and the simulator
chooses micro-batch, recomputation and schedule anew in every interval (`static.StaticPlan`).

Left out: stages of one pipeline with different dp x tp (a plan's stages agree), and operator-level
sharding other than tensor parallelism, data parallelism and ZeRO-1. Round trips that throttle 1F1B
over a WAN are not in Alpa's objective.
"""

from __future__ import annotations

import numpy as np

from agents.planners.stage_costs import (
    Pipeline,
    StageCosts,
    cheapest,
    domain_orders,
    fitting,
    full_pipelines,
)
from jaxsim.plan import Plan, Recompute, Schedule
from jaxsim.planning import PlanRules, TableBuilder


def propose(builder: TableBuilder, allowed: np.ndarray) -> list[Plan]:
    """The plan with the least latency by Alpa's formula."""
    costs = StageCosts(builder, allowed)
    pipes = list(full_pipelines(costs, domain_orders(builder), builder.gpus))
    fits = fitting(builder, pipes, allowed)
    return cheapest(builder, pipes, fits, lambda pipe: latency_s(costs, pipe))


def latency_s(costs: StageCosts, pipe: Pipeline) -> np.ndarray:
    """[V] [s] of a step: sum t_i + (B - 1) t_max (eq. 2)."""
    stage_s = costs.stage_s(pipe)
    hop_s, link_s = costs.hops_s(pipe)
    once_s = stage_s @ np.array(pipe.stages) + hop_s.sum(axis=1)
    t_max = np.maximum(stage_s, link_s).max(axis=1)
    return once_s + (costs.micro_batches(pipe) - 1) * t_max


RULES = PlanRules(
    propose, (Recompute.NONE, Recompute.FULL), (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B)
)
