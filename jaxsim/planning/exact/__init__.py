"""The best plan of a whole family.

cost_table  computes what no link changes, once for a batch of plans
costs       adds a network to such a table
step_table  the same for one row at a time, as environments need it
bounds      bounds plans by what their pipelines need alone
search      branch and bound
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
