"""The decision: which domains take part, who computes what, and how.

plan     the plan as a pytree, its free fields, lower choices
build    the fields of a plan from numbers or from a description in words
modes    schedules and recompute modes: number, word, label
problem  what a plan solves: work, cluster, efficiency, menu
layouts  domains into ordered groups, layers onto stages
"""

from jaxsim.plan.build import AS_JOB, FULL_PRECISION_BITS
from jaxsim.plan.layouts import Layout, count_layouts, enumerate_layouts, extensions, split_layers
from jaxsim.plan.modes import (
    ALL_SCHEDULES,
    INTERLEAVED_CHUNKS,
    MENU_SCHEDULES,
    PLAYED_SCHEDULES,
    Mode,
    Recompute,
    Schedule,
)
from jaxsim.plan.plan import (
    FREE_FIELDS,
    PLACEMENT_DP_INNER,
    LowerChoices,
    Plan,
    default_lower_choices,
    describe,
    empty_plan,
    layer_range,
    masked_sums,
    n_groups,
    needs_reconfiguration,
    per_domain,
    schedules_among,
    steps_ahead,
    whole_plan,
)
from jaxsim.plan.problem import Problem

__all__ = [
    "ALL_SCHEDULES",
    "AS_JOB",
    "FREE_FIELDS",
    "FULL_PRECISION_BITS",
    "INTERLEAVED_CHUNKS",
    "MENU_SCHEDULES",
    "PLACEMENT_DP_INNER",
    "PLAYED_SCHEDULES",
    "Layout",
    "LowerChoices",
    "Mode",
    "Plan",
    "Problem",
    "Recompute",
    "Schedule",
    "count_layouts",
    "default_lower_choices",
    "describe",
    "empty_plan",
    "enumerate_layouts",
    "extensions",
    "layer_range",
    "masked_sums",
    "n_groups",
    "needs_reconfiguration",
    "per_domain",
    "schedules_among",
    "split_layers",
    "steps_ahead",
    "whole_plan",
]
