"""Memory per GPU against published formulas."""

import jax.numpy as jnp
import numpy as np
import pytest
from toy_world import JOB, base_view, calibration, cluster_spec, cost_of, make_plan

from jaxsim.plan import SCHEDULE_1F1B, SCHEDULE_EAGER_1F1B, SCHEDULE_GPIPE
from jaxsim.step_time.memory import state_bytes_per_param
from jaxsim.step_time.pipeline import in_flight_limit
from jaxsim.workload import JobSpec, ModelConfig, build_workload

WORK = build_workload([JOB]).job(0)


@pytest.mark.parametrize(
    ("stage", "expected"),
    [(0, [18, 18]), (1, [18, 6 + 12 / 8]), (2, [18, 2 + 16 / 8]), (3, [18, 18 / 8])],
)
def test_model_state_is_eighteen_bytes_and_zero_shards_it(stage, expected):
    got = state_bytes_per_param(jnp.int32(stage), jnp.array([1, 8], jnp.int32))
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (SCHEDULE_1F1B, [4, 3, 2, 1]),
        (SCHEDULE_EAGER_1F1B, [7, 5, 3, 1]),
        (SCHEDULE_GPIPE, [16, 16, 16, 16]),
    ],
)
def test_micro_batches_in_flight(schedule, expected):
    depth = jnp.array([4.0, 3.0, 2.0, 1.0], jnp.float32)
    many = in_flight_limit(jnp.int32(schedule), depth, jnp.float32(16))
    np.testing.assert_array_equal(many, expected)
    few = in_flight_limit(jnp.int32(schedule), depth, jnp.float32(2))
    np.testing.assert_array_equal(few, np.minimum(expected, 2))


def memory(plan, work=WORK, spec=None):
    cluster = (spec or cluster_spec(2, gpus=16)).to_arrays()
    view = base_view(cluster)
    return np.asarray(cost_of(plan, work, cluster, calibration(framework_gb=0.0), view).memory_gb)


def test_a_22b_model_on_one_node_as_in_korthikanti_2022():
    # Table 3, 22B: 48 layers, h = 6144, 64 heads, s = 2048, tp 8, micro-batch 4. The published
    # split: 18 bytes a parameter, activations s b h L / t (34 + 5 a s / h).
    model = ModelConfig(48, 6144, 64, 64, 4 * 6144, 2, 51200, True)
    work = build_workload([JobSpec(model, 4, 2048, flash_attention=False)]).job(0)
    got = memory(make_plan([(0,)], [(48,)], [1], tp=8, micro_batch=4, zero_stage=0), work)[0]
    s, b, h, a = 2048, 4, 6144, 64
    params = 48 * (12 * h * h + 2 * h) + 2 * 51200 * h
    activations = s * b * h * 48 / 8 * (34 + 5 * a * s / h)
    logits = 4 * s * b * 51200 / 8
    np.testing.assert_allclose(got, (18 * params / 8 + activations + logits) / 1e9, rtol=1e-5)


def test_tensor_and_context_parallelism_divide_activations():
    def activations(**fields):
        whole = memory(make_plan([(0,)], [(8,)], [4], micro_batch=8, zero_stage=0, **fields))[0]
        tp = fields.get("tp", 1)
        return whole - 18 * float(WORK.gparams) / tp

    one = activations()
    np.testing.assert_allclose(activations(tp=4), one / 4, rtol=1e-3)
    np.testing.assert_allclose(activations(cp=4), one / 4, rtol=1e-3)


def test_fuller_schedules_and_earlier_stages_hold_more():
    def of(schedule):
        fields = {"micro_batch": 4, "pp": 2, "schedule": schedule, "zero_stage": 0}
        return memory(make_plan([(0, 1)], [(4, 4)], [8], **fields))

    stored = 4 * 1024 * (18 * 1024 + 6 * 4096) * 2 / 1e9  # two layers of 4 sequences
    plain, eager, gpipe = (of(s) for s in (SCHEDULE_1F1B, SCHEDULE_EAGER_1F1B, SCHEDULE_GPIPE))
    # Stages from the end, counted at a domain's first stage: 4 and 2.
    np.testing.assert_allclose(eager - plain, [3 * stored, stored], rtol=1e-4)
    np.testing.assert_allclose(gpipe - plain, [4 * stored, 6 * stored], rtol=1e-4)


def test_unused_domains_hold_nothing():
    assert memory(make_plan([(1,)], [(8,)], [16], micro_batch=2))[0] == 0.0
