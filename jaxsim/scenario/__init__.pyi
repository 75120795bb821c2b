from .jobs import JobsWorld, build_jobs_world, jobs_bank
from .outlook import OUTLOOK, Others, other_draws, outlook_of, samples_of
from .padding import padded_world
from .scenario import (
    Draw,
    drawn_bank,
    mean_view,
    scenario_bank,
    tapes,
)
from .settings import JITTERS, MOST_INTERVALS, ScenarioSettings
from .world import World, build_world, sample_views

__all__ = [
    "JITTERS",
    "MOST_INTERVALS",
    "OUTLOOK",
    "Draw",
    "JobsWorld",
    "Others",
    "ScenarioSettings",
    "World",
    "build_jobs_world",
    "build_world",
    "drawn_bank",
    "jobs_bank",
    "mean_view",
    "other_draws",
    "outlook_of",
    "padded_world",
    "sample_views",
    "samples_of",
    "scenario_bank",
    "tapes",
]
