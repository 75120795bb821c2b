"""Sailor: a planner for changing, geo-distributed GPUs.

Strati et al., SOSP 2025. For each micro-batch and p, with the least t that fits, whatever d (H2): a
stage's replicas share a region (H5), the regions form the pipeline, some may stay unused; it
minimises a 1F1B estimate, (N - 1) max(t_i + comm_i) + sum (t_i + comm_i) + max sync. d is searched
exhaustively, where Sailor goes down from the most until throughput drops (H3), which saves time
alone. It plans again when the GPUs it can have change, and moves where the modelled gain over a
horizon (tuned) pays for the move.

Answers are found on the host for all GPUs free, each region gone, and each region half taken; when
something changes, the one that suits the GPUs and links as measured is deployed: suits by the
simulator, not by its own estimate, which only finds them; the simulator also chooses micro-batch
and recomputation anew in every interval (`replanning.Replanning`). Stages are balanced by each
region's own layer times; left out: a tensor parallelism for each GPU type, zones inside a region,
cost budgets.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agents.planners.stage_costs import (
    Pipeline,
    StageCosts,
    cheapest,
    domain_orders,
    fitting,
    tensor_sizes,
)
from jaxsim.plan import Plan, Recompute, Schedule
from jaxsim.planning import PlanRules, TableBuilder
from jaxsim.workload import SENT_GRADIENT_BYTES


def propose(builder: TableBuilder, allowed: np.ndarray) -> list[Plan]:
    """Its plan for all GPUs first, then those for regions gone and half taken."""
    costs = StageCosts(builder, allowed)
    plans = []
    for gpus in availabilities(builder):
        pipes = list(candidates(costs, gpus))
        fits = least_tensor(pipes, fitting(builder, pipes, allowed, gpus))
        plans += cheapest(builder, pipes, fits, lambda pipe: estimate_s(costs, pipe))
    return plans


def least_tensor(pipes: list[Pipeline], fits: np.ndarray) -> np.ndarray:
    """[P, V] bool: what fits [P, V] and has the least t that fits with as many stages (H2)."""
    tp = np.array([pipe.tp for pipe in pipes])
    stages = np.array([sum(pipe.stages) for pipe in pipes])
    out = np.zeros_like(fits)
    for p in set(stages.tolist()):
        mine = (stages == p)[:, None] & fits
        least = np.where(mine, tp[:, None], tp.max()).min(axis=0)
        out |= mine & (tp[:, None] == least)
    return out


def availabilities(builder: TableBuilder) -> list[np.ndarray]:
    """[K] GPUs each: all, one region gone, one half taken."""
    n = builder.spec.n_domains
    less = [np.arange(builder.n_domains) == k for k in range(n)]
    cuts = [np.where(mine, left, builder.gpus) for left in (0, builder.gpus // 2) for mine in less]
    return [builder.gpus, *cuts]


def candidates(costs: StageCosts, gpus: np.ndarray) -> Iterator[Pipeline]:
    """For every (p, t, d) the regions and their order with the least communication."""
    builder = costs.builder
    orders = [o for o in domain_orders(builder) if min(int(gpus[k]) for k in o) > 0]
    links = np.array([link_cost(costs, order) for order in orders])
    sizes = {tp for k in range(builder.spec.n_domains) for tp in tensor_sizes(builder, [k])}
    for tp in sorted(sizes):
        able = np.where(builder.per_node >= tp, gpus, 0)  # t stays inside a node
        for dp in (d for d in range(1, int(able.max()) // tp + 1) if costs.batch % d == 0):
            rooms = (able // (tp * dp)).tolist()
            # More regions than the stages need would only add hops.
            spans = [needed(rooms, order) for order in orders]
            first, end = np.array([(span.start, span.stop) for span in spans]).reshape(-1, 2).T
            for p in range(1, min(costs.layers, sum(rooms)) + 1):
                enough = np.flatnonzero((first <= p) & (p < end))
                if len(enough):
                    order = orders[enough[links[enough].argmin()]]
                    stages = filled(rooms, order, p)
                    yield from costs.balanced(order, tp, dp, stages, hops=True)


def link_cost(costs: StageCosts, order: tuple[int, ...]) -> float:
    """[s] of a step's hops, one sequence per micro-batch: the slowest many times, others once."""
    pipe = Pipeline(order, 1, 1, (1,) * len(order), (1,) * len(order))
    hop_s = costs.hops_s(pipe)[0][0]
    return float((costs.micro_batches(pipe)[0] - 1) * hop_s.max() + hop_s.sum())


def needed(rooms: list[int], order: tuple[int, ...]) -> range:
    """Numbers of stages that the regions can hold, and not without the last of them."""
    held = [rooms[k] for k in order]
    return range(sum(held[:-1]) + 1, sum(held) + 1) if min(held) >= 1 else range(0)


def filled(rooms: list[int], order: tuple[int, ...], p: int) -> list[int]:
    """p stages over the regions: each is filled before the next."""
    stages = [rooms[k] for k in order]
    return [*stages[:-1], p - sum(stages[:-1])]


def estimate_s(costs: StageCosts, pipe: Pipeline) -> np.ndarray:
    """[V] [s] of a step by Sailor's 1F1B formula; what it sends is not hidden."""
    stage_s = costs.stage_s(pipe)
    busy_s = stage_s + costs.hops_s(pipe)[0]
    once = stage_s @ (np.array(pipe.stages) - 1) + busy_s.sum(axis=1)
    return (costs.micro_batches(pipe) - 1) * busy_s.max(axis=1) + once + sync_s(costs, pipe)


def sync_s(costs: StageCosts, pipe: Pipeline) -> float:
    """[s] of the largest stage's all-reduce over its replicas, on the region's network."""
    work, cluster = costs.builder.problem.work, costs.builder.problem.cluster
    each = np.array([-(-n // s) for n, s in zip(pipe.layers, pipe.stages, strict=True)])
    # The tp ranks of a stage share their node's network.
    gradient_gb = each * float(work.layer_gparams) * SENT_GRADIENT_BYTES
    share = np.asarray(costs.builder.problem.calibration.intra_efficiency, np.float64)
    reached = np.asarray(cluster.intra_gb_per_s, np.float64) * share
    rate = np.broadcast_to(reached, cluster.gpus.shape)[list(pipe.order)]
    return float((2.0 * (pipe.dp - 1) / pipe.dp * gradient_gb / rate).max())


RULES = PlanRules(propose, (Recompute.NONE, Recompute.FULL), (Schedule.ONE_F_ONE_B,))
