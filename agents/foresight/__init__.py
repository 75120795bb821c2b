"""Deciding on futures, known or imagined: what the coming intervals are worth from each row.

programme  The dynamic programme over (time x plan table): over one future, or over many at once
futures    What links and free GPUs may do next, fitted to what was measured so far
outlook    The same as views of the network: in the mean, and in sampled futures
rollout    A planner that samples futures, solves the programme over them and decides anew each time
"""

from agents.foresight.futures import Filter, Prospect, sample_paths
from agents.foresight.outlook import Outlook
from agents.foresight.programme import (
    MigrationTable,
    distinct_transfers,
    first_deployment,
    make_course,
    migration_table,
    never_done,
    outcomes_of_moves,
    values_of_rows,
)
from agents.foresight.rollout import Rollout, RolloutMemory

__all__ = [
    "Filter",
    "MigrationTable",
    "Outlook",
    "Prospect",
    "Rollout",
    "RolloutMemory",
    "distinct_transfers",
    "first_deployment",
    "make_course",
    "migration_table",
    "never_done",
    "outcomes_of_moves",
    "sample_paths",
    "values_of_rows",
]
