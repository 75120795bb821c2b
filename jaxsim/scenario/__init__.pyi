from .jobs import JobsWorld, build_jobs_world, jobs_bank
from .scenario import (
    Draw,
    drawn_bank,
    mean_view,
    scenario_bank,
)
from .settings import JITTERS, MOST_INTERVALS, ScenarioSettings
from .world import World, build_world, sample_views

__all__ = [
    "JITTERS",
    "MOST_INTERVALS",
    "Draw",
    "JobsWorld",
    "ScenarioSettings",
    "World",
    "build_jobs_world",
    "build_world",
    "drawn_bank",
    "jobs_bank",
    "mean_view",
    "sample_views",
    "scenario_bank",
]
