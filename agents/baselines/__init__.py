"""Rivals that choose rows of the common plan table by a rule.

hysteresis   Re-planning with hysteresis: the best row of the table on the measured network, the
mast         MAST: a job goes to exactly one region, the one in which it would be done first
random       A legal plan at random: the floor that any decision must beat
replanning   Planners that plan again only when something they watch has changed
self_tuning  Hysteresis that tunes its own horizon: every horizon is played in the head, the
static       Plans that never change: one rule picks a row at the start, the lower level still
"""

from agents.baselines.hysteresis import make_hysteresis
from agents.baselines.mast import finish_s, make_mast
from agents.baselines.random import make_random
from agents.baselines.replanning import replan_when
from agents.baselines.self_tuning import make_self_tuning_hysteresis
from agents.baselines.static import even_splits, every_plan, inside_one_domain, keep_best

__all__ = [
    "even_splits",
    "every_plan",
    "finish_s",
    "inside_one_domain",
    "keep_best",
    "make_hysteresis",
    "make_mast",
    "make_random",
    "make_self_tuning_hysteresis",
    "replan_when",
]
