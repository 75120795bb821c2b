"""The best plans of many partitions beside the best plan of all."""

import functools

import jax
import numpy as np
from helpers.toy_world import JOB, base_view, calibration, cluster_spec

from jaxsim.plan import Problem, n_groups
from jaxsim.planning import PlanFamily, PlanSpace
from jaxsim.planning.exact import (
    SpaceSearch,
    even_splits,
    finish,
    is_synchronous,
    leaders,
    score,
)
from jaxsim.trees import take
from jaxsim.workload.workload import build_workload

SPACE = PlanSpace(
    max_pipeline=2,
    groups=PlanFamily(cuts=("even",), tensor_parallel=(1,)),
    periods=(30,),
    bits=(16, 4),
    activation_bits=(16,),
    streams=((1, 0),),
)


@functools.cache
def found():
    cluster = cluster_spec(3, gpus=2).to_arrays()
    search = SpaceSearch(Problem(build_workload([JOB]).job(0), cluster, calibration()), SPACE)
    view = base_view(cluster)
    plans = leaders(search, view, SPACE.exchanges(), per_size=3)
    stacked = jax.tree.map(lambda *x: np.stack(x), *plans)
    return search, view, plans, score(stacked, view, search.problem)


def test_no_leader_is_faster_than_the_best_plan_and_one_is_nearly_as_fast():
    search, view, _, rate = found()
    best = search.best(view)
    assert rate.max() <= best.rate * (1 + 1e-5) and rate.min() > 0
    assert rate.max() > 0.95 * best.rate  # a few plans of each partition are tried, not all


def test_there_are_leaders_of_every_number_of_domains_synchronous_and_not():
    _, _, plans, _ = found()
    kinds = {(int((p.group >= 0).sum()), is_synchronous(p)) for p in plans}
    assert kinds >= {(1, True), (2, True), (3, True), (2, False), (3, False)}
    # All domains alone are there: what a plan inside one domain reaches is then known.
    alone = {int(np.argmax(p.group >= 0)) for p in plans if (p.group >= 0).sum() == 1}
    assert alone == {0, 1, 2}


def test_what_is_remembered_of_a_view_changes_nothing():
    """Fewer ways and partitions first, another view in between: as if each were asked alone."""
    search, view, plans, _ = found()
    elsewhere = view.replace(bandwidth_gb_per_s=0.1 * view.bandwidth_gb_per_s)
    ways = SPACE.exchanges()
    again = SpaceSearch(search.problem, SPACE)
    leaders(again, view, ways[:1], per_size=1)
    there = leaders(again, elsewhere, ways, per_size=3)
    best = again.best(elsewhere)
    assert again.of_view(elsewhere).leaders and not again.of_view(view).leaders
    leaders(again, view, ways[:1], per_size=1)
    known = len(again.of_view(view).leaders)
    here = leaders(again, view, ways, per_size=3)
    assert 0 < known < len(again.of_view(view).leaders)
    jax.tree.map(np.testing.assert_array_equal, here, plans)
    alone = SpaceSearch(search.problem, SPACE)
    assert best.rate == alone.best(elsewhere).rate
    jax.tree.map(np.testing.assert_array_equal, there, leaders(alone, elsewhere, ways, per_size=3))


def test_scores_are_what_the_simulator_says_of_one_plan_at_a_time():
    search, view, plans, rate = found()
    for plan, expected in zip(plans[:4], rate[:4], strict=True):
        _, cost = finish(plan, view, search.problem)
        np.testing.assert_allclose(cost.efficiency / cost.step_s, expected, rtol=1e-6)


def test_as_many_plans_as_one_likes_are_scored_alike():
    search, view, plans, rate = found()
    some = [plans[i % len(plans)] for i in range(300)]  # more than one block
    many = score(jax.tree.map(lambda *x: np.stack(x), *some), view, search.problem)
    np.testing.assert_array_equal(many, rate[np.arange(300) % len(plans)])


def test_an_even_split_uses_all_domains_and_treats_them_alike():
    search, _, _, _ = found()
    plans = even_splits(search)
    layouts = set()
    for i in range(len(plans.dp)):
        plan = take(plans, i)
        assert (plan.group >= 0).all() and is_synchronous(plan)
        groups = int(n_groups(plan))
        assert groups in (1, 3) and len(set(plan.tp)) == 1 and len(set(plan.dp[:groups])) == 1
        if groups == 1:
            assert plan.position.tolist() == [0, 1, 2]
        layouts.add(groups)
    assert layouts == {1, 3}
