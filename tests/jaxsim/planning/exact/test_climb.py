"""Climbing by exchanges to a better plan, in spaces that can be searched whole beside it."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest
from helpers.space_plans import random_space_plan
from helpers.toy_world import JOB, base_view, calibration, cluster_spec

from jaxsim.plan import Problem, Recompute, Schedule, n_groups
from jaxsim.planning import Exchange, PlanFamily, PlanSpace
from jaxsim.planning.exact import SpaceSearch, best_plan, longest_pipeline, score
from jaxsim.planning.exact.climb import Climb
from jaxsim.workload.workload import build_workload

CHOICES = (
    (1, Recompute.NONE, Schedule.ONE_F_ONE_B),
    (2, Recompute.FULL, Schedule.EAGER_1F1B),
)
SPACE = PlanSpace(
    max_pipeline=3,
    groups=PlanFamily(cuts=("even",), tensor_parallel=(1, 2), zero_stages=(1, 3), choices=CHOICES),
    periods=(30,),
    bits=(16, 4),
    activation_bits=(16,),
    streams=((1, 0),),
)
SHORT = dataclasses.replace(SPACE, max_pipeline=1)
N = 3


@functools.cache
def problem():
    return Problem(build_workload([JOB]).job(0), cluster_spec(N, gpus=2).to_arrays(), calibration())


@functools.cache
def search(space):
    return SpaceSearch(problem(), space)


def climb(space=SPACE, ways=None):
    of = search(space)
    return Climb(of.problem, space, space.exchanges() if ways is None else ways)


def view(factor):
    """Links `factor` times as fast as in the toy cluster."""
    base = base_view(problem().cluster)
    return base.replace(bandwidth_gb_per_s=base.bandwidth_gb_per_s * np.float32(factor))


def start(seed):
    """A drawn plan that may run, its groups of any settings."""
    rng = np.random.default_rng(seed)
    plan = random_space_plan(rng, N, 2, JOB.model.layers, SPACE, zero_stages=(1,))
    choice = CHOICES[seed % 2]
    free = dict(zip(("micro_batch", "recompute", "schedule"), choice, strict=True))
    return plan.replace(**{k: np.full_like(plan.dp, v) for k, v in free.items()})


@pytest.mark.parametrize("seed", range(6))
def test_a_climb_ends_where_no_exchange_is_better_and_never_below_its_start(seed):
    of, network, plan = climb(), view((0.1, 1.0, 10.0)[seed % 3]), start(seed)
    rates = functools.partial(score, view=network, problem=of.problem)
    first = float(rates(jax.tree.map(lambda x: x[None], plan))[0])
    end = of.from_plan(plan, Exchange.of(plan), first, rates)
    assert end.rate >= first and end.tried > 0
    again = float(rates(jax.tree.map(lambda x: np.asarray(x)[None], end.plan))[0])
    assert again == pytest.approx(end.rate, rel=1e-6) and Exchange.of(end.plan) == end.way
    near = of.neighbours(of.read(end.plan, end.way))
    assert max(rates(plans).max() for plans, _ in of.plans(near)) <= end.rate
    best = search(SPACE).best(network, 10**6)
    assert end.rate <= best.rate * (1 + 1e-5), "the whole space holds everything that is tried"


def test_neighbours_use_no_domain_twice_and_keep_to_the_ways_that_are_allowed():
    of = climb(ways=[Exchange()])
    now = of.read(next(p for p in map(start, itertools.count()) if p.group.min() >= 0), Exchange())
    near = of.neighbours(now)
    used = [[k for code in row[1:] if code >= 0 for k in of.order(code)] for row in near]
    assert all(len(set(x)) == len(x) and set(x) <= set(range(N)) for x in used)
    assert set(near[:, 0].tolist()) == {0}
    assert min(map(len, used)) == N - 1, "a domain may leave"
    sizes, own = set((near[:, 1:] >= 0).sum(axis=1).tolist()), int((now[1:] >= 0).sum())
    assert sizes >= {own - 1, own}


def test_a_plan_is_read_as_it_was_made():
    of, free = climb(), ("micro_batch", "recompute", "schedule")
    for seed in range(20):
        plan = start(seed)
        row = of.read(plan, Exchange.of(plan))
        ((plans, (same,)),) = of.plans(row[None])
        groups = int((row[1:] >= 0).sum())
        assert (same == row).all() and groups == int(n_groups(plan))
        for name, value in vars(plan).items():
            if name not in ("batch_share", "layers"):  # the draw rounds layers its own way
                used = slice(0, groups) if name in free else ...
                np.testing.assert_array_equal(
                    np.asarray(getattr(plans, name))[0][used], np.asarray(value)[used], err_msg=name
                )


@pytest.mark.parametrize("factor", [0.1, 1.0, 10.0, 100.0])
def test_pipelines_that_no_bound_covers_are_found_from_shorter_ones(factor):
    """Against the whole space of pipelines over three domains."""
    beside = dataclasses.replace(SHORT, tried=3)
    for ways in (None, [Exchange()]):
        whole = search(SPACE).best(view(factor), 10**6, ways)
        short = search(SHORT).best(view(factor), 10**6, ways)
        found = best_plan(search(beside), view(factor), 10**6, ways)
        assert short.rate <= found.rate * (1 + 1e-6) and found.bound >= found.rate
        assert found.rate == pytest.approx(whole.rate, rel=1e-3)
        # No bound speaks of a longer pipeline, so that the search of shorter ones is not exact for it.
        assert not found.exhaustive or longest_pipeline(found.plan) == 1
