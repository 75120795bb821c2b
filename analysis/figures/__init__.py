"""Figures: pure functions from the tables of a run to a matplotlib Figure, one per picture."""

from analysis.figures.comparison import reward_parts, schedulers_compared
from analysis.figures.episode import episode_timeline
from analysis.figures.network import fitted_memory, fitted_quantiles, prediction_errors
from analysis.figures.style import save
from analysis.figures.traffic import traffic_map
from analysis.figures.training import learning_curve

__all__ = [
    "episode_timeline",
    "fitted_memory",
    "fitted_quantiles",
    "learning_curve",
    "prediction_errors",
    "reward_parts",
    "save",
    "schedulers_compared",
    "traffic_map",
]
