"""Tables of plans: the same costs as plan by plan, for any plan under any network."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.random_plans import GPU, SCHEDULES, K, random_plans
from helpers.toy_world import JOB, calibration, cluster_spec

from jaxsim.files.errors import InputError
from jaxsim.plan import Problem
from jaxsim.plan.modes import Schedule
from jaxsim.planning.exact.cost_table import build_cost_table
from jaxsim.planning.exact.costs import link_times, plan_costs
from jaxsim.step_time.closed_form import NetworkView, job_step_cost
from jaxsim.workload.workload import build_workload

PLANS = 300
CLUSTER = cluster_spec(K, gpus=36, gpu=GPU).to_arrays()
CALIBRATION = calibration()
MENU = SCHEDULES
costs_of = jax.jit(jax.vmap(job_step_cost, in_axes=(0, None, None)))


def stacked(schedules, seed=0, n_plans=PLANS):
    rng = np.random.default_rng(seed)
    return random_plans(rng, n_plans, schedules)


def networks(rng, n):
    """From four times as good as the cluster's to a hundredth, each link by itself; one is down."""
    for _ in range(n):
        factor = 10.0 ** rng.uniform(-2, 0.6, (2, K, K))
        factor[0, 2, 5] = 0.0
        bandwidth, rtt = np.asarray(CLUSTER.bandwidth_gb_per_s), np.asarray(CLUSTER.rtt_s)
        yield (
            jnp.asarray(bandwidth * factor[0], jnp.float32),
            jnp.asarray(rtt / factor[1], jnp.float32),
        )


@pytest.mark.parametrize(("schedules", "chunks"), [(MENU, 1), (MENU, 2), ((0,), 1)])
def test_a_table_gives_what_the_closed_form_gives(schedules, chunks):
    work = build_workload([dataclasses.replace(JOB, virtual_stages=chunks)]).job(0)
    plans = stacked(schedules)
    gpus = jnp.asarray(np.random.default_rng(1).integers(15, 37, K), jnp.int32)
    table = build_cost_table(plans, Problem(work, CLUSTER, CALIBRATION), gpus)
    from_table = jax.jit(lambda t, n: plan_costs(t, link_times(*n, CALIBRATION)))
    for network in networks(np.random.default_rng(2), 4):
        expected = costs_of(plans, Problem(work, CLUSTER, CALIBRATION), NetworkView(*network, gpus))
        runs = np.asarray(expected.runs)
        assert 0.3 * PLANS < runs.sum() < 0.95 * PLANS, runs.sum()
        got = from_table(table, network)
        arrays = jax.tree.map(np.asarray, (table, link_times(*network, CALIBRATION)))
        by_numpy = plan_costs(*arrays, np)
        for costs in (got, by_numpy):
            np.testing.assert_allclose(costs.step_s, expected.step_s, rtol=1e-5)
            for name in ("exposed_wan_s", "sync_s", "wan_busy_s", "egress_usd"):
                # Some are differences: compared on the scale of the whole step.
                scale = np.asarray(expected.total_s)
                error = np.asarray(getattr(costs, name)) - np.asarray(getattr(expected, name))
                assert np.all(np.abs(error) <= 1e-5 * scale), name
            wan_gb = np.asarray(expected.wan_gb).sum(axis=(1, 2))
            np.testing.assert_allclose(costs.wan_gb, wan_gb, rtol=1e-5, atol=1e-9)


def test_the_costs_differ_between_networks_and_plans():
    """What the comparison above compares is not one number."""
    work, plans = build_workload([JOB]).job(0), stacked(MENU)
    table = build_cost_table(plans, Problem(work, CLUSTER, CALIBRATION))
    steps = [
        np.asarray(plan_costs(table, link_times(*n, CALIBRATION)).step_s)
        for n in networks(np.random.default_rng(3), 2)
    ]
    finite = np.isfinite(steps[0])
    assert len(np.unique(steps[0][finite])) > 0.9 * finite.sum()
    several = np.asarray((plans.group >= 0).sum(axis=1)) > 1
    mine = finite & several
    changed = np.abs(steps[0][mine] / steps[1][mine] - 1.0) > 1e-3
    assert changed.mean() > 0.7


def test_many_plans_are_prepared_in_blocks(monkeypatch):
    work, plans = build_workload([JOB]).job(0), stacked(MENU, n_plans=50)
    whole = build_cost_table(plans, Problem(work, CLUSTER, CALIBRATION))
    monkeypatch.setattr("jaxsim.planning.exact.cost_table.BLOCK", 16)
    in_parts = build_cost_table(plans, Problem(work, CLUSTER, CALIBRATION))
    assert whole.size == in_parts.size == 50 and whole.pairs == in_parts.pairs
    for name, value in vars(whole).items():
        np.testing.assert_allclose(getattr(in_parts, name), value, rtol=1e-6, err_msg=name)


def test_the_size_is_that_of_the_fields():
    work, plans = build_workload([JOB]).job(0), stacked(MENU, n_plans=50)
    table = build_cost_table(plans, Problem(work, CLUSTER, CALIBRATION))
    numbers = sum(x.size for x in jax.tree.leaves(table))
    assert table.bytes_per_plan == 4 * numbers / 50


@pytest.mark.slow
@pytest.mark.parametrize(
    "schedules", [MENU, (0,), (0, Schedule.INTERLEAVED), (1, Schedule.ZERO_BUBBLE)]
)
def test_leaving_out_schedules_that_do_not_occur_changes_nothing(schedules):
    work, plans = build_workload([JOB]).job(0), stacked(schedules, n_plans=60)
    few = jax.jit(
        jax.vmap(lambda *args: job_step_cost(*args, schedules=schedules), (0, None, None))
    )
    for network in networks(np.random.default_rng(4), 2):
        args = (plans, Problem(work, CLUSTER, CALIBRATION), NetworkView(*network, CLUSTER.gpus))
        expected, got = costs_of(*args), few(*args)
        for name, value in vars(expected).items():
            np.testing.assert_allclose(
                getattr(got, name), value, rtol=1e-5, atol=1e-5, err_msg=name
            )


def test_a_plan_with_a_schedule_left_out_does_not_run():
    work, plans = build_workload([JOB]).job(0), stacked((Schedule.ZERO_BUBBLE,), n_plans=8)
    view = NetworkView(CLUSTER.bandwidth_gb_per_s, CLUSTER.rtt_s, CLUSTER.gpus)
    args = (Problem(work, CLUSTER, CALIBRATION), view)
    runs = jax.vmap(lambda plan: job_step_cost(plan, *args).runs)(plans)
    left_out = jax.vmap(lambda plan: job_step_cost(plan, *args, schedules=MENU))(plans)
    assert np.any(runs)
    assert not np.any(left_out.runs) and np.all(np.isinf(left_out.step_s))


@pytest.mark.parametrize(
    "schedule", [Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE, Schedule.GREEDY], ids=str
)
def test_other_schedules_are_refused(schedule):
    work, plans = build_workload([JOB]).job(0), stacked((0, schedule), n_plans=4)
    with pytest.raises(InputError, match=f"{schedule.word}; allowed are 1f1b, eager_1f1b, gpipe"):
        build_cost_table(plans, Problem(work, CLUSTER, CALIBRATION))
