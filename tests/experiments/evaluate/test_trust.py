"""The band of a plan, and the reasons to doubt it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, make_plan

from experiments.evaluate.trust import (
    parameter_spread,
    plan_features,
    plan_trust,
    probabilities_best,
)
from jaxsim.cluster import UNKNOWN, Site, independent
from jaxsim.cluster.cluster import load_cluster, repeat_regions
from jaxsim.cluster.fits import family, shipped_fit
from jaxsim.cluster.records import RECORDS
from jaxsim.plan import Problem
from jaxsim.planning import complete, one_view, score_plans
from jaxsim.step_time import NetworkView, job_step_cost
from jaxsim.trees import take
from jaxsim.workload.workload import build_workload
from jaxsim.worlds import make_world, named_world

PLAN = jax.tree.map(np.asarray, make_plan([(0, 1)], [(4, 4)], [4], micro_batch=2, dp=4))
FIGURES = {
    "peak_tflops": 312,
    "memory_gb": 85.9,
    "memory_gb_per_s": 2039,
    "nvlink_gb_per_s": 300,
}
WORK = build_workload([JOB]).job(0)


def cluster(stack):
    return dataclasses.replace(repeat_regions(load_cluster(), 2), stack=stack)


def problem_on(spec):
    return Problem(WORK, spec.to_arrays(), spec.calibration)


def trust(stack, tokens_per_s=60_000.0):
    spec = cluster(stack)
    return plan_trust(spec, problem_on(spec), PLAN, tokens_per_s)


def test_a_plan_of_a_measured_stack_has_its_band_widened_by_distance():
    features, gpus = plan_features(WORK, PLAN)
    assert gpus == 8 and features["tokens"] == 2048.0 and features["hidden"] == 1024.0
    fit, found = shipped_fit("A100-80GB", "llm-foundry"), trust("llm-foundry")
    distance = fit.domain.distance(features)
    assert distance > 0
    spread, _ = parameter_spread(
        fit.belief.samples(64, seed=0), problem_on(cluster("llm-foundry")), PLAN
    )
    reach = np.exp(fit.band.reach(distance, spread))
    assert found["tokens_per_s_hi"] == pytest.approx(60_000.0 * reach)
    assert found["tokens_per_s_lo"] == pytest.approx(60_000.0 / reach)
    assert any("outside the calibrated domain: tokens 2048" in d for d in found["doubts"])


def test_what_nobody_measured_and_what_nobody_reached_is_said():
    found = trust("megatron-flash", tokens_per_s=1e7)
    assert any("no run of megatron-flash on A100-80GB" in d for d in found["doubts"])
    assert any("above the highest published for A100-80GB" in d for d in found["doubts"])
    assert found["tokens_per_s_hi"] / 1e7 > trust("llm-foundry")["tokens_per_s_hi"] / 60_000.0


def test_the_parameters_spread_is_that_of_steps_costed_one_by_one():
    spec = cluster("torchtitan")
    problem, belief = problem_on(spec), shipped_fit("A100-80GB", "torchtitan").belief
    links, plan = problem.cluster, jax.tree.map(jnp.asarray, PLAN)
    view = NetworkView(links.bandwidth_gb_per_s, links.rtt_s, links.gpus)
    draws = belief.samples(64, seed=0)

    @jax.jit
    def cost(calibration):
        return job_step_cost(plan, problem.replace(calibration=calibration), view)

    each = [cost(take(draws, d)) for d in range(64)]
    step_s = [float(c.total_s) for c in each]
    memory_gb = [float(c.memory_gb.max()) for c in each]
    found = parameter_spread(belief.samples(64, seed=0), problem, PLAN)
    assert found == pytest.approx([np.std(np.log(x)) for x in (step_s, memory_gb)], rel=1e-3)
    exact = independent(belief.centre, np.zeros_like(belief.centre))
    assert parameter_spread(exact.samples(64, seed=0), problem, PLAN) == pytest.approx(
        (0.0, 0.0), abs=1e-5
    )


def test_a_plan_that_may_not_fit_is_said():
    """Few parameters on many GPUs fit for sure; a micro-batch that nearly fills a GPU does not."""
    assert not any("memory" in doubt for doubt in trust("llm-foundry")["doubts"])
    spec = cluster("llm-foundry")
    needed = trust("llm-foundry")["memory_gb"]
    small = dict(FIGURES, memory_gb=1.05 * needed)
    found = plan_trust(dataclasses.replace(spec, gpu=small), problem_on(spec), PLAN, 60_000.0)
    (said,) = (doubt for doubt in found["doubts"] if "memory" in doubt)
    assert f"{needed:.0f} GB" in said and f"up to {found['memory_gb_hi']:.0f}" in said


def test_a_gpu_given_as_figures_has_the_priors_spread():
    spec = dataclasses.replace(cluster("torchtitan"), gpu=dict(FIGURES))
    found = plan_trust(spec, problem_on(spec), PLAN, 60_000.0)
    reach = np.log(found["tokens_per_s_hi"] / 60_000.0)
    assert reach > UNKNOWN.reach(0.0)
    assert "this GPU" in found["doubts"][0]


def test_a_plan_on_two_gpu_types_has_the_wider_band_and_the_doubts_of_both():
    spec = cluster("llm-foundry")
    mixed = dataclasses.replace(spec, sites=(Site(), Site("V100-32GB")))
    both = plan_trust(mixed, problem_on(mixed), PLAN, 60_000.0)
    lone = jax.tree.map(np.asarray, make_plan([(0,)], [(8,)], [4], micro_batch=2, dp=4))
    one = plan_trust(mixed, problem_on(mixed), lone, 60_000.0)
    alike = plan_trust(spec, problem_on(spec), lone, 60_000.0)
    assert one["tokens_per_s_hi"] == pytest.approx(alike["tokens_per_s_hi"], rel=1e-4)
    assert one["memory_gb"] == pytest.approx(alike["memory_gb"], rel=1e-5)
    assert not any("V100" in doubt for doubt in one["doubts"])
    assert any("V100-32GB" in doubt for doubt in both["doubts"])
    assert both["memory_gb_held"] == pytest.approx(34.36)
    old = dataclasses.replace(spec, gpu="V100-32GB")
    of_old = plan_trust(old, problem_on(old), PLAN, 60_000.0)
    of_new = plan_trust(spec, problem_on(spec), PLAN, 60_000.0)
    # The model's error is that of the type nobody measured; the parameters' is of both together.
    bands = [np.log(x["tokens_per_s_hi"] / 60_000.0) for x in (of_old, of_new, both)]
    fits = [shipped_fit(gpu, "llm-foundry") for gpu in ("V100-32GB", "A100-80GB")]
    least = max(fit.band.reach(0.0) for fit in fits)
    assert bands[0] > 1.3 * bands[1] and 1.2 * bands[1] < bands[2] < 1.05 * bands[0]
    assert bands[2] > least


@pytest.mark.nightly
@pytest.mark.usefixtures("scoring_is_optimised")
@pytest.mark.parametrize("name", ["four-aws-regions"])
def test_no_plan_of_a_table_is_above_the_record_without_the_flag_that_names_it(name):
    """Every plan of a named world, each with its best lower choice, on the links of its file."""
    world, spec = make_world(name), load_cluster(named_world(name).cluster)
    problem, table = world.problem.job(0), world.table
    view = NetworkView(
        bandwidth_gb_per_s=problem.cluster.bandwidth_gb_per_s,
        rtt_s=problem.cluster.rtt_s,
        gpus_available=problem.cluster.gpus,
    )
    rates, choices = score_plans(table.plans, one_view(view), problem)
    steps_per_s = np.where(np.asarray(table.mask), np.asarray(rates[0]), 0.0)
    able = np.flatnonzero(steps_per_s > 0)
    assert len(able) > 10
    tokens_per_s = float(problem.work.tokens_per_step) * steps_per_s
    tflops = float(problem.work.useful_tflop) * steps_per_s
    record = RECORDS[family(spec.gpu), False].share
    for row in able:
        plan, _ = complete(take(table.plans, row), choices[0, row], problem, view)
        plan = jax.tree.map(np.asarray, plan)
        share = tflops[row] / (plan_features(problem.work, plan)[1] * spec.gpu_specs[0].peak_tflops)
        doubts = plan_trust(spec, problem, plan, float(tokens_per_s[row]))["doubts"]
        flagged = any("above the highest published" in doubt for doubt in doubts)
        assert flagged == (share > record), (row, share, doubts)


def test_the_probability_of_being_best_follows_from_the_bands():
    rates, reach = np.array([100.0, 100.0, 50.0, 0.0]), 1.1
    chance = probabilities_best(rates, rates / reach)
    np.testing.assert_allclose(chance[:2], 0.5, atol=0.03)  # two alike, one half as fast
    assert chance[2] < 1e-3 and chance[3] == 0.0 and chance.sum() == pytest.approx(1.0)
    # By hand: ln(1.05) apart, each off by ln(1.1) / 1.645 = 0.058: z = 0.0488 / 0.082 = 0.595.
    near = probabilities_best(np.array([105.0, 100.0]), np.array([105.0, 100.0]) / reach)
    assert near[0] == pytest.approx(0.724, abs=0.03)
    # A wide band wins now and then, and loses where it counts: at its lower end.
    wide = probabilities_best(np.array([100.0, 98.0]), np.array([95.0, 49.0]))
    assert 0.3 < wide[1] < 0.5
    assert not probabilities_best(np.zeros(2), np.zeros(2)).any()
