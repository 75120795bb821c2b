"""Plans that the whole space proposes to a table: fast ones, and cheap ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, base_view, calibration, cluster_spec

from jaxsim.plan import Problem
from jaxsim.planning import BUDGET_SHARES, SAMPLED, PlanSpace, row_key
from jaxsim.planning.exact import finish_each, wide_plans
from jaxsim.workload.workload import build_workload

GPUS = 4
pytestmark = pytest.mark.slow


@functools.cache
def world():
    spec = cluster_spec(3, gpus=GPUS)
    cluster = spec.to_arrays()
    problem = Problem(build_workload([JOB]).job(0), cluster, calibration())
    return problem.replace(choices=PlanSpace.of(problem).groups.menu), base_view(cluster)


@functools.cache
def proposed(*, cheap=False):
    problem, view = world()
    views = jax.tree.map(lambda x: jnp.asarray(x)[None], view)
    preferences = SAMPLED if cheap else ()
    return wide_plans(problem, views, preferences=preferences)


def told(plans):
    """[P] training steps per second, USD per hour, GB over the WAN."""
    problem, view = world()
    _, cost, rate = finish_each(jax.tree.map(lambda *x: np.stack(x), *plans), view, problem)
    gpus = cost.gpus_used @ np.asarray(problem.cluster.usd_per_gpu_hour)
    usd = gpus + 3600.0 * cost.egress_usd / cost.step_s
    return rate, usd, cost.wan_gb.sum(axis=(1, 2))


def test_the_fastest_comes_first_and_none_twice():
    plans = proposed(cheap=True)
    assert len({row_key(plan) for plan in plans}) == len(plans)
    assert row_key(plans[0]) == row_key(proposed()[0])
    rate, _, _ = told(plans)
    assert rate[0] >= rate.max() * (1 - 1e-6)


def test_within_every_budget_there_is_a_plan_where_cost_counts():
    _, usd, _ = told(proposed())
    rate, cheap_usd, sent = told(proposed(cheap=True))
    for share in BUDGET_SHARES[:2]:  # of three equal domains, a quarter buys none
        assert (cheap_usd <= share * usd[0] * (1 + 1e-6)).any()
        assert not (usd <= share * usd[0]).any()
    # Egress alone counts for some: something sends nothing, and trains.
    assert (rate[sent == 0.0] > 0).any()
