"""Rivals that choose rows of the common plan table by a rule.

bace_pipe    BACE-Pipe: pipelines over regions whose links keep up, in the cheapest of them
hysteresis   Re-planning with hysteresis: the best row of the table on the measured network
mast         MAST: a job goes to exactly one region, the one in which it would be done first
random       A legal plan at random: the floor that any decision must beat
ray          Ray: a gang is placed where resources are free, blind to the network
replanning   Planners that plan again only when the free GPUs have changed
self_tuning  Hysteresis that tunes its own horizon: every horizon is replayed, the leader followed
smoothed     Hysteresis on rates averaged over time and pulled toward those at base
static       Static schedulers: a rule picks one row and the lower level adapts; or one plan as it is
"""

from agents.baselines.bace_pipe import BacePipe, good_paths, row_costs
from agents.baselines.hysteresis import Hysteresis
from agents.baselines.mast import Mast, finish_s
from agents.baselines.random import Random
from agents.baselines.ray import Ray
from agents.baselines.replanning import Replanning
from agents.baselines.self_tuning import SelfTuningHysteresis
from agents.baselines.smoothed import SmoothedHysteresis
from agents.baselines.static import (
    FixedPlan,
    StaticPlan,
    even_splits,
    every_row,
    inside_one_domain,
    with_any_choice,
)

__all__ = [
    "BacePipe",
    "FixedPlan",
    "Hysteresis",
    "Mast",
    "Random",
    "Ray",
    "Replanning",
    "SelfTuningHysteresis",
    "SmoothedHysteresis",
    "StaticPlan",
    "even_splits",
    "every_row",
    "finish_s",
    "good_paths",
    "inside_one_domain",
    "row_costs",
    "with_any_choice",
]
