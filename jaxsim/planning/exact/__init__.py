"""The best plan of a whole family: network-independent cost tables, bounds, branch and bound.

bounds      What the pipelines of a plan family need alone, and the bounds on whole plans that
cost_table  Precompute every network-independent cost term of a batch of plans
costs       Many complete plans of one job under one network: the closed form from a table
search      Exact search: the best plan of a family under a network, by branch and bound
step_table  Plans of one job as rows of a table: the whole cost of a step of a row under a network
"""

from jaxsim.planning.exact.cost_table import build_cost_table
from jaxsim.planning.exact.costs import LinkTimes, PlanCostTable, link_times, plan_costs
from jaxsim.planning.exact.search import ExactSearch
from jaxsim.planning.exact.step_table import (
    StepTable,
    all_replicas_run,
    build_step_table,
    row_step_cost,
)

__all__ = [
    "ExactSearch",
    "LinkTimes",
    "PlanCostTable",
    "StepTable",
    "all_replicas_run",
    "build_cost_table",
    "build_step_table",
    "link_times",
    "plan_costs",
    "row_step_cost",
]
