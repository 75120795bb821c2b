"""Drawing worlds from seeds, for one job and for many.

jobs      Worlds and scenarios of several jobs
scenario  Scenarios: seeds -> worlds. A bank of them is generated ahead, so that a reset is an
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
