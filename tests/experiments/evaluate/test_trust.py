"""The band of a plan, and the reasons to doubt it."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.toy_world import JOB, make_plan

from experiments.evaluate.trust import plan_features, plan_trust
from jaxsim.cluster.cluster import load_cluster
from jaxsim.cluster.fits import family, shipped_fit
from jaxsim.cluster.records import RECORDS
from jaxsim.planning import complete, one_view, score_plans
from jaxsim.step_time import NetworkView
from jaxsim.trees import take
from jaxsim.workload.workload import build_workload
from jaxsim.worlds import make_world, named_world

PLAN = jax.tree.map(np.asarray, make_plan([(0, 1)], [(4, 4)], [4], micro_batch=2, dp=4))
WORK = build_workload([JOB]).job(0)


def trust(stack, tokens_per_s=60_000.0):
    spec = dataclasses.replace(load_cluster(), stack=stack)
    return plan_trust(spec, WORK, PLAN, tokens_per_s)


def test_a_plan_of_a_measured_stack_has_its_band_widened_by_distance():
    features, gpus = plan_features(WORK, PLAN)
    assert gpus == 8 and features["tokens"] == 2048.0 and features["hidden"] == 1024.0
    fit, found = shipped_fit("A100-80GB", "llm-foundry"), trust("llm-foundry")
    distance = fit.domain.distance(features)
    assert distance > 0
    reach = np.exp(fit.band.reach(distance))
    assert found["tokens_per_s_hi"] == pytest.approx(60_000.0 * reach)
    assert found["tokens_per_s_lo"] == pytest.approx(60_000.0 / reach)
    assert any("outside the calibrated domain: tokens 2048" in d for d in found["doubts"])


def test_what_nobody_measured_and_what_nobody_reached_is_said():
    found = trust("megatron-flash", tokens_per_s=1e7)
    assert any("no run of megatron-flash on A100-80GB" in d for d in found["doubts"])
    assert any("above the highest published for A100-80GB" in d for d in found["doubts"])
    assert found["tokens_per_s_hi"] / 1e7 > trust("llm-foundry")["tokens_per_s_hi"] / 60_000.0


@pytest.mark.slow
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
        share = tflops[row] / (plan_features(problem.work, plan)[1] * spec.gpu_spec.peak_tflops)
        doubts = plan_trust(spec, problem.work, plan, float(tokens_per_s[row]))["doubts"]
        flagged = any("above the highest published" in doubt for doubt in doubts)
        assert flagged == (share > record), (row, share, doubts)
