"""The plan of most worth under weights, a budget and a deadline, against the worth of every plan."""

import dataclasses

import numpy as np
import pytest
from helpers.every_plan import able_alone, costs_of, drawn_cluster, every_plan
from helpers.toy_world import GPU, JOB, base_view, calibration, cluster_spec

from jaxsim.plan import Problem, Recompute, Schedule
from jaxsim.planning import Objective, PlanFamily, PlanSpace
from jaxsim.planning.exact import Asked, SpaceSearch, most_worth
from jaxsim.planning.exact.worth import NOTHING, WorthBound, gpu_prices
from jaxsim.workload.workload import build_workload

BUDGET_STEPS = 1000.0  # of the job, where there is a deadline
CHOICES = (
    (1, Recompute.NONE, Schedule.ONE_F_ONE_B),
    (2, Recompute.FULL, Schedule.EAGER_1F1B),
)
SPACE = PlanSpace(
    max_pipeline=2,
    groups=PlanFamily(
        cuts=("even",), tensor_parallel=(1, 2), parts=(1, 2), zero_stages=(1,), choices=CHOICES
    ),
    periods=(30,),
    bits=(16, 4),
    activation_bits=(16,),
    streams=((1, 0),),
)


def drawn_objective(rng, fastest, dearest):
    """Two or three weights and perhaps limits around what the `fastest` plan [steps / s] reaches."""
    weights = rng.dirichlet(np.ones(4)) * (rng.random(4) < 0.7)
    weights[0] += 0.01
    budget = dearest * rng.uniform(0.2, 1.2) if rng.random() < 0.6 else np.inf
    deadline_s = BUDGET_STEPS / (fastest * rng.uniform(0.3, 1.2)) if rng.random() < 0.5 else np.inf
    return Objective.of(tuple(weights), budget, deadline_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "count"),
    [
        (2, 4),
        pytest.param(2, 120, marks=pytest.mark.nightly),
        pytest.param(3, 40, marks=pytest.mark.nightly),
    ],
)
def test_no_plan_is_worth_more_than_what_is_found(n, count):
    rng, found = np.random.default_rng(n), set()
    work = build_workload([JOB]).job(0).replace(step_budget=np.float32(BUDGET_STEPS))
    for _ in range(count):
        spec = drawn_cluster(rng, n)
        cluster = spec.to_arrays()
        problem, view = Problem(work, cluster, calibration()), base_view(cluster)
        one = SpaceSearch(problem, SPACE)
        plans = every_plan(SPACE, spec.gpus, able=able_alone(SPACE, spec.gpus, view, one.problem))
        cost, rate = costs_of(plans, view, one.problem)
        dearest = np.dot(spec.gpus, spec.usd_per_gpu_hour)
        objective = drawn_objective(rng, rate.max(), dearest)
        if objective is None:
            continue
        asked = Asked(objective, progress_ref=60.0 * float(rate.max()))
        worth = asked.worths(cost.replace(runs=rate > 0), one.problem, view)
        result = most_worth(one, view, asked, most_scored=10**6)
        close = {"rel": 1e-4, "abs": 1e-6 * float(np.abs(worth[np.isfinite(worth)]).max())}
        assert result.worth == pytest.approx(float(worth.max()), **close), (spec, objective)
        assert result.bound >= worth.max() - close["abs"] and result.exhaustive
        found.add((int((result.plan.group >= 0).sum()), result.cost.gpus_used.sum().item()))
    assert len(found) >= min(count, 6) // 2, "limits and weights must change what is best"


def test_the_bound_on_worth_is_what_the_formula_gives_at_best_and_is_inverted():
    """By hand: 2 a step, 1 lost at twice the budget; a deadline that asks for 0.5 steps/s."""
    of = WorthBound(slope=2.0, penalty=1.0, budget=100.0, needed=0.5)
    assert of.at_most(1.0, 100.0) == pytest.approx(2.0)
    assert of.at_most(1.0, 150.0) == pytest.approx(2.0 - 0.5)
    assert of.at_most(0.25, 0.0) == pytest.approx(0.5 - 0.5)
    assert of.at_most(0.0, 0.0) == NOTHING
    for usd in (0.0, 130.0):
        for rate in (0.01, 0.4, 0.5, 0.6, 3.0):
            assert of.rate_for(float(of.at_most(rate, usd)), usd) == pytest.approx(rate)
    plain = WorthBound(slope=2.0, penalty=1.0, budget=np.inf, needed=0.0)
    assert plain.rate_for(NOTHING, 10.0) == 0.0 and plain.rate_for(3.0, 10.0) == 1.5


def test_what_a_group_costs_is_the_price_of_the_gpus_that_it_holds():
    """By hand on two domains of four GPUs at 1 and 1.5 USD: both whole, 10 USD an hour."""
    cluster = cluster_spec(2).to_arrays()
    one = SpaceSearch(Problem(build_workload([JOB]).job(0), cluster, calibration()), SPACE)
    usd, pipes = gpu_prices(one.pipelines, one.problem), one.pipelines
    both = pipes.index[0, 1]
    whole = [c for c, common in enumerate(pipes.common) if common.part == 1]
    halves = [c for c, common in enumerate(pipes.common) if common.part == 2]
    assert usd[both][whole][pipes.exists[both][whole]] == pytest.approx(10.0)
    assert usd[both][halves][pipes.exists[both][halves]] == pytest.approx(5.0)
    # Ranks that share a sequence are GPUs too.
    shared = [one._replace(cp=2) for one in pipes.common]
    doubled = gpu_prices(dataclasses.replace(pipes, common=shared), one.problem)
    np.testing.assert_allclose(doubled, 2.0 * usd)


def test_what_a_training_step_is_worth_at_best():
    """By hand: a twentieth of an interval's progress weighs half, the GPUs' use a quarter."""
    cluster = cluster_spec(2).to_arrays()
    problem = Problem(build_workload([JOB]).job(0), cluster, calibration())
    objective = Objective.of((0.5, 0.25, 0.25, 0.0), 40.0)
    assert objective is not None
    of = WorthBound.of(Asked(objective, progress_ref=20.0), problem, base_view(cluster))
    share = float(problem.work.useful_tflop) / (8 * GPU["peak_tflops"] * 60.0)
    assert of.slope == pytest.approx(0.5 / 20.0 + 0.25 * share, rel=1e-5)
    assert (of.budget, of.needed) == (40.0, 0.0)
