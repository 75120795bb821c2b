"""DeepSpeed-ZeRO: data parallelism alone, the state sharded by the least stage that fits.

Rajbhandari et al. 2020; hybrid sharding: inside a domain, replicated across (MiCS, Zhang et al.
2022; ZeRO++, Wang et al. 2023; PyTorch's HYBRID_SHARD). Its replicas stand in all regions, but for
those that the user leaves out: two at least where there are two (one region alone is the subject of
`single_domain`). Two variants, for each the regions and the ring that do best at base (beyond five
domains along the fastest links: `stage_costs.domain_orders`): the least stage that fits, and stage 3
sharded inside the domains. Static: the simulator's faster one in the mean over the states to be
expected is deployed, and micro-batch and recomputation are chosen anew in every interval
(`static.StaticPlan`).

Left out: flat shards over all domains (`Plan.shard_groups`), which no plan table holds. So where no
domain holds a replica of its own, sharded over its GPUs, `zero` has no plan and makes no progress,
though a flat stage 3 over all GPUs fits: 70B on the embedded cluster, 38.8 GB of state on each of
32 GPUs. It would gather (n - 1) / n of the 16-bit weights over every link of the ring twice for
every micro-batch: 331 s each time over the best ring there, some 2,980 s a step with the largest
micro-batch of the menu, four sequences, against 176 s of a pipeline (eager 1F1B). ZeRO++'s hpZ, a
second shard of the weights inside each domain, would save one of the two gathers. Where the hybrid
fits, flat stage 3 is never faster; flat stages 1 and 2 send the bytes of an all-reduce and would
need a little less memory.
"""

from __future__ import annotations

import numpy as np

from agents.planners.stage_costs import domain_orders, fastest, largest_dps
from jaxsim.plan import Plan, Recompute, Schedule
from jaxsim.planning import PlanRules, TableBuilder

STAGES = (1, 2, 3)
HYBRID = 3


def propose(builder: TableBuilder, allowed: np.ndarray) -> list[Plan]:
    """The best plan of the least stage that fits, and the best hybrid one."""
    best = {}
    for stage in STAGES:
        best[stage] = fastest(builder, sharded(builder, stage), allowed, 1)
    least = next((stage for stage in STAGES if best[stage]), HYBRID)
    return [plan for stage in dict.fromkeys((least, HYBRID)) for plan in best[stage]]


def sharded(builder: TableBuilder, stage: int) -> list[Plan]:
    """One replica per GPU in every domain, for every set and ring of domains."""
    layers, plans = int(builder.problem.work.layers), []
    for order in domain_orders(builder, at_least=2):
        dps = largest_dps(
            [int(builder.gpus[k]) for k in order], int(builder.problem.work.global_batch)
        )
        layout = tuple((k,) for k in order)
        splits = [([layers], [1])] * len(layout)
        plans.append(Plan.assemble(layout, 1, dps, splits, builder.n_domains, zero_stage=stage))
    return plans


# With one stage both schedules are the same, and the menu may hold either.
RULES = PlanRules(
    propose, (Recompute.NONE, Recompute.FULL), (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B)
)
