"""The search against scoring every plan, where cluster and plan space are drawn."""

import dataclasses

import numpy as np
import pytest
from helpers.every_plan import able_alone, count_plans, drawn_cluster, every_plan, rates_of
from helpers.toy_world import JOB, base_view, calibration

from jaxsim.plan import MENU_SCHEDULES, Problem, Recompute
from jaxsim.planning import PlanFamily, PlanSpace
from jaxsim.planning.exact import SpaceSearch
from jaxsim.planning.space import ACTIVATION_BITS, BITS, PERIODS, STREAMS
from jaxsim.workload.workload import build_workload

WORK = build_workload([JOB]).job(0)
CHOICES = [(b, r, s) for b in (1, 2, 4) for r in Recompute for s in MENU_SCHEDULES]
MOST_PLANS = 20_000
MOST_STAGES = 8  # layers of the toy model
# What the best plans of 200 instances must have been, some here and some there.
SEEN = {
    "tp": {1, 2},
    "cp": {1, 2},
    "zero_stage": {1, 3},
    "sync_period": {1, *PERIODS},
    "wire_bits": set(BITS),
    "activation_bits": set(ACTIVATION_BITS),
    "fragments": {1, 8},
    "schedule": {int(s) for s in MENU_SCHEDULES},
    "recompute": {int(r) for r in Recompute},
    "micro_batch": {1, 2, 4},
}


def some(rng, values, least=1):
    """One or two of them."""
    picked = rng.choice(len(values), rng.integers(least, 3), replace=False)
    return tuple(values[i] for i in sorted(picked))


def drawn_space(rng, n):
    """Pipelines of one domain to all, and one or two values in every other dimension."""
    groups = PlanFamily(
        cuts=("even",),
        tensor_parallel=some(rng, (1, 2)),
        zero_stages=some(rng, (1, 3)),
        context_parallel=some(rng, (1, 2)),
        parts=some(rng, (1, 2)),
        choices=some(rng, CHOICES, least=2),
    )
    return PlanSpace(
        max_pipeline=int(rng.integers(1, n + 1)),
        groups=groups,
        periods=some(rng, PERIODS),
        bits=some(rng, BITS),
        activation_bits=some(rng, ACTIVATION_BITS),
        streams=some(rng, STREAMS),
    )


def drawn_instance(rng):
    """(cluster, space) of two or three domains, of few enough plans; memory holds the model, or is
    scarce."""
    while True:
        n = int(rng.integers(2, 4))
        spec, space = drawn_cluster(rng, n), drawn_space(rng, n)
        stages = sum(sorted(spec.gpus)[-space.max_pipeline :])
        if stages <= MOST_STAGES and 0 < count_plans(space, spec.gpus) <= MOST_PLANS:
            scarce = {**spec.gpu, "memory_gb": float(rng.choice([3.0, 6.0, 80.0]))}
            return dataclasses.replace(spec, gpu=scarce), space


def in_use(plan, name):
    """Values of a plan's field, of the domains or groups that it uses."""
    field, group = np.asarray(getattr(plan, name)), np.asarray(plan.group)
    if name in ("schedule", "recompute", "micro_batch"):
        field = field[group[group >= 0]]
    elif field.ndim:
        field = field[group >= 0]
    return set(field.ravel().tolist())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "seed"), [(4, 0), pytest.param(200, 1, marks=pytest.mark.nightly)]
)
def test_nothing_in_a_drawn_space_is_faster_than_what_is_found(count, seed):
    rng, seen, trained = np.random.default_rng(seed), {name: set() for name in SEEN}, 0
    for _ in range(count):
        spec, space = drawn_instance(rng)
        cluster = spec.to_arrays()
        problem, view = Problem(WORK, cluster, calibration()), base_view(cluster)
        one = SpaceSearch(problem, space)
        able = able_alone(space, spec.gpus, view, one.problem)
        plans = every_plan(space, spec.gpus, able=able) if able else None
        best = 0.0 if plans is None else rates_of(plans, view, one.problem).max()
        result = one.best(view, 10**6)
        assert result.rate == pytest.approx(best, rel=1e-5), (spec, space)
        assert result.exhaustive and result.gap_pct <= 0.02
        assert result.bound >= best * (1 - 1e-6)
        if best > 0:
            trained += 1
            for name, values in seen.items():
                values |= in_use(result.plan, name)
    assert trained >= 0.75 * count
    if count >= 200:
        for name, values in SEEN.items():
            assert values <= seen[name], name
