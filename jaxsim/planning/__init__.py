"""Which plans there are, what they are worth, and which make up a table. README.md says more.

family      which plans there are: the dimensions of a search, its plans, their number
scoring     training steps per second of many plans under many networks
objectives  time, utilisation and price of a plan
balance     completes a plan: micro-batches shared in proportion to speed
builder     finds the plans of a cluster and a job that are worth having
table       the plan table, and which plans make up its rows
candidates  plans that schedulers bring along
exact       the best plan of a whole family
"""

from jaxsim.planning.balance import complete
from jaxsim.planning.builder import PARTS, WHOLE, TableBuilder
from jaxsim.planning.candidates import PlanRules, add_candidates, propose_candidates
from jaxsim.planning.family import (
    Choice,
    Pipelines,
    PlanFamily,
    count_subsets,
    list_pipelines,
    make_plan,
)
from jaxsim.planning.objectives import objectives, plan_objectives
from jaxsim.planning.scoring import base_view, best_rate, choice_rates, one_view, score_plans
from jaxsim.planning.table import PlanTable, TableInfo, build_table

__all__ = [
    "PARTS",
    "WHOLE",
    "Choice",
    "Pipelines",
    "PlanFamily",
    "PlanRules",
    "PlanTable",
    "TableBuilder",
    "TableInfo",
    "add_candidates",
    "base_view",
    "best_rate",
    "build_table",
    "choice_rates",
    "complete",
    "count_subsets",
    "list_pipelines",
    "make_plan",
    "objectives",
    "one_view",
    "plan_objectives",
    "propose_candidates",
    "score_plans",
]
