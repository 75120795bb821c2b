"""Which plans there are, what they are worth, and which make up a table. README.md says more.

family      which plans there are: the dimensions of a search, its plans, their number
cuts        how the layers of a pipeline are cut
space       the whole plan space: partitions of domains, and how groups talk
scoring     training steps per second of many plans under many networks
objective   what is to be had from a plan: weights, budget, deadline
objectives  time, utilisation and price of a plan
balance     completes a plan: micro-batches shared in proportion to speed
builder     finds the plans of a cluster and a job that are worth having
table       the plan table, and which plans make up its rows
candidates  plans that schedulers bring along
pairs       the lower choices of a table's rows that are worth weighing
transfers   what moves between a table's rows send, with what is equal told once
exact       the best plan of a whole family
"""

from jaxsim.planning.balance import complete, share_batch
from jaxsim.planning.builder import WHOLE, TableBuilder
from jaxsim.planning.candidates import PlanRules, add_candidates, propose_candidates
from jaxsim.planning.cuts import Pace, layer_pace
from jaxsim.planning.family import (
    Choice,
    Common,
    Pipelines,
    PlanFamily,
    count_subsets,
    list_pipelines,
    make_plan,
    plan_key,
    row_key,
)
from jaxsim.planning.objective import (
    BUDGET_SHARES,
    LEAST_PROGRESS,
    NEVER,
    PENALTY,
    SAMPLED,
    Objective,
    Preference,
    Worth,
    choice_worths,
    plan_worth,
    row_worths,
)
from jaxsim.planning.objectives import objectives, plan_objectives, usd_per_hour
from jaxsim.planning.pairs import filled, repeated, worthwhile_pairs
from jaxsim.planning.scoring import (
    base_view,
    best_rate,
    choice_rates,
    gpus_once,
    in_front,
    one_view,
    over_plans,
    row_rates,
    same_gpus,
    score_plans,
)
from jaxsim.planning.space import (
    ALLOWED,
    ASKED_PARTS,
    PARTS,
    Exchange,
    PlanSpace,
    partitions,
)
from jaxsim.planning.table import PlanTable, TableInfo, build_table
from jaxsim.planning.transfers import Transfers

__all__ = [
    "ALLOWED",
    "ASKED_PARTS",
    "BUDGET_SHARES",
    "LEAST_PROGRESS",
    "NEVER",
    "PARTS",
    "PENALTY",
    "SAMPLED",
    "WHOLE",
    "Choice",
    "Common",
    "Exchange",
    "Objective",
    "Pace",
    "Pipelines",
    "PlanFamily",
    "PlanRules",
    "PlanSpace",
    "PlanTable",
    "Preference",
    "TableBuilder",
    "TableInfo",
    "Transfers",
    "Worth",
    "add_candidates",
    "base_view",
    "best_rate",
    "build_table",
    "choice_rates",
    "choice_worths",
    "complete",
    "count_subsets",
    "filled",
    "gpus_once",
    "in_front",
    "layer_pace",
    "list_pipelines",
    "make_plan",
    "objectives",
    "one_view",
    "over_plans",
    "partitions",
    "plan_key",
    "plan_objectives",
    "plan_worth",
    "propose_candidates",
    "repeated",
    "row_key",
    "row_rates",
    "row_worths",
    "same_gpus",
    "score_plans",
    "share_batch",
    "usd_per_hour",
    "worthwhile_pairs",
]
