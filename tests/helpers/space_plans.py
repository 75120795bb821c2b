"""Random plans of the whole space, each group with settings of its own; shares are open."""

import numpy as np

from jaxsim.plan.modes import MENU_SCHEDULES, Recompute
from jaxsim.plan.plan import empty_plan
from jaxsim.trees import stack


def random_space_plan(rng, n_domains, gpus, n_layers, space, zero_stages=(1, 3)):
    """One plan: some domains in any order, cut into groups; `gpus` of every domain are held, and layers
    are cut evenly."""
    order = rng.permutation(n_domains)[: rng.integers(1, n_domains + 1)]
    groups, at = [], 0
    while at < len(order):
        size = min(int(rng.integers(1, space.max_pipeline + 1)), len(order) - at)
        groups.append(order[at : at + size])
        at += size
    plan = {name: np.array(value) for name, value in vars(empty_plan(n_domains)).items()}
    for g, members in enumerate(groups):
        dp = 2 ** rng.integers(0, int(np.log2(gpus)) + 1)
        tp = 2 ** rng.integers(0, int(np.log2(gpus // dp)) + 1)
        ends = np.round(np.linspace(0, n_layers, len(members) + 1)).astype(int)
        plan["dp"][g] = dp
        plan["micro_batch"][g] = 2 ** rng.integers(0, 3)
        plan["recompute"][g] = rng.choice([Recompute.NONE, Recompute.FULL])
        plan["schedule"][g] = rng.choice(MENU_SCHEDULES)
        for i, k in enumerate(members):
            plan["group"][k], plan["position"][k] = g, i
            plan["layers"][k] = ends[i + 1] - ends[i]
            plan["tp"][k], plan["pp"][k] = tp, gpus // (dp * tp)
            plan["zero_stage"][k] = rng.choice(zero_stages)
    ways = space.exchanges()
    plan |= {
        name: np.int32(value) for name, value in ways[rng.integers(len(ways))].fields().items()
    }
    return empty_plan(n_domains).replace(**plan)


def random_space_plans(rng, count, *args, **more):
    """Leaves [count, ...]."""
    return stack(random_space_plan(rng, *args, **more) for _ in range(count))
