"""Numbers from the tables of a run: intervals, fronts, summaries, key figures.

bootstrap  Estimates with intervals: paired over scenarios, honest about what was resampled
ddp        Tables of a data-parallel run: slowest rank per step, paired intervals, predicted
jobs       An evaluation of many jobs in numbers: what its summary.json holds, from the tables
kpi        The eight KPIs as pure functions of what was played: nothing here simulates anything
pareto     Trade-offs: fronts of points whose coordinates are all to be small, and how well they
summary    An evaluation in numbers: what summary.json holds, computed from the tables beside it
"""

from analysis.statistics import bootstrap, kpi
from analysis.statistics.bootstrap import Interval, bootstrap_interval, scenario_matrix, seed_band
from analysis.statistics.ddp import (
    COLUMNS,
    COST_COLUMNS,
    Cost,
    accuracy_table,
    ceiling,
    first_step,
    fitted_costs,
    gains,
    p95,
    per_step,
    predictions,
    summary_table,
)
from analysis.statistics.jobs import jobs_summary
from analysis.statistics.kpi import Played, entry
from analysis.statistics.pareto import covered, front, front_note, hypervolume_ratio
from analysis.statistics.summary import evaluation_summary, with_headroom

__all__ = [
    "COLUMNS",
    "COST_COLUMNS",
    "Cost",
    "Interval",
    "Played",
    "accuracy_table",
    "bootstrap",
    "bootstrap_interval",
    "ceiling",
    "covered",
    "entry",
    "evaluation_summary",
    "first_step",
    "fitted_costs",
    "front",
    "front_note",
    "gains",
    "hypervolume_ratio",
    "jobs_summary",
    "kpi",
    "p95",
    "per_step",
    "predictions",
    "scenario_matrix",
    "seed_band",
    "summary_table",
    "with_headroom",
]
