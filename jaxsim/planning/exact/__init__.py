"""The best plan of a whole family.

cost_table  computes what no link changes, once for a batch of plans
costs       adds a network to such a table
step_table  the same for one row at a time, as environments need it
bounds      bounds plans by what their pipelines need alone
search      branch and bound over a family
wide        the whole plan space: groups with settings of their own, ways to talk
blocks      what blocks of domains may be, and their partitions
rings       orders of the ring that groups talk in
incumbent   plans that wait to be scored, and the best so far
climb       a plan made better by exchanges of domains and settings
leaders     the best plans of many partitions, even splits
worth       the plan of most worth under weights, a budget and a deadline
proposals   plans of the whole space that a table should hold
"""

from jaxsim.planning.exact.cost_table import build_cost_table
from jaxsim.planning.exact.costs import LinkTimes, PlanCostTable, link_times, plan_costs
from jaxsim.planning.exact.incumbent import finish, finish_each, longest_pipeline
from jaxsim.planning.exact.leaders import (
    best_plan,
    climbed,
    even_splits,
    is_synchronous,
    leaders,
    score,
)
from jaxsim.planning.exact.proposals import wide_plans
from jaxsim.planning.exact.search import ExactSearch
from jaxsim.planning.exact.step_table import (
    StepTable,
    all_replicas_run,
    build_step_table,
    row_step_cost,
)
from jaxsim.planning.exact.wide import SpaceResult, SpaceSearch
from jaxsim.planning.exact.worth import Asked, WorthResult, most_worth, usd_per_hour

__all__ = [
    "Asked",
    "ExactSearch",
    "LinkTimes",
    "PlanCostTable",
    "SpaceResult",
    "SpaceSearch",
    "StepTable",
    "WorthResult",
    "all_replicas_run",
    "best_plan",
    "build_cost_table",
    "build_step_table",
    "climbed",
    "even_splits",
    "finish",
    "finish_each",
    "is_synchronous",
    "leaders",
    "link_times",
    "longest_pipeline",
    "most_worth",
    "plan_costs",
    "row_step_cost",
    "score",
    "usd_per_hour",
    "wide_plans",
]
