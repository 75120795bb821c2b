"""Figures: pure functions from the tables of a run to a matplotlib Figure.

style        one look for all, readable in grey
comparison   schedulers side by side, and the parts of the reward
episode      one episode: links, plans in force, step time
traffic      WAN traffic per link
training     learning curves
scoreboard   key figures, and the scenes of a suite
validation   predictions beside measured runs
left_out     groups of runs that a fit did without
calibration  fitted parameters
fidelity     closed form against event-exact
network      fitted link processes, errors of predictors
ddp          data-parallel runs
wan          predictions beside real runs over an emulated network
plan         a plan on the map, speed against price
sweep        gains over a design of worlds, and what its factors do
marks        what a drawn figure shows, as a table
"""

from analysis.figures.calibration import IDENTIFIED, PARAMETER_COLUMNS, parameters_fitted
from analysis.figures.comparison import (
    COMPARISON_COLUMNS,
    REWARD_PLOT_COLUMNS,
    reward_parts,
    schedulers_compared,
)
from analysis.figures.ddp import draw_all, max_step_time
from analysis.figures.episode import LINK_COLUMNS, TIMELINE_COLUMNS, episode_timeline
from analysis.figures.fidelity import FIDELITY_COLUMNS, closed_against_event
from analysis.figures.left_out import (
    DISTANCE_COLUMNS,
    GROUP_COLUMNS,
    LEFT_OUT_COLUMNS,
    error_by_distance,
    left_out_baselines,
    left_out_errors,
)
from analysis.figures.marks import marks, places
from analysis.figures.network import (
    MOVEMENT_COLUMNS,
    PREDICTION_COLUMNS,
    fitted_memory,
    fitted_quantiles,
    prediction_errors,
)
from analysis.figures.plan import plan_front, plan_map
from analysis.figures.scoreboard import (
    FRONT_COLUMNS,
    KPI_COLUMNS,
    SCENE_COLUMNS,
    key_figures,
    suite_regrets,
    trade_offs,
)
from analysis.figures.style import ORACLES, save
from analysis.figures.sweep import (
    EFFECT_COLUMNS,
    POINT_COLUMNS,
    factor_effects,
    gain_map,
    parallel_factors,
    strongest,
)
from analysis.figures.traffic import TRAFFIC_COLUMNS, traffic_map
from analysis.figures.training import (
    CURVE_COLUMNS,
    EVALUATION_COLUMNS,
    TIMED_COLUMNS,
    learning_compared,
    learning_curve,
)
from analysis.figures.validation import (
    MEMORY_COLUMNS,
    STEP_COLUMNS,
    mean_absolute,
    peak_memory,
    step_errors,
    step_times,
    timed_runs,
)
from analysis.figures.wan import (
    EFFICIENCY_COLUMNS,
    PROGRESS_COLUMNS,
    WAN_COLUMNS,
    wan_efficiency,
    wan_predictions,
    wan_progress,
)

__all__ = [
    "COMPARISON_COLUMNS",
    "CURVE_COLUMNS",
    "DISTANCE_COLUMNS",
    "EFFECT_COLUMNS",
    "EFFICIENCY_COLUMNS",
    "EVALUATION_COLUMNS",
    "FIDELITY_COLUMNS",
    "FRONT_COLUMNS",
    "GROUP_COLUMNS",
    "IDENTIFIED",
    "KPI_COLUMNS",
    "LEFT_OUT_COLUMNS",
    "LINK_COLUMNS",
    "MEMORY_COLUMNS",
    "MOVEMENT_COLUMNS",
    "ORACLES",
    "PARAMETER_COLUMNS",
    "POINT_COLUMNS",
    "PREDICTION_COLUMNS",
    "PROGRESS_COLUMNS",
    "REWARD_PLOT_COLUMNS",
    "SCENE_COLUMNS",
    "STEP_COLUMNS",
    "TIMED_COLUMNS",
    "TIMELINE_COLUMNS",
    "TRAFFIC_COLUMNS",
    "WAN_COLUMNS",
    "closed_against_event",
    "draw_all",
    "episode_timeline",
    "error_by_distance",
    "factor_effects",
    "fitted_memory",
    "fitted_quantiles",
    "gain_map",
    "key_figures",
    "learning_compared",
    "learning_curve",
    "left_out_baselines",
    "left_out_errors",
    "marks",
    "max_step_time",
    "mean_absolute",
    "parallel_factors",
    "parameters_fitted",
    "peak_memory",
    "places",
    "plan_front",
    "plan_map",
    "prediction_errors",
    "reward_parts",
    "save",
    "schedulers_compared",
    "step_errors",
    "step_times",
    "strongest",
    "suite_regrets",
    "timed_runs",
    "trade_offs",
    "traffic_map",
    "wan_efficiency",
    "wan_predictions",
    "wan_progress",
]
