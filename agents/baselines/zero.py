"""DeepSpeed-ZeRO: data parallelism alone, the state sharded by the least stage that fits.

Rajbhandari et al. 2020; hybrid sharding: inside a domain, replicated across (MiCS, Zhang et al.
2022; ZeRO++, Wang et al. 2023; PyTorch's HYBRID_SHARD). Two variants, for each the regions (two at
least) and the ring that do best at base (beyond five domains along the fastest links:
`search.domain_orders`): the least stage that fits, and stage 3 sharded inside the domains. Static.

A plan's ZeRO stage shards over the replicas of its group. For stages 1 and 2 a flat shard over all
domains sends the same bytes over the WAN as an all-reduce and would need a little less memory,
which is left out; a flat stage 3 would gather every layer over the WAN for every micro-batch, never
faster than the hybrid wherever that fits.
"""

from __future__ import annotations

import numpy as np

from agents.baselines.search import domain_orders, fastest, largest_dps
from jaxsim.enumeration import TableBuilder, assemble_plan
from jaxsim.nomination import PlanRules
from jaxsim.plan import SCHEDULE_1F1B, SCHEDULE_EAGER_1F1B, Plan
from jaxsim.workload import RECOMPUTE_FULL, RECOMPUTE_NONE

STAGES = (1, 2, 3)
HYBRID = 3


def nominate(builder: TableBuilder, allowed: np.ndarray) -> list[Plan]:
    """The best plan of the least stage that fits, and the best hybrid one."""
    best = {}
    for stage in STAGES:
        best[stage] = fastest(builder, sharded(builder, stage), allowed, 1)
    least = next((stage for stage in STAGES if best[stage]), HYBRID)
    return [plan for stage in dict.fromkeys((least, HYBRID)) for plan in best[stage]]


def sharded(builder: TableBuilder, stage: int) -> list[Plan]:
    """One replica per GPU in every domain, for every set and ring of domains."""
    layers, plans = int(builder.work.layers), []
    for order in domain_orders(builder, at_least=2):
        dps = largest_dps([int(builder.gpus[k]) for k in order], int(builder.work.global_batch))
        layout = tuple((k,) for k in order)
        splits = [([layers], [1])] * len(layout)
        plans.append(assemble_plan(layout, 1, dps, splits, builder.n_domains, zero_stage=stage))
    return plans


# One stage has no order: the two schedules are the same, and the menu holds either.
RULES = PlanRules(nominate, (RECOMPUTE_NONE, RECOMPUTE_FULL), (SCHEDULE_1F1B, SCHEDULE_EAGER_1F1B))
