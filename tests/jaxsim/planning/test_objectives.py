"""The three objectives of a plan, against arithmetic by hand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, cluster_spec

from jaxsim.plan import Problem
from jaxsim.planning.objectives import objectives
from jaxsim.step_time.closed_form import StepCost
from jaxsim.workload.workload import build_workload

WORK = build_workload([JOB]).job(0)
CLUSTER = cluster_spec().to_arrays()  # two domains of 4 GPUs of 100 TFLOP/s, 1.0 and 1.5 USD/h
GPUS = jnp.asarray([4, 4], jnp.int32)


def cost(**given):
    values = dict.fromkeys((f.name for f in dataclasses.fields(StepCost)), jnp.float32(0.0))
    values |= {"efficiency": jnp.float32(1.0), "runs": jnp.asarray(True)}
    return StepCost(**{**values, **given})


def points(available=GPUS, **given):
    return np.asarray(objectives(cost(**given), Problem(WORK, CLUSTER, None), available))


def test_time_utilisation_and_price_of_a_plan():
    step = points(
        step_s=jnp.float32(36.0),
        gpus_used=jnp.asarray([4, 2], jnp.int32),
        egress_usd=jnp.float32(0.25),
    )
    assert len(step) == 3
    useful_per_s = float(WORK.useful_tflop) / 36.0
    usd_per_step = 0.25 + (4 * 1.0 + 2 * 1.5) * 36.0 / 3600.0
    mtokens = 32 * 1024 / 1e6
    # 8 GPUs are there whether the plan holds them or not: idle ones count against it.
    np.testing.assert_allclose(
        step, [36.0, 800.0 / useful_per_s, usd_per_step / mtokens], rtol=1e-5
    )


def test_a_step_that_is_worth_less_takes_longer_and_costs_more():
    plan = {"step_s": jnp.float32(36.0), "egress_usd": jnp.float32(0.25)}
    plan["gpus_used"] = jnp.asarray([4, 2], jnp.int32)
    half = points(**plan, efficiency=jnp.float32(0.5))
    np.testing.assert_allclose(half, 2 * points(**plan), rtol=1e-5)


def test_only_the_gpus_that_local_jobs_leave_count_as_available():
    plan = {"step_s": jnp.float32(36.0), "gpus_used": jnp.asarray([2, 2], jnp.int32)}
    whole, less = points(**plan), points(jnp.asarray([2, 2], jnp.int32), **plan)
    assert less[1] == pytest.approx(whole[1] / 2) and less[0] == whole[0] and less[2] == whole[2]


def test_a_plan_that_cannot_run_is_nowhere():
    assert np.isinf(points(step_s=jnp.float32(1.0), runs=jnp.asarray(False))).all()
