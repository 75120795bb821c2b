"""The decision: which domains take part, who computes what, and how.

plan     the plan as a pytree, its free fields, lower choices
problem  what a plan solves: work, cluster, efficiency, menu
layouts  domains into ordered groups, layers onto stages
"""

from jaxsim.plan.layouts import Layout, count_layouts, enumerate_layouts, extensions, split_layers
from jaxsim.plan.plan import (
    ALL_SCHEDULES,
    FREE_FIELDS,
    FULL_PRECISION_BITS,
    INTERLEAVED_CHUNKS,
    MENU_SCHEDULES,
    PLACEMENT_DP_INNER,
    SCHEDULE_1F1B,
    SCHEDULE_EAGER_1F1B,
    SCHEDULE_GPIPE,
    SCHEDULE_GREEDY,
    SCHEDULE_INTERLEAVED,
    SCHEDULE_ZERO_BUBBLE,
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
    steps_ahead,
    whole_plan,
)
from jaxsim.plan.problem import Problem

__all__ = [
    "ALL_SCHEDULES",
    "FREE_FIELDS",
    "FULL_PRECISION_BITS",
    "INTERLEAVED_CHUNKS",
    "MENU_SCHEDULES",
    "PLACEMENT_DP_INNER",
    "SCHEDULE_1F1B",
    "SCHEDULE_EAGER_1F1B",
    "SCHEDULE_GPIPE",
    "SCHEDULE_GREEDY",
    "SCHEDULE_INTERLEAVED",
    "SCHEDULE_ZERO_BUBBLE",
    "Layout",
    "LowerChoices",
    "Plan",
    "Problem",
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
    "split_layers",
    "steps_ahead",
    "whole_plan",
]
