"""Worlds drawn from seeds.

scenario  one job: the world of a cluster, banks of scenarios
jobs      the same for many jobs
"""

from jaxsim.scenario.jobs import JobsWorld, build_jobs_world, jobs_bank
from jaxsim.scenario.scenario import (
    ScenarioSettings,
    World,
    build_world,
    mean_view,
    sample_views,
    scenario_bank,
)

__all__ = [
    "JobsWorld",
    "ScenarioSettings",
    "World",
    "build_jobs_world",
    "build_world",
    "jobs_bank",
    "mean_view",
    "sample_views",
    "scenario_bank",
]
