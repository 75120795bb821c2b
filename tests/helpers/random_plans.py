"""Random complete plans over eight domains, whether or not they fit memory."""

import numpy as np
from helpers.toy_world import JOB, make_plan

from jaxsim.plan.modes import MENU_SCHEDULES
from jaxsim.trees import stack

K, LAYERS = 8, JOB.model.layers
# Memory for some plans and not for others.
GPU = {"peak_tflops": 100.0, "memory_gb": 2.9, "memory_gb_per_s": 2000.0, "nvlink_gb_per_s": 100.0}
SCHEDULES = MENU_SCHEDULES  # all that tables hold


def random_plan(rng, schedules=SCHEDULES):
    """Any domains in any order, split anywhere, with any settings."""
    order = rng.permutation(K)[: rng.integers(1, K + 1)]
    cuts = np.flatnonzero(rng.random(len(order) - 1) < 0.4) + 1
    groups = [tuple(map(int, g)) for g in np.split(order, cuts)]
    layers = []
    for group in groups:
        ends = np.sort(rng.choice(np.arange(1, LAYERS), len(group) - 1, replace=False))
        layers.append(tuple(map(int, np.diff([0, *ends, LAYERS]))))
    return make_plan(
        groups,
        layers,
        [int(x) for x in rng.integers(1, 40, len(groups))],
        K,
        dp=rng.integers(1, 4, K),
        micro_batch=2 ** rng.integers(0, 3, K),
        recompute=rng.integers(0, 3, K),
        schedule=rng.choice(schedules, K),
        tp=2 ** rng.integers(0, 2, K),
        pp=rng.integers(1, 4, K),
        cp=2 ** rng.integers(0, 2, K),
        zero_stage=rng.integers(0, 4, K),
        placement=rng.integers(0, 2, K),
        wire_bits=rng.choice([8, 16]),
        activation_bits=rng.choice([8, 16]),
        **rng.choice(
            [{}, {}, {"sync_period": 8}, {"sync_period": 8, "fragments": 4, "overlap": 2}]
        ),
    )


def random_plans(rng, n_plans, schedules=SCHEDULES):
    """Leaves [n_plans, ...]."""
    return stack(random_plan(rng, schedules) for _ in range(n_plans))
