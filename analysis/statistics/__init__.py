"""Numbers from the tables of a run.

bootstrap  estimates with intervals, paired over scenarios
summary    an evaluation
scenes     the scenes of a suite together
jobs       an evaluation of many jobs
kpi        the eight key figures
pareto     fronts, and how well they are covered
ddp        a data-parallel run
sweep      a designed range of worlds
"""

from analysis.statistics import bootstrap, kpi, sweep
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
from analysis.statistics.scenes import SceneMean, scene_means
from analysis.statistics.summary import evaluation_summary, with_headroom

__all__ = [
    "COLUMNS",
    "COST_COLUMNS",
    "Cost",
    "Interval",
    "Played",
    "SceneMean",
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
    "scene_means",
    "seed_band",
    "summary_table",
    "sweep",
    "with_headroom",
]
