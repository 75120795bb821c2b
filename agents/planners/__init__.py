"""Rivals that plan by rules of their own: their plans join the common table.

alpa         Alpa: inter-operator parallelism, every bound on the slowest stage tried in turn
crosspipe    CrossPipe: a pipeline over data centres, its operations ordered for the delay and
diloco       DiLoCo and Streaming DiLoCo: every domain trains on its own and averages now and
dt_fm        DT-FM: which regions hold the same stage, and in which order stages pass on
halos        HALoS: regions train on their own, a global server merges what they have gathered
hyperion     Hyperion: an offline min-max split over tiers, online placement inside them
megatron     Megatron-LM's rule of thumb: tensor parallelism inside a node, the fewest pipeline
sailor       Sailor: a planner for changing, geo-distributed GPUs
stage_costs  What the planners among the rivals share: orders of domains, layer splits, stage
zero         DeepSpeed-ZeRO: data parallelism alone, the state sharded by the least stage that
"""

from agents.planners import alpa, crosspipe, diloco, dt_fm, halos, hyperion, megatron, sailor, zero

__all__ = [
    "alpa",
    "crosspipe",
    "diloco",
    "dt_fm",
    "halos",
    "hyperion",
    "megatron",
    "sailor",
    "zero",
]
