"""The best plan of a whole family: network-independent cost tables, bounds, branch and bound.

bounds      What the pipelines of a plan family need alone, and the bounds on whole plans that
cost_table  The tables of `jaxsim.planning.exact.costs`: of many plans, all that no link changes
costs       Many complete plans of one job under one network: what is left of the closed form for
search      Exact search: the best plan of a family under a network, by branch and bound
"""

from jaxsim.planning.exact.cost_table import build_cost_table
from jaxsim.planning.exact.costs import LinkTimes, PlanCostTable, link_times, plan_costs
from jaxsim.planning.exact.search import ExactSearch

__all__ = [
    "ExactSearch",
    "LinkTimes",
    "PlanCostTable",
    "build_cost_table",
    "link_times",
    "plan_costs",
]
