"""The one objective: what a plan is worth to it by hand, and that it refuses nonsense."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, base_view, calibration, cluster_spec, env_params, make_plan

from jaxsim.planning.objective import LEAST_PROGRESS, NEVER, PENALTY, Objective, plan_worth
from jaxsim.planning.table import preferred
from jaxsim.step_time import job_step_cost

PLAN = make_plan([(0, 1)], [(4, 4)], [8], dp=2, micro_batch=2)
INTERVAL_S, REF = 60.0, 20.0


@jax.jit
def worth_and_cost(params, objective, step_budget):
    problem = params.problem.job(0)
    problem = problem.replace(work=problem.work.replace(step_budget=step_budget))
    cluster = problem.cluster
    view = base_view(cluster)
    cost = job_step_cost(PLAN, problem, view)
    args = (objective, jnp.float32(REF), jnp.float32(INTERVAL_S))
    return plan_worth(cost, problem, view, *args), cost


def asked(weights, budget=np.inf, deadline=np.inf, step_budget=np.inf):
    params = env_params(cluster_spec(2, gpus=4), JOB, PLAN, efficiency=calibration())
    limits = jnp.float32(budget), jnp.float32(deadline)
    objective = Objective(jnp.asarray(weights, jnp.float32), *limits)
    worth, cost = worth_and_cost(params, objective, jnp.float32(step_budget))
    return {k: float(getattr(worth, k)) for k in ("trained", "held", "per_usd")}, cost, params


def test_each_part_by_hand():
    worth, cost, params = asked((1.0, 0.0, 0.0, 0.0))
    rate = 1.0 / float(cost.step_s)
    assert worth["trained"] == pytest.approx(rate / REF, rel=1e-5)
    assert worth["held"] == worth["per_usd"] == 0.0
    # Two GPUs in each of two domains, at 1.0 and 1.5 USD per hour: 5 USD per hour.
    gpu_usd = 5.0 * INTERVAL_S / 3600.0
    worth, cost, _ = asked((0.0, 0.0, 2.0, 0.0))
    egress = 2.0 * float(cost.egress_usd) * rate / gpu_usd
    assert egress > 0
    assert worth["trained"] == pytest.approx(LEAST_PROGRESS * rate / REF - egress, rel=1e-4)
    assert worth["per_usd"] == pytest.approx(-2.0 / gpu_usd, rel=1e-5)
    worth, _, _ = asked((0.0, 3.0, 0.0, 0.0))
    work = params.problem.work
    share = rate * float(work.useful_tflop[0]) / (8 * 100.0)
    expected = 3.0 * share / INTERVAL_S + LEAST_PROGRESS * rate / REF
    assert worth["trained"] == pytest.approx(expected, rel=1e-4)
    # Half of the GPUs of both domains are held: the load is even.
    worth, _, _ = asked((1.0, 0.0, 0.0, 5.0))
    assert worth["held"] == pytest.approx(0.0, abs=1e-7)


def test_beyond_a_limit_a_plan_loses_the_more_the_further():
    free, cost, _ = asked((1.0, 0.0, 0.0, 0.0))
    rate = 1.0 / float(cost.step_s)
    usd = 5.0 + 3600.0 * float(cost.egress_usd) * rate
    within, _, _ = asked((1.0, 0.0, 0.0, 0.0), budget=usd * 1.01)
    assert within == free
    for factor in (0.5, 0.8):
        beyond, _, _ = asked((1.0, 0.0, 0.0, 0.0), budget=usd * factor)
        lost = PENALTY * (1 / factor - 1) / INTERVAL_S
        assert beyond["trained"] == pytest.approx(free["trained"] - lost, rel=1e-3)
    in_time, _, _ = asked((1.0, 0.0, 0.0, 0.0), deadline=1.01 * 1000 / rate, step_budget=1000.0)
    assert in_time == free
    late, _, _ = asked((1.0, 0.0, 0.0, 0.0), deadline=0.5 * 1000 / rate, step_budget=1000.0)
    assert late["trained"] == pytest.approx(free["trained"] - PENALTY * 0.5 / INTERVAL_S, rel=1e-3)
    # A job without an end has no deadline to miss.
    endless, _, _ = asked((1.0, 0.0, 0.0, 0.0), deadline=1.0)
    assert endless == free


def test_progress_alone_is_no_objective_and_nonsense_is_refused():
    assert Objective.of() is None and Objective.of((3.0, 0.0, 0.0, 0.0)) is None
    assert Objective.of((1.0, 0.0, 0.0, 0.0), budget_usd_per_hour=5.0) is not None
    assert Objective.of((1.0, 0.0, 1.0, 0.0)) is not None
    for weights in ((1.0, 0.0), (0.0,) * 4, (1.0, -1.0, 0.0, 0.0), (np.inf, 0.0, 0.0, 0.0)):
        with pytest.raises(ValueError, match="weights"):
            Objective.of(weights)
    with pytest.raises(ValueError, match="budget"):
        Objective.of(budget_usd_per_hour=0.0)
    with pytest.raises(ValueError, match="deadline"):
        Objective.of(deadline_s=-1.0)
    assert NEVER < -1e5


def test_without_preferences_no_row_is_asked_for():
    assert preferred(None, [PLAN] * 3, None, ()).shape == (0, 3)
