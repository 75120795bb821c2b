"""Megatron-LM's rule of thumb: tensor parallelism inside a node, the fewest pipeline stages, the
rest data parallelism.

Narayanan et al., SC 2021 (takeaways 1-3), with sequence parallelism and selective recomputation
before full (Korthikanti et al. 2022). Ranks are laid out so that the WAN falls on data parallelism,
or on the pipeline, or in one region alone: three variants, and for each the regions and their order
that do best at base, as whoever writes the host file would choose them (beyond five domains along
the fastest links: `stage_costs.domain_orders`). Static: the simulator's fastest of them at base is
deployed, and the simulator chooses micro-batch and recomputation anew in every interval
(`static.StaticPlan`).

Left out: interleaved stages. A lower choice is offered to every plan of the table, and an interleaved
pipeline is timed operation by operation, some hundred times as long as others. They would save 5 % of
a pipeline over the WAN (268.6 s a step instead of 282.9 s, 70B on the embedded cluster, 512 sequences;
`hippo fidelity --orders true`), nothing of its plans for 7B there and for 70B on eight regions, and 1
to 2 % inside domains: a share of the bubble, (p - 1) / m.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agents.planners.stage_costs import domain_orders, fastest, largest_dps, tensor_sizes
from jaxsim.plan import Layout, Plan, Recompute, Schedule, split_layers
from jaxsim.planning import PlanRules, TableBuilder


def propose(builder: TableBuilder, allowed: np.ndarray) -> list[Plan]:
    """The best plan with data parallelism over the WAN, with the pipeline over it, and without it."""
    orders = [order for order in domain_orders(builder) if len(order) > 1]
    replicas = [tuple((k,) for k in order) for order in orders]
    pipelines = [(order,) for order in orders]
    alone = [((k,),) for k in range(builder.spec.n_domains)]
    variants = (first_that_fit(builder, x, allowed) for x in (replicas, pipelines, alone))
    return [plan for plans in variants for plan in fastest(builder, plans, allowed, 1)]


def first_that_fit(builder: TableBuilder, layouts: list[Layout], allowed: np.ndarray) -> list[Plan]:
    """Of every layout the first plan of the rule's order that fits."""
    tries = [(i, plan) for i, layout in enumerate(layouts) for plan in in_order(builder, layout)]
    if not tries:
        return []
    fits = np.any((builder.base_rates([p for _, p in tries]) > 0) & allowed, axis=1)
    first: dict[int, Plan] = {}
    for (i, plan), good in zip(tries, fits.tolist(), strict=True):
        if good:
            first.setdefault(i, plan)
    return list(first.values())


def in_order(builder: TableBuilder, layout: Layout) -> Iterator[Plan]:
    """Plans of a layout as the rule tries them: p from 1 up, for each t up to a node, d the rest."""
    layers = int(builder.problem.work.layers)
    for stages in (p for p in range(1, layers + 1) if layers % p == 0):
        splits = [split_layers(layers, [stages] * len(group)) for group in layout]
        if any(stages * len(group) > layers for group in layout):
            return
        for tp in tensor_sizes(builder, (k for group in layout for k in group)):
            rooms = [min(int(builder.gpus[k]) for k in g) // (tp * stages) for g in layout]
            if min(rooms) >= 1:
                dps = largest_dps(rooms, int(builder.problem.work.global_batch))
                yield Plan.assemble(layout, tp, dps, splits, builder.n_domains)


RULES = PlanRules(
    propose, (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL), (Schedule.ONE_F_ONE_B,)
)
