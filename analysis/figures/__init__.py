"""Figures: pure functions from the tables of a run to a matplotlib Figure, one per picture."""

from analysis.figures.calibration import parameters_fitted
from analysis.figures.comparison import reward_parts, schedulers_compared
from analysis.figures.episode import episode_timeline
from analysis.figures.fidelity import closed_against_event
from analysis.figures.network import fitted_memory, fitted_quantiles, prediction_errors
from analysis.figures.scoreboard import key_figures, suite_regrets
from analysis.figures.style import save
from analysis.figures.traffic import traffic_map
from analysis.figures.training import learning_curve
from analysis.figures.validation import left_out_errors, peak_memory, step_errors, step_times

__all__ = [
    "closed_against_event",
    "episode_timeline",
    "fitted_memory",
    "fitted_quantiles",
    "key_figures",
    "learning_curve",
    "left_out_errors",
    "parameters_fitted",
    "peak_memory",
    "prediction_errors",
    "reward_parts",
    "save",
    "schedulers_compared",
    "step_errors",
    "step_times",
    "suite_regrets",
    "traffic_map",
]
