"""The closed form against arithmetic by hand, and what must hold for every plan and network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_world import JOB, base_view, calibration, cluster_spec, cost_of, make_plan, pad_plan

from jaxsim.plan import (
    PLACEMENT_PP_INNER,
    SCHEDULE_1F1B,
    SCHEDULE_EAGER_1F1B,
    SCHEDULE_GPIPE,
    empty_plan,
)
from jaxsim.step_time import step_cost
from jaxsim.workload import RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, build_workload

WORK = build_workload([JOB]).job(0)
CALIBRATION = calibration()

# The toy model by hand: 8 layers, h = 1024, 8 of 16 heads hold keys and values, gated FFN of 4096.
S, H, KV, F, V = 1024.0, 1024.0, 512.0, 4096.0, 32000.0
LAYER_PARAMS = H * (H + 2 * KV) + H * H + 3 * H * F + 2 * H
TABLE_PARAMS = V * H
BOUNDARY_GB = 2 * S * H / 1e9
PEAK, HBM = 100e12, 2000e9 * 0.8


def layer_s(micro_batch, tp=1, cp=1):
    """Forward of one layer [s]: the slower of arithmetic and HBM, operator by operator."""
    b = micro_batch / (tp * cp)
    arithmetic = [
        2 * S * H * (H + 2 * KV) / (PEAK * 0.5),
        4 * S * S * H * 0.5 / (PEAK * 0.25),  # causal: half of the matrix
        2 * S * H * H / (PEAK * 0.5),
        6 * S * H * F / (PEAK * 0.5),
        20 * S * H / (PEAK * 0.5),
    ]
    elements = [2 * H + 2 * KV, 2 * H + 2 * KV, 2 * H, 2 * H + 3 * F, 8 * H]
    weights = [H * (H + 2 * KV), 0, H * H, 3 * H * F, 2 * H]
    memory = [2 * (w / tp + S * e * b) / HBM for w, e in zip(weights, elements, strict=True)]
    return max(sum(max(a * b, m) for a, m in zip(arithmetic, memory, strict=True)), 1e-4)


def head_s(micro_batch, tp=1, cp=1):
    """Logits, forward and backward [s]."""
    return 3 * 2 * S * H * V * micro_batch / (tp * cp) / (PEAK * 0.5)


def evaluate(plan, spec=None, work=WORK, cal=CALIBRATION, **view):
    cluster = (cluster_spec() if spec is None else spec).to_arrays()
    seen = base_view(cluster).replace(**view)
    return cost_of(plan, work, cluster, cal, seen)


def assert_parts(cost, **expected):
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(cost, name), value, rtol=2e-5, atol=1e-7, err_msg=name)


def test_one_domain_by_hand():
    cost = evaluate(make_plan([(0,)], [(8,)], [4], dp=4, micro_batch=2))
    stage = 8 * 3 * layer_s(2)
    params = 8 * LAYER_PARAMS + 2 * TABLE_PARAMS
    # Reduce-scatter and all-gather of 16-bit values over four ranks, NVLink at 75 %.
    inside = 2 * 3 * (2 * params / 1e9 / 4 / 75.0 + 1e-5)
    hidden = 0.2 * 8 * 2 * layer_s(2)
    assert inside > hidden > 0, "the case must expose a part of the sync"
    assert_parts(
        cost,
        compute_s=4 * (stage + head_s(2)),
        bubble_s=0.0,
        exposed_wan_s=0.0,
        tensor_parallel_s=0.0,
        context_parallel_s=0.0,
        sync_s=inside - hidden,
        step_s=4 * (stage + head_s(2)) + inside - hidden,
        # ZeRO-1 over 4 replicas: 2 + 4 + 12 / 4 bytes; 18 s h + 2 x 3 s f per layer; fp32 logits.
        memory_gb=[
            (params * 9 + 2 * 8 * S * (18 * H + 6 * F) + 2 * 4 * S * V) / 1e9 + 1.0,
            0.0,
        ],
        gpus_used=[4, 0],
        wan_gb=np.zeros((2, 2)),
        egress_usd=0.0,
        efficiency=1.0,
    )
    assert bool(cost.fits) and bool(cost.runs)


def wan_pipeline(schedule, gbps, rtt_ms=40.0, micro_batches=8):
    """Two domains of one stage and two replicas each, 3 and 5 layers, and its hand-made times."""
    spec = cluster_spec(gbps=gbps, rtt_ms=rtt_ms)
    plan = make_plan(
        [(0, 1)], [(3, 5)], [micro_batches], dp=2, micro_batch=2, schedule=schedule, zero_stage=0
    )
    # Links as the spec makes them: 0 -> 1 is 1.05, 1 -> 0 is 1.1 of the nominal; rtt 1.1.
    there = 2 * 2 * BOUNDARY_GB / (gbps / 8 * 1.05 * 0.9)
    back = 2 * 2 * BOUNDARY_GB / (gbps / 8 * 1.10 * 0.9)
    first, last = 3 * 3 * layer_s(2), 5 * 3 * layer_s(2) + head_s(2)
    latency = 0.5 * 1.1 * rtt_ms * 1e-3
    params = [3 * LAYER_PARAMS + TABLE_PARAMS, 5 * LAYER_PARAMS + TABLE_PARAMS]
    inside = max(2 * (2 * p / 1e9 / 2 / 75.0 + 1e-5) for p in params)
    sync = max(inside - 0.2 * 5 * 2 * layer_s(2), 0.0)
    assert sync > 0
    return evaluate(plan, spec), there, back, first, last, latency, params, sync


def assert_wan_pipeline(case, total, in_flight):
    cost, there, back, first, last, _, params, sync = case
    ideal = first + last + 7 * max(first, last)
    stored = [2 * n * S * (18 * H + 6 * F) * m for n, m in zip((3, 5), in_flight, strict=True)]
    assert_parts(
        cost,
        compute_s=8 * max(first, last),
        bubble_s=ideal - 8 * max(first, last),
        exposed_wan_s=total - ideal,
        sync_s=sync,
        step_s=total + sync,
        wan_gb=[[0, 8 * 4 * BOUNDARY_GB], [8 * 4 * BOUNDARY_GB, 0]],
        # Row = source: 0 -> 1 costs 0.03, 1 -> 0 costs 0.02.
        egress_usd=8 * 4 * BOUNDARY_GB * (0.03 + 0.02),
        wan_busy_s=8 * max(there, back),
        memory_gb=[
            (params[0] * 18 + stored[0]) / 1e9 + 1.0,
            (params[1] * 18 + stored[1] + 2 * 4 * S * V) / 1e9 + 1.0,
        ],
        gpus_used=[2, 2],
    )


def test_wan_pipeline_limited_by_the_link_by_hand():
    case = wan_pipeline(SCHEDULE_GPIPE, gbps=1.0)
    _, there, back, first, last, latency, _, _ = case
    assert there > max(first, last), "the case must be limited by the link"
    fill = first + last + there + back + 2 * latency
    # GPipe sends all activations before the first gradient: the two directions never overlap.
    assert_wan_pipeline(case, fill + 7 * (there + back), in_flight=(8, 8))


def test_wan_pipeline_limited_by_compute_by_hand():
    case = wan_pipeline(SCHEDULE_GPIPE, gbps=80.0, rtt_ms=1.0)
    _, there, back, first, last, latency, _, _ = case
    assert last > max(there, back, first), "the case must be limited by the last stage"
    fill = first + last + there + back + 2 * latency
    assert_wan_pipeline(case, fill + 7 * last, in_flight=(8, 8))


@pytest.mark.parametrize(("schedule", "held"), [(SCHEDULE_1F1B, 2), (SCHEDULE_EAGER_1F1B, 3)])
def test_wan_pipeline_limited_by_the_round_trip_by_hand(schedule, held):
    case = wan_pipeline(schedule, gbps=8.0, rtt_ms=400.0)
    _, there, back, first, last, latency, _, _ = case
    fill = first + last + there + back + 2 * latency
    beat = max(first, last, there, back)
    assert fill / held > beat, "the case must wait for what is in flight"
    # 8 = 3 x 2 + 2 = 2 x 3 + 2: whole round trips, and one micro-batch that queues in the last.
    assert 7 % held == 1
    total = fill + (7 // held) * fill + beat
    assert_wan_pipeline(case, total, in_flight=(held, 1))


def test_latency_is_paid_with_the_micro_batches_and_not_once():
    near, far = (wan_pipeline(SCHEDULE_1F1B, 80.0, rtt_ms=r)[0].step_s for r in (500.0, 1000.0))
    # 2 in flight, 8 micro-batches: the fill and 6 / 2 further round trips of 1.1 rtt.
    np.testing.assert_allclose(far - near, (1 + 6 / 2) * 1.1 * 0.5, rtol=1e-4)


def two_replicas(**fields):
    """Domain 0 with three replicas, domain 1 with one, each a whole pipeline."""
    values = {"dp": [3, 1], "micro_batch": 2, "recompute": RECOMPUTE_FULL, **fields}
    return make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], **values)


def test_two_replicas_with_ring_sync_by_hand():
    cost = evaluate(two_replicas())
    params = 8 * LAYER_PARAMS + 2 * TABLE_PARAMS
    gradient_gb = 2 * params / 1e9  # 16-bit; a ring of two sends 2 (n - 1) / n = 1 of it each way
    wan = max(gradient_gb / (1.05 * 0.7), gradient_gb / (1.10 * 0.7)) + 2 * 0.5 * 0.044
    inside = 2 * 2 * (gradient_gb / 3 / 75.0 + 1e-5)
    sync = inside + wan - 0.2 * 8 * 3 * layer_s(2)
    compute = 4 * (8 * 4 * layer_s(2) + head_s(2))
    assert_parts(
        cost,
        compute_s=compute,
        bubble_s=0.0,
        exposed_wan_s=0.0,
        sync_s=sync,
        step_s=compute + sync,
        wan_busy_s=wan,
        wan_gb=[[0, gradient_gb], [gradient_gb, 0]],
        egress_usd=gradient_gb * 0.05,
        gpus_used=[3, 1],
        efficiency=1.0,
    )


def test_the_slowest_group_decides():
    plan = make_plan([(0,), (1,)], [(8,), (8,)], [10, 2], dp=[1, 3], micro_batch=2)
    cost = evaluate(plan)
    assert_parts(cost, compute_s=10 * (8 * 3 * layer_s(2) + head_s(2)))


def test_local_sgd_by_hand():
    every, eighth = evaluate(two_replicas()), evaluate(two_replicas(sync_period=8))
    inside = 2 * 2 * (2 * (8 * LAYER_PARAMS + 2 * TABLE_PARAMS) / 1e9 / 3 / 75.0 + 1e-5)
    hidden = 0.2 * 8 * 3 * layer_s(2)
    # Between outer syncs only the replicas inside a domain talk; the WAN carries an eighth.
    assert_parts(
        eighth,
        sync_s=np.asarray(every.sync_s) / 8 + max(inside - hidden, 0.0) * 7 / 8,
        wan_gb=np.asarray(every.wan_gb) / 8,
        # 1 - 0.08 log10 H / (1 + log10(P / 1e9) / 5), P = 8 layers and two tables in 1e9.
        efficiency=1
        - 0.08 * np.log10(8) / (1 + np.log10((8 * LAYER_PARAMS + 2 * TABLE_PARAMS) / 1e9) / 5),
    )
    alone = make_plan([(0,)], [(8,)], [16], sync_period=8, micro_batch=2)
    assert float(evaluate(alone).efficiency) == 1.0, "one group has nothing to drift from"


def test_wire_bits_scale_the_traffic_and_cost_efficiency():
    full, half = evaluate(two_replicas()), evaluate(two_replicas(wire_bits=8))
    assert_parts(half, wan_gb=np.asarray(full.wan_gb) / 2, efficiency=0.99)
    assert float(half.step_s) < float(full.step_s)


def test_every_parallelism_inside_one_domain_by_hand():
    spec = cluster_spec(gpus=16)
    spec = spec.__class__(**{**spec.__dict__, "gpus_per_node": (4, 4)})
    plan = make_plan(
        [(0,)], [(8,)], [16], dp=2, tp=2, cp=2, pp=2, zero_stage=3, placement=PLACEMENT_PP_INNER
    )
    cost = evaluate(plan, spec)
    stage = 4 * 3 * layer_s(1, tp=2, cp=2)
    # tp neighbours share a node: 4 all-reduces of s b h / cp values, 2 ranks.
    tensor = 4 * 4 * 2 * (BOUNDARY_GB / 2 / (2 * 75.0) + 1e-5)
    # cp ranks stand 2 apart and fill the node; 3 passes of one hop hidden by half the attention.
    chunk = 2 * BOUNDARY_GB * 0.5 / (2 * 2)
    attention = 4 * S * S * H * 0.5 / 4 / (PEAK * 0.25)
    context = 4 * 3 * max(chunk / 75.0 + 1e-5 - attention / 2, 0.0)
    assert context > 0, "attention must not hide the whole ring"
    head = head_s(1, 2, 2)
    # Stages stand a node apart: 80 Gbit/s at 60 %, shared by 4 rings, sequences cut in 4.
    hop = BOUNDARY_GB / 4 / (10 * 0.6 / 4) + 1e-5
    total = 2 * (stage + tensor + context) + head + 2 * hop + 15 * (stage + tensor + context + head)
    throttle = 2 * (stage + tensor + context) + head + 2 * hop
    assert throttle / 2 <= stage + tensor + context + head, "the bottleneck stage must decide"
    # Replicas 2 x 2 x 2 apart, ZeRO-3 gathers twice and scatters once.
    params = (4 * LAYER_PARAMS + TABLE_PARAMS) / 2
    inside = 3 * (2 * params / 1e9 / 2 / (10 * 0.6 / 4) + 1e-5)
    sync = inside - 0.2 * 4 * 2 * layer_s(1, 2, 2)
    assert_parts(
        cost,
        compute_s=16 * (stage + head),
        tensor_parallel_s=16 * tensor,
        context_parallel_s=16 * context,
        sync_s=sync,
        step_s=total + sync,
        memory_gb=[
            (params * 18 / 2 + 2 * 4 * S * (18 * H + 6 * F) / 4 + 4 * S * V / 4) / 1e9 + 1.0,
            0.0,
        ],
        gpus_used=[16, 0],
    )


def test_recomputation_costs_time_and_saves_memory():
    costs = [
        evaluate(make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2, recompute=r))
        for r in (0, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL)
    ]
    attention = max(2 * S * S * H * 2 / (PEAK * 0.25), 2 * S * (2 * H + 2 * KV) * 2 / HBM)
    plain, selective, full = (float(c.compute_s) for c in costs)
    np.testing.assert_allclose(selective - plain, 8 * 8 * attention, rtol=1e-4)
    np.testing.assert_allclose(full - plain, 8 * 8 * layer_s(2), rtol=1e-4)
    assert float(costs[2].memory_gb[0]) < float(costs[0].memory_gb[0])


# What must hold for any plan under any network, on four domains.

SPEC4 = cluster_spec(4, gpus=8)
CLUSTER4 = SPEC4.to_arrays()
PLANS4 = {
    "one domain": make_plan([(2,)], [(8,)], [4], 4, dp=4, micro_batch=2, pp=[1, 1, 2, 1]),
    "pipeline of four": make_plan([(2, 0, 3, 1)], [(2, 3, 2, 1)], [16], 4, micro_batch=2),
    "eager pipeline of two": make_plan(
        [(3, 1)], [(5, 3)], [8], 4, dp=2, tp=2, micro_batch=2, schedule=SCHEDULE_EAGER_1F1B
    ),
    "two pipelines": make_plan(
        [(0, 1), (3, 2)], [(3, 5), (4, 4)], [4, 4], 4, dp=2, micro_batch=2, pp=2
    ),
    "four replicas": make_plan(
        [(0,), (1,), (2,), (3,)], [(8,)] * 4, [2, 2, 2, 2], 4, dp=4, sync_period=4, wire_bits=8
    ),
    "uneven, GPipe": make_plan(
        [(1,), (3, 0, 2)], [(8,), (2, 4, 2)], [5, 3], 4, dp=[4, 4, 1, 1], schedule=SCHEDULE_GPIPE
    ),
}
STACKED4 = jax.tree.map(lambda *x: jnp.stack(x), *PLANS4.values())
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
    )
    runs = np.asarray(cost.runs)
    np.testing.assert_allclose(np.asarray(parts)[runs], np.asarray(cost.step_s)[runs], rtol=1e-4)
    assert np.all(np.isinf(np.asarray(cost.step_s)[~runs]))
    for name, leaf in vars(cost).items():
        assert not np.any(np.isnan(leaf)), name
    for name in ("compute_s", "bubble_s", "exposed_wan_s", "sync_s", "wan_gb", "egress_usd"):
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
        np.testing.assert_allclose(real, value, rtol=2e-6, err_msg=field)
        assert got.ndim == 0 or np.all(got[4:] == 0), field


@pytest.fixture(scope="module")
def jobs_cost():
    return jax.jit(step_cost)


def test_padding_jobs_changes_nothing(jobs_cost):
    idle = jax.tree.map(jnp.asarray, empty_plan(4))
    view = base_view(CLUSTER4)
    for name, plan in PLANS4.items():
        both = jax.tree.map(lambda *x: jnp.stack(x), plan, idle)
        work = build_workload([JOB], pad_to=2)
        cost = jobs_cost(both, work, CLUSTER4, CALIBRATION, view)
        alone = cost_of(plan, WORK, CLUSTER4, CALIBRATION, view)
        for field, value in vars(alone).items():
            np.testing.assert_allclose(
                getattr(cost, field)[0], value, rtol=2e-6, err_msg=f"{name}: {field}"
            )
        assert not bool(cost.runs[1]) and float(cost.wan_gb[1].sum()) == 0


def test_jobs_on_one_link_share_it(jobs_cost):
    plan = make_plan([(0, 1)], [(3, 5)], [8], 4, dp=2, micro_batch=2, schedule=SCHEDULE_GPIPE)
    apart = make_plan([(2, 3)], [(3, 5)], [8], 4, dp=2, micro_batch=2, schedule=SCHEDULE_GPIPE)
    view = base_view(CLUSTER4)
    view = view.replace(bandwidth_gb_per_s=view.bandwidth_gb_per_s * 0.1)
    work = build_workload([JOB, JOB])
    alone = cost_of(plan, WORK, CLUSTER4, CALIBRATION, view)
    half = view.replace(bandwidth_gb_per_s=view.bandwidth_gb_per_s * 0.5)
    slowed = cost_of(plan, WORK, CLUSTER4, CALIBRATION, half)
    together = jax.tree.map(lambda *x: jnp.stack(x), plan, plan)
    shared = jobs_cost(together, work, CLUSTER4, CALIBRATION, view)
    np.testing.assert_allclose(shared.step_s, float(slowed.step_s), rtol=1e-5)
    separate = jax.tree.map(lambda *x: jnp.stack(x), plan, apart)
    free = jobs_cost(separate, work, CLUSTER4, CALIBRATION, view)
    np.testing.assert_allclose(free.step_s[0], float(alone.step_s), rtol=1e-6)


def test_replicas_shrink_to_the_free_gpus():
    plan = PLANS4["two pipelines"]  # every domain holds dp 2 x pp 2

    def at(gpus):
        view = base_view(CLUSTER4).replace(gpus_available=jnp.asarray(gpus, jnp.int32))
        return cost_of(plan, WORK, CLUSTER4, CALIBRATION, view)

    full, tight, none = at([8, 8, 8, 8]), at([8, 3, 8, 8]), at([8, 1, 8, 8])
    np.testing.assert_array_equal(full.gpus_used, [4, 4, 4, 4])
    # Domain 1 holds one replica of two: its whole group runs one, the other group is untouched.
    np.testing.assert_array_equal(tight.gpus_used, [2, 2, 4, 4])
    # 4 micro-batches of two replicas are 8 of one; its slowest stage has 3 of 5 layers and the logits.
    assert_parts(tight, compute_s=8 * (3 * 3 * layer_s(2) + head_s(2)))
    assert bool(tight.runs) and not bool(none.runs) and np.isinf(none.step_s)
