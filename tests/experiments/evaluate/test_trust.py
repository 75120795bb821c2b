"""The band of a plan, and the reasons to doubt it."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.toy_world import JOB, make_plan

from experiments.evaluate.trust import plan_features, plan_trust
from jaxsim.cluster.cluster import load_cluster
from jaxsim.cluster.fits import shipped_fit
from jaxsim.workload.workload import build_workload

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
