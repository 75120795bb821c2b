"""Which plans there are, what they are worth, and which of them make up a table.

balance      Completing a plan: micro-batches shared among groups in proportion to their speed
candidates   Plans that schedulers bring along: each by its own rules, all in the one table that
enumeration  The admissible plans of a cluster and a job, found on the host, scored in batches
exact
family       Plan families: which plans a search spans, how many they are, and the pipelines they
objectives   What a plan is worth besides its speed: the three objectives of a trade-off, all to
scoring      How fast plans train: training steps per second under many networks, lower choices
table        Plan tables: which of a family's plans are worth a row, chosen to do well together
"""

from jaxsim.planning.balance import complete
from jaxsim.planning.candidates import PlanRules, add_candidates, propose_candidates
from jaxsim.planning.enumeration import (
    PARTS,
    WHOLE,
    PlanTable,
    TableBuilder,
    assemble_plan,
    make_plan,
)
from jaxsim.planning.family import Choice, Pipelines, PlanFamily, count_subsets, list_pipelines
from jaxsim.planning.objectives import objectives, plan_objectives
from jaxsim.planning.scoring import base_view, best_rate, choice_rates, one_view, score_plans
from jaxsim.planning.table import TableInfo, build_table

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
    "assemble_plan",
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
