"""The three objectives of a plan, against arithmetic by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from helpers.toy_world import JOB, cluster_spec

from jaxsim.plan import Problem
from jaxsim.planning.objectives import objectives
from jaxsim.step_time.closed_form import StepCost
from jaxsim.workload.workload import build_workload

WORK = build_workload([JOB]).job(0)
CLUSTER = cluster_spec().to_arrays()  # two domains of 4 GPUs of 100 TFLOP/s, 1.0 and 1.5 USD/h


def cost(**given):
    values = dict.fromkeys((f.name for f in dataclasses.fields(StepCost)), jnp.float32(0.0))
    values |= {"efficiency": jnp.float32(1.0), "runs": jnp.asarray(True)}
    return StepCost(**{**values, **given})


def points(**given):
    return np.asarray(objectives(cost(**given), Problem(WORK, CLUSTER, None)))


def test_time_traffic_and_price_of_a_plan():
    step = points(
        step_s=jnp.float32(36.0),
        gpus_used=jnp.asarray([4, 2], jnp.int32),
        egress_usd=jnp.float32(0.25),
        wan_gb=jnp.asarray([[0.0, 3.0], [2.0, 0.0]], jnp.float32),
    )
    assert len(step) == 3
    usd_per_step = 0.25 + (4 * 1.0 + 2 * 1.5) * 36.0 / 3600.0
    mtokens = 32 * 1024 / 1e6
    np.testing.assert_allclose(step, [36.0, 5.0 / mtokens, usd_per_step / mtokens], rtol=1e-5)


def test_a_step_that_is_worth_less_takes_longer_and_costs_more():
    plan = {"step_s": jnp.float32(36.0), "egress_usd": jnp.float32(0.25)}
    plan["gpus_used"] = jnp.asarray([4, 2], jnp.int32)
    plan["wan_gb"] = jnp.asarray([[0.0, 3.0], [2.0, 0.0]], jnp.float32)
    half = points(**plan, efficiency=jnp.float32(0.5))
    np.testing.assert_allclose(half, 2 * points(**plan), rtol=1e-5)


def test_a_plan_that_cannot_run_is_nowhere():
    assert np.isinf(points(step_s=jnp.float32(1.0), runs=jnp.asarray(False))).all()
