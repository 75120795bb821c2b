"""Exact search against scoring every plan of the family, which is listed another way.

Three domains of different size with the search on a padded cluster, so that a padded domain that leaks
would show.
"""

import collections
import copy
import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plan_check import check_plan
from helpers.toy_world import JOB, calibration, cluster_spec, pad_plan

from jaxsim.files.errors import InputError
from jaxsim.plan import Problem
from jaxsim.plan.layouts import count_layouts, enumerate_layouts
from jaxsim.plan.modes import Schedule
from jaxsim.plan.plan import empty_plan, needs_reconfiguration
from jaxsim.planning.cuts import cut_layers
from jaxsim.planning.exact.search import ExactSearch
from jaxsim.planning.family import PlanFamily, count_subsets, make_plan
from jaxsim.planning.scoring import score_plans
from jaxsim.step_time.closed_form import NetworkView
from jaxsim.step_time.reconfiguration import begin_transition, transition_s
from jaxsim.trees import take
from jaxsim.workload.workload import JobSpec, build_workload

SPEC = dataclasses.replace(cluster_spec(3), gpus=(8, 4, 6), gpus_per_node=(4, 4, 4))
WORK = build_workload([JobSpec(JOB.model, global_batch=48, seq=1024)]).job(0)
FAMILY = PlanFamily(cuts=("even",))
PROBLEM = Problem(WORK, SPEC.to_arrays(), calibration(), FAMILY.menu)
NETWORKS, PADDED = 24, 4


def listed(layouts):
    """(plan, layout) of all settings that the GPUs allow, one after the other."""
    out = []
    for layout in layouts:
        members = [k for group in layout for k in group]
        for tp in (1, 2, 4):
            if tp > min(min(SPEC.gpus[k], SPEC.gpus_per_node[k]) for k in members):
                continue
            room = [min(SPEC.gpus[k] for k in group) // tp for group in layout]
            options = [[d for d in range(1, r + 1) if 48 % d == 0] for r in room]
            for dps in itertools.product(*options):
                plan = make_plan(layout, (tp, dps), np.array(SPEC.gpus), int(WORK.layers), 3)
                if plan is not None:
                    out.append((plan, layout))
    return out


PLANS = listed(enumerate_layouts((0, 1, 2), 3))
STACKED = jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *(plan for plan, _ in PLANS))


def networks():
    """[W, 3, 3] links from a hundredth to a thousand times the base, round trips of 1 to 200 ms."""
    rng = np.random.default_rng(3)
    cluster = SPEC.to_arrays()
    shape = (NETWORKS, 3, 3)
    scale = 10 ** rng.uniform(-2, 3, (NETWORKS, 1, 1)) * np.exp(0.5 * rng.normal(size=shape))
    return NetworkView(
        bandwidth_gb_per_s=jnp.asarray(np.asarray(cluster.bandwidth_gb_per_s) * scale, jnp.float32),
        rtt_s=jnp.asarray(10 ** rng.uniform(-3, -0.7, shape), jnp.float32),
        gpus_available=jnp.broadcast_to(cluster.gpus, (NETWORKS, 3)),
    )


VIEWS = networks()


def nth(w, size=3, **changes):
    """One of the networks, padded."""
    view = take(VIEWS, w).replace(**changes)
    fill = size - 3
    square = [jnp.pad(x, ((0, fill), (0, fill))) for x in (view.bandwidth_gb_per_s, view.rtt_s)]
    return NetworkView(*square, jnp.pad(view.gpus_available, (0, fill)))


@pytest.fixture(scope="module")
def search():
    return ExactSearch(Problem(WORK, SPEC.to_arrays(PADDED), calibration()), FAMILY)


rate_all = jax.jit(score_plans)


@pytest.fixture(scope="module")
def rates():
    """[W, P] of every plan with its best lower choice."""
    return np.asarray(rate_all(STACKED, VIEWS, PROBLEM)[0])


@jax.jit
@jax.vmap
def switches(old, view):
    """[W, P] [s] from plans [W] to every plan."""

    def one(new):
        moved = begin_transition(old, new, PROBLEM)
        needed = needs_reconfiguration(old, new)
        rate = view.bandwidth_gb_per_s * calibration().wan_efficiency
        return jnp.where(needed, transition_s(moved, rate), 0.0)

    return jax.vmap(one)(STACKED)


def test_the_best_plan_is_that_of_scoring_them_all(search, rates):
    winners = set()
    for w in range(NETWORKS):
        found = search.best(nth(w, PADDED))
        np.testing.assert_allclose(found.rate, rates[w].max(), rtol=1e-5)
        np.testing.assert_allclose(found.step_s, 1.0 / rates[w].max(), rtol=1e-5)
        assert found.plans_scored < 0.5 * found.plans_covered
        names = (*SPEC.domains, "padding")
        check_plan(found.plan, WORK, np.array([*SPEC.gpus, 0]), names)
        winners.add(PLANS[int(rates[w].argmax())][1])
    assert {sum(map(len, layout)) for layout in winners} == {1, 2, 3}, "domains of the winners"
    assert {1, 2} <= {len(layout) for layout in winners}, "groups of the winners"


def test_a_switch_is_paid_out_of_the_horizon(search, rates):
    start = np.roll(rates.argmax(axis=1), 1)  # what was best under another network
    old = take(STACKED, start)
    switch_s = np.asarray(switches(old, VIEWS))
    stayed = dict.fromkeys((30.0, 300.0, 30000.0), 0)
    for w, horizon_s in itertools.product(range(NETWORKS), stayed):
        value = rates[w] * np.maximum(horizon_s - switch_s[w], 0.0) / horizon_s
        in_force = pad_plan(take(old, w), PADDED)
        found = search.best(nth(w, PADDED), in_force, horizon_s)
        np.testing.assert_allclose(found.rate, value.max(), rtol=1e-5)
        expected_s = switch_s[w, value.argmax()]
        np.testing.assert_allclose(found.switch_s, expected_s, rtol=1e-4, atol=1e-4)
        stayed[horizon_s] += found.switch_s == 0.0
    assert NETWORKS > stayed[30.0] > stayed[30000.0] > 0


def test_a_plan_outside_the_family_may_stay(rates):
    narrow = PlanFamily(cuts=("even",), max_domains=1, choices=FAMILY.choices)
    single = ExactSearch(Problem(WORK, SPEC.to_arrays(PADDED), calibration()), narrow)
    alone = [i for i, (_, layout) in enumerate(PLANS) if sum(map(len, layout)) == 1]
    for w in range(0, NETWORKS, 4):
        best = int(rates[w].argmax())
        in_force = pad_plan(PLANS[best][0], PADDED)
        found = single.best(nth(w, PADDED), jax.tree.map(jnp.asarray, in_force), 600.0)
        np.testing.assert_allclose(found.rate, rates[w, best], rtol=1e-5)
        np.testing.assert_allclose(
            single.best(nth(w, PADDED)).rate, rates[w, alone].max(), rtol=1e-5
        )
    assert found.plans_covered == sum(1 for _ in alone) * len(FAMILY.choices)
    assert found.plans_in_family == len(PLANS) * len(FAMILY.choices)


def test_gpus_that_are_taken_change_the_plan(search):
    free = jnp.array([2, 4, 0], jnp.int32)
    view = jax.tree.map(lambda x: x[None], nth(0, gpus_available=free))
    views = jax.tree.map(lambda x: jnp.repeat(x, NETWORKS, axis=0), view)
    expected = np.asarray(rate_all(STACKED, views, PROBLEM)[0])[0].max()
    found = search.best(nth(0, PADDED, gpus_available=free))
    np.testing.assert_allclose(found.rate, expected, rtol=1e-5)
    assert not (np.asarray(found.plan.group)[2] >= 0)


def test_tables_of_past_loads_are_forgotten(search, monkeypatch):
    """A load draws other free GPUs in every interval: what is remembered of them has a limit."""
    built = []
    monkeypatch.setattr(
        "jaxsim.planning.exact.search.PipelineTable.build", lambda *args: built.append(args[-1])
    )
    own = copy.copy(search)
    own._tables = collections.OrderedDict()
    for free in range(40):
        own.prepare(np.array([free, 1, 0]))
        own.prepare(np.array([0, 1, 0]))  # comes back in every interval
    assert len(built) == 40 and len(own._tables) == 8
    own.prepare(np.array([39, 1, 0]))
    assert len(built) == 40, "the last ones are remembered"


def test_where_nothing_can_run_the_search_says_so(search):
    found = search.best(nth(0, PADDED, gpus_available=jnp.zeros(3, jnp.int32)))
    assert found.rate == 0.0 and math.isinf(found.step_s)


def test_a_family_is_counted_without_listing_it():
    cluster = SPEC.to_arrays()
    assert FAMILY.count(cluster, WORK) == len(PLANS) * len(FAMILY.choices)
    for most, groups in ((1, None), (2, None), (3, 1), (3, 2)):
        few = dataclasses.replace(FAMILY, max_domains=most, max_groups=groups)
        kept = [x for _, x in PLANS if sum(map(len, x)) <= most and len(x) <= (groups or 3)]
        assert few.count(cluster, WORK) == len(kept) * len(FAMILY.choices)
    wide = PlanFamily(zero_stages=(1, 3))
    assert wide.count(cluster, WORK) == 4 * FAMILY.count(cluster, WORK)  # two stages, two cuts


@pytest.mark.parametrize("n", [1, 4, 6])
def test_layouts_of_few_domains_are_counted(n):
    for most in range(1, n + 1):
        assert count_subsets(n, most) == len(list(enumerate_layouts(tuple(range(n)), most)))
    assert count_subsets(n, n) == count_layouts(n)
    family = PlanFamily.within(n, 30)
    assert count_subsets(n, family.max_domains) <= 30


def test_logits_take_layers_off_the_last_domain(search):
    """Heavy logits: the last of two domains of four stages holds fewer of 12 layers."""
    assert cut_layers(12, [4, 4], [1.0, 1.0], [0.0, 1.5]) == ([8, 4], [4, 4])
    # The toy model's logits are a matrix of vocab x hidden, its layers one of about 16 hidden^2.
    assert 0.5 < search._head_share(1) < 8.0


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(InputError, match=r"max_domains: .* layouts over 8 of 8 domains"):
        ExactSearch(Problem(WORK, cluster_spec(8).to_arrays(), calibration()), FAMILY)
    with pytest.raises(InputError, match="schedules"):
        PlanFamily(choices=((1, 0, Schedule.ZERO_BUBBLE),))
    job = JobSpec(JOB.model, global_batch=48, seq=1024, virtual_stages=2)
    with pytest.raises(InputError, match="virtual_stages"):
        ExactSearch(Problem(build_workload([job]).job(0), SPEC.to_arrays(), calibration()), FAMILY)


def test_an_idle_cluster_pays_a_restart(search, rates):
    found = search.best(nth(0, PADDED), jax.tree.map(jnp.asarray, empty_plan(PADDED)), 100.0)
    np.testing.assert_allclose(found.switch_s, float(calibration().restart_s))
    np.testing.assert_allclose(found.rate, rates[0].max() * 0.9, rtol=1e-5)
