"""CrossPipe: a pipeline over data centres, its operations ordered for the delay and bandwidth at
hand.

Chen et al. 2025 (arXiv 2507.00217): the stages of a given (t, p, d) are divided among data centres,
data parallelism stays inside them; schedules are built greedily under a memory limit with the links
as resources, the best of several is run, and built anew when delay or bandwidth drift. Here: of all
pipelines over two domains and more (where there is only one: inside it) the best at base, by the
simulator's step time and not by CrossPipe's own model of it; and in every interval the best of 1F1B
and eager 1F1B, with and without recomputation, at the best micro-batch, under the measured network
(`static.StaticPlan`); the stages stay where they are.

Left out: ZB-H1, which over a WAN waits as 1F1B does, and the greedy order, in which its pipeline takes
5.6 % less on the embedded cluster (7B) and 11.9 % less on eight regions (70B; `hippo fidelity --orders
true`): they are timed operation by operation, some thousand times as long as others, and a lower
choice is offered to every plan of the table; the sub-blocks of CrossWave and CrossUDSub.
"""

from __future__ import annotations

import numpy as np

from agents.planners.stage_costs import domain_orders, fastest, tensor_sizes
from jaxsim.plan import Plan, Recompute, Schedule
from jaxsim.planning import PlanRules, TableBuilder, make_plan


def propose(builder: TableBuilder, allowed: np.ndarray) -> list[Plan]:
    """The fastest pipeline over the WAN at base."""
    layers, batch = int(builder.problem.work.layers), int(builder.problem.work.global_batch)
    plans = []
    for order in domain_orders(builder, at_least=2):
        room = min(int(builder.gpus[k]) for k in order)
        for tp in tensor_sizes(builder, order):
            for dp in (d for d in range(1, room // tp + 1) if batch % d == 0):
                settings = (tp, (dp,))
                plan = make_plan(
                    (order,), settings, builder.gpus, layers, builder.n_domains, builder.pace
                )
                plans += [] if plan is None else [plan]
    return fastest(builder, plans, allowed, 1)


RULES = PlanRules(
    propose,
    (Recompute.NONE, Recompute.FULL),
    (Schedule.ONE_F_ONE_B, Schedule.EAGER_1F1B),
)
