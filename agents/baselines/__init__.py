"""Rivals that choose rows of the common plan table by a rule.

hysteresis   Re-planning with hysteresis: the best row of the table on the measured network
mast         MAST: a job goes to exactly one region, the one in which it would be done first
random       A legal plan at random: the floor that any decision must beat
replanning   Planners that plan again only when the free GPUs have changed
self_tuning  Hysteresis that tunes its own horizon: every horizon is replayed, the leader followed
static       Static schedulers: a rule picks one row at the start, the lower level still adapts
"""

from agents.baselines.hysteresis import Hysteresis
from agents.baselines.mast import Mast, finish_s
from agents.baselines.random import Random
from agents.baselines.replanning import Replanning
from agents.baselines.self_tuning import SelfTuningHysteresis
from agents.baselines.static import (
    StaticPlan,
    even_splits,
    every_row,
    inside_one_domain,
    with_any_choice,
)

__all__ = [
    "Hysteresis",
    "Mast",
    "Random",
    "Replanning",
    "SelfTuningHysteresis",
    "StaticPlan",
    "even_splits",
    "every_row",
    "finish_s",
    "inside_one_domain",
    "with_any_choice",
]
