"""Hyperion: an offline min-max split over tiers, online placement inside them.

arXiv 2511.14450, an inference scheduler taken as a training rival: tiers are domains; the split
minimises the slowest stage or link, per sequence, at base bandwidth and under memory (its binary
search over the bound and dynamic programme over blocks: layers are alike here, so the bound
decides). The split is made again only when a tier comes or goes. Placement inside a tier follows
queues and capacity: GPUs of a domain are alike and a plan's replicas shrink to what is free, so
nothing is left to choose. Of the splits that it proposed (all tiers, each gone; for several
networks) the simulator's fastest is deployed, which need not be the one with the fastest slowest
stage, and the simulator chooses micro-batch, recomputation and schedule anew in every interval
(`replanning.Replanning`).

Latency is not in its objective: where a round trip throttles the pipeline, that is the method's
loss.
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
    """Its split over all tiers, then those with each tier gone."""
    costs = StageCosts(builder, allowed)
    orders = domain_orders(builder, at_least=2)
    pipes = list(full_pipelines(costs, orders, builder.gpus))
    fits = fitting(builder, pipes, allowed)
    plans = []
    for gone in (None, *range(builder.spec.n_domains)):
        left = np.array([gone not in pipe.order for pipe in pipes], bool)
        able = fits & left[:, None]
        plans += cheapest(builder, pipes, able, lambda pipe: bottleneck_s(costs, pipe))
    return plans


def bottleneck_s(costs: StageCosts, pipe: Pipeline) -> np.ndarray:
    """[V] [s] per sequence of the slowest stage or link."""
    slowest = np.maximum(costs.stage_s(pipe), costs.hops_s(pipe)[1]).max(axis=1)
    return slowest * costs.micro_batches(pipe)


RULES = PlanRules(
    propose, (Recompute.NONE, Recompute.FULL), (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B)
)
