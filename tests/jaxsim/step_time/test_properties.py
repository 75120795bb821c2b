"""What must hold for every plan under every network, whatever the efficiencies."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import (
    JOB,
    base_view,
    calibration,
    cluster_spec,
    cost_of,
    make_plan,
    pad_plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.plan.modes import Schedule
from jaxsim.trees import stack
from jaxsim.workload.workload import build_workload

WORK = build_workload([JOB]).job(0)
CALIBRATION = calibration()
LAYER_PARAMS, TABLE_PARAMS = JOB.model.layer_params, JOB.model.embedding_params

# On four domains.
SPEC4 = cluster_spec(4, gpus=8)
CLUSTER4 = SPEC4.to_arrays()
PLANS4 = {
    "one domain": make_plan([(2,)], [(8,)], [4], 4, dp=4, micro_batch=2, pp=[1, 1, 2, 1]),
    "pipeline of four": make_plan([(2, 0, 3, 1)], [(2, 3, 2, 1)], [16], 4, micro_batch=2),
    "eager pipeline of two": make_plan(
        [(3, 1)], [(5, 3)], [8], 4, dp=2, tp=2, micro_batch=2, schedule=Schedule.EAGER_1F1B
    ),
    "two pipelines": make_plan(
        [(0, 1), (3, 2)], [(3, 5), (4, 4)], [4, 4], 4, dp=2, micro_batch=2, pp=2
    ),
    "four replicas": make_plan(
        [(0,), (1,), (2,), (3,)], [(8,)] * 4, [2, 2, 2, 2], 4, dp=4, sync_period=4, wire_bits=8
    ),
    "streaming": make_plan(
        [(2,), (0,), (1,)], [(8,)] * 3, [4, 2, 2], 4, dp=4, sync_period=30, fragments=6, overlap=2
    ),
    "shards over pairs": make_plan(
        [(0,), (1,), (2,), (3,)], [(8,)] * 4, [2] * 4, 4, dp=4, zero_stage=3, shard_groups=2
    ),
    "mixed groups": make_plan(
        [(1,), (3, 0), (2,)],
        [(8,), (3, 5), (8,)],
        [2, 8, 3],
        4,
        dp=[4, 2, 2, 1],
        micro_batch=[2, 1, 4, 1],
        recompute=[0, 2, 1, 0],
        schedule=[0, 1, 0, 0],
        tp=[2, 1, 2, 1],
        pp=[1, 2, 1, 2],
        zero_stage=[1, 3, 2, 0],
        sync_period=30,
        activation_bits=8,
    ),
    "uneven, GPipe": make_plan(
        [(1,), (3, 0, 2)], [(8,), (2, 4, 2)], [5, 3], 4, dp=[4, 4, 1, 1], schedule=Schedule.GPIPE
    ),
    "interleaved": make_plan(
        [(2, 0, 3)], [(2, 4, 2)], [16], 4, micro_batch=2, schedule=Schedule.INTERLEAVED
    ),
    "interleaved, there and back": make_plan(
        [(1, 3)], [(4, 4)], [16], 4, micro_batch=2, pp=2, schedule=Schedule.INTERLEAVED
    ),
}
STACKED4 = stack(PLANS4.values())
costs_of = jax.jit(jax.vmap(cost_of, in_axes=(0, None, None, None, None)))
matrices = st.lists(st.floats(0.0, 1.0), min_size=16, max_size=16)
few = settings(deadline=None, max_examples=40)


def network(speed, delay, gpus=None):
    """A view from unit numbers: 1 MB/s to 100 GB/s, 0 to 1 s."""
    speed = 10.0 ** (5 * np.asarray(speed, np.float32).reshape(4, 4) - 3)
    view = base_view(CLUSTER4).replace(
        bandwidth_gb_per_s=jnp.asarray(speed, jnp.float32),
        rtt_s=jnp.asarray(np.reshape(delay, (4, 4)), jnp.float32),
    )
    return view if gpus is None else view.replace(gpus_available=jnp.asarray(gpus, jnp.int32))


@few
@given(matrices, matrices, st.lists(st.integers(0, 8), min_size=4, max_size=4))
def test_parts_sum_to_the_step_and_nothing_is_nan(speed, delay, gpus):
    cost = costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, network(speed, delay, gpus))
    parts = (
        cost.compute_s
        + cost.tensor_parallel_s
        + cost.context_parallel_s
        + cost.bubble_s
        + cost.exposed_wan_s
        + cost.sync_s
        + cost.optimizer_s
    )
    runs = np.asarray(cost.runs)
    np.testing.assert_allclose(np.asarray(parts)[runs], np.asarray(cost.step_s)[runs], rtol=1e-4)
    np.testing.assert_allclose(cost.total_s, parts, rtol=1e-5, atol=1e-6)
    assert np.all(np.isinf(np.asarray(cost.step_s)[~runs]))
    for name, leaf in vars(cost).items():
        assert not np.any(np.isnan(leaf)), name
    never_negative = ("compute_s", "tensor_parallel_s", "context_parallel_s", "bubble_s")
    never_negative += ("exposed_wan_s", "sync_s", "optimizer_s", "wan_gb", "egress_usd")
    for name in never_negative:
        # Bubble and exposed WAN are differences: rounding of the sum is allowed.
        slack = 1e-5 * np.asarray(parts).max()
        assert np.all(np.asarray(getattr(cost, name)) >= -slack), name
    assert np.all((np.asarray(cost.overlap) >= -1e-6) & (np.asarray(cost.overlap) <= 1 + 1e-6))
    assert np.all(np.asarray(cost.gpus_used) <= np.asarray(gpus)[None, :])


@few
@given(matrices, matrices, matrices)
def test_more_bandwidth_never_slows_a_plan(speed, more, delay):
    slow = costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, network(speed, delay))
    faster = np.asarray(speed) + (1 - np.asarray(speed)) * np.asarray(more)
    fast = costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, network(faster, delay))
    assert np.all(np.asarray(fast.step_s) <= np.asarray(slow.step_s) * (1 + 1e-5))
    np.testing.assert_array_equal(fast.wan_gb, slow.wan_gb)


@few
@given(matrices, matrices, matrices)
def test_lower_latency_never_slows_a_plan(speed, less, delay):
    far = costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, network(speed, delay))
    nearer = np.asarray(delay) * np.asarray(less)
    near = costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, network(speed, nearer))
    assert np.all(np.asarray(near.step_s) <= np.asarray(far.step_s) * (1 + 1e-5))


def test_a_link_that_matters_matters():
    base = network([0.5] * 16, [0.05] * 16)
    slow = base.replace(bandwidth_gb_per_s=base.bandwidth_gb_per_s.at[3, 1].multiply(0.01))
    before, after = (costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, v) for v in (base, slow))
    slowed = np.asarray(after.step_s) > 1.01 * np.asarray(before.step_s)
    # 3 -> 1: the pipelines that hold the pair, and none of the others; the ring of four replicas
    # goes 3 -> 0, that of the uneven plan joins 1 with all of the other group.
    assert dict(zip(PLANS4, slowed.tolist(), strict=True)) == {
        "one domain": False,
        "pipeline of four": True,
        "eager pipeline of two": True,
        "two pipelines": True,
        "four replicas": False,
        "uneven, GPipe": True,
        "interleaved": False,
        "interleaved, there and back": True,
        # Pairs hold the state together: each of a pair goes on to its like in the next pair.
        "shards over pairs": True,
        "streaming": False,  # without domain 3
        "mixed groups": False,  # the ring goes 1 -> 3 and 0 -> 2 -> 1
    }


@few
@given(st.floats(1.0, 40.0), st.floats(0.0, 40.0))
def test_more_memory_never_makes_a_plan_infeasible(memory, more):
    def feasible(gb):
        cluster = CLUSTER4.replace(gpu=CLUSTER4.gpu.replace(memory_gb=jnp.float32(gb)))
        return np.asarray(costs_of(STACKED4, WORK, cluster, CALIBRATION, base_view(cluster)).runs)

    assert np.all(feasible(memory) <= feasible(memory + more))


def test_memory_decides_feasibility():
    def runs(gb):
        cluster = CLUSTER4.replace(gpu=CLUSTER4.gpu.replace(memory_gb=jnp.float32(gb)))
        return np.asarray(costs_of(STACKED4, WORK, cluster, CALIBRATION, base_view(cluster)).runs)

    assert not runs(1.0).any() and runs(1000.0).all()


@few
@given(matrices, matrices)
def test_no_link_carries_more_than_it_can(speed, delay):
    view = network(speed, delay)
    cost = costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, view)
    rate = np.asarray(cost.wan_gb) / np.asarray(cost.step_s)[:, None, None]
    assert np.all(rate <= np.asarray(view.bandwidth_gb_per_s) * (1 + 1e-5))


def test_gradient_bytes_sent_equal_bytes_received():
    cost = costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, base_view(CLUSTER4))
    replicas = np.asarray(cost.wan_gb)[list(PLANS4).index("four replicas")]
    sent, received = replicas.sum(axis=1), replicas.sum(axis=0)
    np.testing.assert_allclose(sent, received, rtol=1e-6)
    params = (8 * LAYER_PARAMS + 2 * TABLE_PARAMS) / 1e9
    # Ring of 4, 8 bits on the wire, every 4th step.
    np.testing.assert_allclose(sent, 2 * 3 / 4 * 2 * params * 0.5 / 4, rtol=1e-5)
    for name in ("pipeline of four", "eager pipeline of two"):
        traffic = np.asarray(cost.wan_gb)[list(PLANS4).index(name)]
        # Activations go forward, as many gradients come back.
        np.testing.assert_array_equal(traffic, traffic.T)


def test_two_pipelines_reduce_every_layer_once_around_the_ring():
    cost = costs_of(STACKED4, WORK, CLUSTER4, CALIBRATION, base_view(CLUSTER4))
    traffic = np.asarray(cost.wan_gb)[list(PLANS4).index("two pipelines")]
    across = traffic[:2, 2:].sum(), traffic[2:, :2].sum()
    params = (8 * LAYER_PARAMS + 2 * TABLE_PARAMS) / 1e9
    np.testing.assert_allclose(across, 2 * params, rtol=1e-5)
    # Layers 0-2 | 3-7 on domains 0, 1 and 0-3 | 4-7 on 3, 2: 0-3, 1-3 (layer 3) and 1-2 talk.
    assert traffic[0, 2] == 0
    np.testing.assert_allclose(traffic[1, 3], 2 * LAYER_PARAMS / 1e9, rtol=1e-5)


@pytest.mark.parametrize("name", PLANS4)
def test_padding_domains_changes_nothing(name):
    small = cost_of(PLANS4[name], WORK, CLUSTER4, CALIBRATION, base_view(CLUSTER4))
    padded = SPEC4.to_arrays(8)
    large = cost_of(pad_plan(PLANS4[name], 8), WORK, padded, CALIBRATION, base_view(padded))
    for field, value in vars(small).items():
        got = np.asarray(getattr(large, field))
        real = got[(slice(0, 4),) * got.ndim]
        # Bubble and exposed WAN are differences: rounding of the sum is allowed.
        slack = 1e-6 * float(small.total_s) if field in ("bubble_s", "exposed_wan_s") else 0.0
        np.testing.assert_allclose(real, value, rtol=2e-6, atol=slack, err_msg=field)
        assert got.ndim == 0 or np.all(got[4:] == 0), field


def test_replicas_shrink_to_the_free_gpus():
    plan = PLANS4["two pipelines"]  # every domain holds dp 2 x pp 2

    def at(gpus):
        # Over links this fast the pipeline with the fuller stage is the slower one, always.
        view = network([1.0] * 16, [0.0] * 16, gpus)
        # Fewer nodes straggle less: not here.
        return cost_of(plan, WORK, CLUSTER4, calibration(straggler=0.0), view)

    full, tight, none = at([8, 8, 8, 8]), at([8, 3, 8, 8]), at([8, 1, 8, 8])
    np.testing.assert_array_equal(full.gpus_used, [4, 4, 4, 4])
    # Domain 1 holds one replica of two: its whole group runs one, the other group is untouched.
    np.testing.assert_array_equal(tight.gpus_used, [2, 2, 4, 4])
    np.testing.assert_allclose(
        float(tight.compute_s), 8 * float(full.compute_s) / 4, rtol=1e-5
    )  # 4 micro-batches of two replicas are 8 of one
    assert bool(tight.runs) and not bool(none.runs) and np.isinf(none.step_s)
