"""The closed form against a second derivation in plain floats (step_time_by_hand.py)."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.step_time_by_hand import WIRE_S, Hand
from helpers.toy_world import JOB, base_view, calibration, cluster_spec, cost_of, make_plan

from jaxsim.learning import Communication, published_efficiency
from jaxsim.plan.modes import Recompute, Schedule
from jaxsim.plan.plan import PLACEMENT_PP_INNER
from jaxsim.step_time.paths import _chunk_trips_s
from jaxsim.workload.workload import build_workload

HAND = Hand()
PARTS = ("compute_s", "tensor_parallel_s", "context_parallel_s", "bubble_s", "exposed_wan_s")
PARTS += ("sync_s", "optimizer_s")
WHOLE = 8 * HAND.layer_params + 2 * HAND.table_params  # parameters of the toy model


def evaluate(plan, spec=None, job=JOB, **changes):
    cluster = (cluster_spec() if spec is None else spec).to_arrays()
    work = build_workload([job]).job(0)
    return cost_of(plan, work, cluster, calibration(**changes), base_view(cluster))


def assert_parts(cost, **expected):
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(cost, name), value, rtol=2e-5, atol=1e-7, err_msg=name)
    summed = sum(float(getattr(cost, name)) for name in PARTS)
    np.testing.assert_allclose(summed, float(cost.step_s), rtol=2e-6)
    np.testing.assert_allclose(float(cost.total_s), float(cost.step_s), rtol=2e-6)


def test_one_domain_by_hand():
    cost = evaluate(make_plan([(0,)], [(8,)], [4], dp=4, micro_batch=2))
    layer = HAND.layer(2)
    compute = 4 * (HAND.stage(layer, 8) + HAND.embedding(2) + HAND.head(2))
    # Reduce-scatter and all-gather over the four replicas of the node.
    inside, hidden = 2 * HAND.sync_pass(WHOLE, 4), 0.2 * 8 * layer.backward
    assert inside > hidden > 0, "the case must expose a part of the sync"
    update = HAND.optimizer(WHOLE, shards=4)
    # ZeRO-1 over 4 replicas shards 12 of 18 bytes.
    memory = HAND.state(WHOLE, 12, 4) + 2 * 8 * HAND.stored() + HAND.logits(2) + HAND.fixed
    assert_parts(
        cost,
        compute_s=compute,
        bubble_s=0.0,
        exposed_wan_s=0.0,
        tensor_parallel_s=0.0,
        context_parallel_s=0.0,
        sync_s=inside - hidden,
        optimizer_s=update,
        step_s=compute + inside - hidden + update,
        memory_gb=[memory / 1e9, 0.0],
        gpus_used=[4, 0],
        wan_gb=np.zeros((2, 2)),
        egress_usd=0.0,
        efficiency=1.0,
    )
    assert bool(cost.fits) and bool(cost.runs)


def test_more_nodes_wait_for_the_slowest_by_hand():
    spec = cluster_spec(gpus=8)
    spec = dataclasses.replace(spec, gpus_per_node=(2, 2))
    cost = evaluate(make_plan([(0,)], [(8,)], [2], dp=8, micro_batch=2), spec)
    layer = HAND.layer(2)
    assert HAND.pace(4) == 1 + 2 * 0.02
    compute = 2 * (HAND.stage(layer, 8, nodes=4) + HAND.embedding(2) + HAND.head(2))
    # Eight ranks leave the node: 80 Gbit/s at 60 %, and gradient sync reaches 65 % of that.
    sync = 2 * HAND.sync_pass(WHOLE, 8, HAND.node, nodes=4) - 0.2 * 8 * layer.backward
    assert_parts(cost, compute_s=compute, sync_s=sync)


def wan_pipeline(schedule, gbps, rtt_ms=40.0, micro_batches=8):
    """Two domains of one stage and two replicas each, 3 and 5 layers, and its hand-made times."""
    spec = cluster_spec(gbps=gbps, rtt_ms=rtt_ms)
    plan = make_plan(
        [(0, 1)], [(3, 5)], [micro_batches], dp=2, micro_batch=2, schedule=schedule, zero_stage=0
    )
    # Links as the spec makes them: 0 -> 1 is 1.05, 1 -> 0 is 1.1 of the nominal; rtt 1.1.
    there = 2 * 2 * HAND.boundary / (gbps / 8 * 1e9 * 1.05 * 0.9)
    back = 2 * 2 * HAND.boundary / (gbps / 8 * 1e9 * 1.10 * 0.9)
    layer = HAND.layer(2)
    first = HAND.stage(layer, 3) + HAND.embedding(2)
    last = HAND.stage(layer, 5) + HAND.head(2)
    latency = 0.5 * 1.1 * rtt_ms * 1e-3
    params = [n * HAND.layer_params + HAND.table_params for n in (3, 5)]
    sync = max(2 * HAND.sync_pass(max(params), 2) - 0.2 * 5 * layer.backward, 0.0)
    assert sync > 0
    return evaluate(plan, spec), there, back, first, last, latency, params, sync


def assert_wan_pipeline(case, total, in_flight):
    cost, there, back, first, last, _, params, sync = case
    ideal = first + last + 7 * max(first, last)
    stored = [2 * n * HAND.stored() * m for n, m in zip((3, 5), in_flight, strict=True)]
    update = HAND.optimizer(params[1])
    sent = 8 * 4 * HAND.boundary / 1e9
    assert_parts(
        cost,
        compute_s=8 * max(first, last),
        bubble_s=ideal - 8 * max(first, last),
        exposed_wan_s=total - ideal,
        sync_s=sync,
        optimizer_s=update,
        step_s=total + sync + update,
        wan_gb=[[0, sent], [sent, 0]],
        # Row = source: 0 -> 1 costs 0.03, 1 -> 0 costs 0.02.
        egress_usd=sent * (0.03 + 0.02),
        wan_busy_s=8 * max(there, back),
        memory_gb=[
            (HAND.state(params[0]) + stored[0] + HAND.fixed) / 1e9,
            (HAND.state(params[1]) + stored[1] + HAND.logits(2) + HAND.fixed) / 1e9,
        ],
        gpus_used=[2, 2],
    )


def test_wan_pipeline_limited_by_the_link_by_hand():
    case = wan_pipeline(Schedule.GPIPE, gbps=1.0)
    _, there, back, first, last, latency, _, _ = case
    assert there > max(first, last), "the case must be limited by the link"
    fill = first + last + there + back + 2 * latency
    # GPipe sends all activations before the first gradient: the two directions never overlap.
    assert_wan_pipeline(case, fill + 7 * (there + back), in_flight=(8, 8))


def test_wan_pipeline_limited_by_compute_by_hand():
    case = wan_pipeline(Schedule.GPIPE, gbps=80.0, rtt_ms=1.0)
    _, there, back, first, last, latency, _, _ = case
    assert last > max(there, back, first), "the case must be limited by the last stage"
    fill = first + last + there + back + 2 * latency
    assert_wan_pipeline(case, fill + 7 * last, in_flight=(8, 8))


@pytest.mark.parametrize(
    ("schedule", "held"), [(Schedule.ONE_F_ONE_B, 2), (Schedule.EAGER_1F1B, 3)]
)
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
    near, far = (
        wan_pipeline(Schedule.ONE_F_ONE_B, 80.0, rtt_ms=r)[0].step_s for r in (500.0, 1000.0)
    )
    # 2 in flight, 8 micro-batches: the fill and 6 / 2 further round trips of 1.1 rtt.
    np.testing.assert_allclose(far - near, (1 + 6 / 2) * 1.1 * 0.5, rtol=1e-4)


def test_the_embedding_is_on_the_first_stage_only():
    layers = make_plan([(0, 1)], [(7, 1)], [16], micro_batch=2)
    cost = evaluate(layers, cluster_spec(gbps=80.0))
    first = HAND.stage(HAND.layer(2), 7) + HAND.embedding(2)
    assert first > HAND.stage(HAND.layer(2), 1) + HAND.head(2)
    assert_parts(cost, compute_s=16 * first)


def two_replicas(**fields):
    """Domain 0 with three replicas, domain 1 with one, each a whole pipeline."""
    values = {"dp": [3, 1], "micro_batch": 2, "recompute": Recompute.FULL, **fields}
    return make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], **values)


def ring_of_two(outer):
    """[s] of the gradient ring between the domains, exposed sync inside them, and what hides."""
    gradient = 2 * WHOLE  # 16-bit; a ring of two sends 2 (n - 1) / n = 1 of it each way
    slowest = min(HAND.ring_rate(1.05e9, outer), HAND.ring_rate(1.10e9, outer))
    wan = gradient / slowest + 2 * 0.5 * 0.044
    return wan, 2 * HAND.sync_pass(WHOLE, 3), 0.2 * 8 * HAND.layer(2, recompute="full").backward


def test_two_replicas_with_ring_sync_by_hand():
    cost = evaluate(two_replicas())
    wan, inside, hidden = ring_of_two(outer=False)
    sync = inside + wan - hidden
    layer = HAND.layer(2, recompute="full")
    compute = 4 * (HAND.stage(layer, 8) + HAND.embedding(2) + HAND.head(2))
    update = HAND.optimizer(WHOLE)  # the domain with one replica shards nothing
    assert_parts(
        cost,
        compute_s=compute,
        bubble_s=0.0,
        exposed_wan_s=0.0,
        sync_s=sync,
        optimizer_s=update,
        step_s=compute + sync + update,
        wan_busy_s=wan,
        wan_gb=[[0, 2 * WHOLE / 1e9], [2 * WHOLE / 1e9, 0]],
        egress_usd=2 * WHOLE / 1e9 * 0.05,
        gpus_used=[3, 1],
        efficiency=1.0,
    )


def test_the_slowest_group_decides():
    plan = make_plan([(0,), (1,)], [(8,), (8,)], [10, 2], dp=[1, 3], micro_batch=2)
    stage = HAND.stage(HAND.layer(2), 8) + HAND.embedding(2) + HAND.head(2)
    assert_parts(evaluate(plan), compute_s=10 * stage)


def test_local_sgd_by_hand():
    every, eighth = evaluate(two_replicas()), evaluate(two_replicas(sync_period=8))
    wan, inside, hidden = ring_of_two(outer=True)
    # Between outer syncs only the replicas inside a domain talk; the WAN carries an eighth.
    assert_parts(
        eighth,
        sync_s=(inside + wan - hidden) / 8 + max(inside - hidden, 0.0) * 7 / 8,
        wan_gb=np.asarray(every.wan_gb) / 8,
        wan_busy_s=wan / 8,
        # The lower end for 10 steps: the published model is not continued below.
        efficiency=worth_of_two(10.0),
    )
    alone = make_plan([(0,)], [(8,)], [16], sync_period=8, micro_batch=2)
    assert float(evaluate(alone).efficiency) == 1.0, "one group has nothing to drift from"


def worth_of_two(period, bits=16.0):
    """Lower end for two replicas of 8 layers and two tables."""
    how = (WHOLE / 1e9, 2.0, period, bits, 16.0, 0.0, 1e4)
    how = Communication(*(jnp.float32(x) for x in how))
    return float(published_efficiency().band(how).low)


def test_wire_bits_scale_the_traffic_and_cost_efficiency():
    full, half = evaluate(two_replicas()), evaluate(two_replicas(wire_bits=8))
    assert_parts(half, wan_gb=np.asarray(full.wan_gb) / 2, efficiency=0.98)
    assert worth_of_two(30.0, 4.0) < worth_of_two(30.0) < 1.0
    assert float(half.step_s) < float(full.step_s)


# ZeRO-3 whose traffic sticks out of every pass, of the forward pass only, and of neither.
@pytest.mark.parametrize("overlap", [0.15, 0.9])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_every_parallelism_inside_one_domain_by_hand(overlap, micro_batch):
    spec = dataclasses.replace(cluster_spec(gpus=16), gpus_per_node=(4, 4))
    m, b = 16 // micro_batch, micro_batch
    fields = {"dp": 2, "tp": 2, "cp": 2, "pp": 2, "zero_stage": 3, "micro_batch": b}
    plan = make_plan([(0,)], [(8,)], [m], placement=PLACEMENT_PP_INNER, **fields)
    cost = evaluate(plan, spec, shard_overlap=overlap)
    layer = HAND.layer(b, tp=2, cp=2, reduce=HAND.all_reduce(b, tp=2, cp=2))
    compute = HAND.stage(layer, 4, nodes=4)
    tensor = 4 * HAND.pace(4) * layer.tensor  # tp neighbours share a node
    # cp ranks stand 2 apart and fill the node; one hop forward, two backward, each behind half of what
    # its pass leaves.
    chunk = b * 2 * HAND.boundary * 0.5 / (2 * 2)
    hop = chunk / HAND.nvlink + 4e-5
    hides, hides_back = min(hop, layer.room / 2), min(2 * hop, layer.room_back / 2)
    context = 4 * HAND.pace(4) * (3 * hop - hides - hides_back)
    assert context > 0, "attention must not hide the whole ring"
    head = HAND.head(b, 2, 2)
    # Stages stand a node apart: its network is shared by 4 rings, sequences cut in 4.
    hop = b * HAND.boundary / 4 / (HAND.node / 4) + 4e-5 + WIRE_S
    stage = compute + tensor + context + 2 * hop  # a stage blocks while it hands on
    fill = 2 * stage + head + 2 * hop
    beat = stage + head
    total = fill + beat + (m - 2) * max(beat, fill / 2)
    # Replicas 2 x 2 x 2 apart; dp x cp ranks hold the same weights.
    params = (4 * HAND.layer_params + HAND.table_params) / 2
    # Every layer is gathered on its own; four ranks stand on four nodes.
    once = HAND.sync_bytes(params, 4, HAND.node / 4) / HAND.e["gather_efficiency"]
    once += 4 * HAND.start(4, nodes=4)
    # What hides the ring hides no gather.
    forward, backward = 4 * (layer.forward - hides), 4 * (layer.backward - hides_back)
    sync = m * HAND.beside(forward, once, overlap)
    sync += (m - 1) * HAND.beside(backward, once, overlap)
    sync += HAND.beside(backward, 2 * once, overlap)  # the last gathers, and scatters
    sync += 2 * once / 4
    update = HAND.optimizer(params, shards=4)
    gathered = 2 * (2 * HAND.layer_params + HAND.table_params) / 2
    stored = b * 4 * HAND.stored(2, 2)
    held = max(2 * stored, stored + HAND.logits(b, 2, 2))
    held += 2 * b * HAND.boundary / 2  # a block's input, whole over tp, and its gradient
    assert_parts(
        cost,
        compute_s=m * (compute + head),
        tensor_parallel_s=m * tensor,
        context_parallel_s=m * context,
        bubble_s=total - m * (compute + tensor + context + head),
        sync_s=sync,
        optimizer_s=update,
        step_s=total + sync + update,
        memory_gb=[(HAND.state(params, 18, 4) + held + gathered + HAND.fixed) / 1e9, 0.0],
        gpus_used=[16, 0],
    )


def test_interleaved_stages_shorten_the_bubble_and_hold_more():
    job = dataclasses.replace(JOB, virtual_stages=2)
    plan = make_plan([(0,)], [(8,)], [16], pp=2, micro_batch=2, zero_stage=0)
    cost = evaluate(plan, job=job)
    # The pair of stages shares a node; a micro-batch passes each of them twice.
    hop = 2 * HAND.boundary / HAND.nvlink + 4e-5
    compute, head = HAND.stage(HAND.layer(2), 4), HAND.head(2)
    stage = compute + 2 * 2 * hop
    plain = 2 * stage + head + 2 * hop + 15 * (stage + head)
    assert plain / 16 < stage + head + stage / 8, "the last stage must decide"
    busy = 16 * (stage + head)
    params = 4 * HAND.layer_params + HAND.table_params
    # Interleaving holds 1 + (p - 1) / (p v) of the first stage's two micro-batches.
    stored = 2 * 4 * HAND.stored()
    held = max(1.25 * 2 * stored, stored + HAND.logits(2))
    assert_parts(
        cost,
        compute_s=16 * (compute + head),
        bubble_s=busy + (plain - busy) / 2 - 16 * (compute + head),
        memory_gb=[(HAND.state(params) + held + HAND.fixed) / 1e9, 0.0],
    )


def test_recomputation_costs_time_and_saves_memory():
    costs = [
        evaluate(make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2, recompute=r))
        for r in (0, Recompute.SELECTIVE, Recompute.FULL)
    ]
    plain, selective, full = (float(c.compute_s) for c in costs)
    forward = HAND.layer(2).forward
    # Under flash attention, selective recomputation repeats every second layer.
    np.testing.assert_allclose(selective - plain, 8 * 8 * forward / 2, rtol=1e-4)
    np.testing.assert_allclose(full - plain, 8 * 8 * forward, rtol=1e-4)
    least, some, most = (float(c.memory_gb[0]) for c in reversed(costs))
    assert least < some < most
    full_layer = 2 * 2 * 1024.0**2 * 1.05
    saved = 8 * (2 * HAND.stored() - full_layer) - 2 * 2 * HAND.stored()  # less one layer at work
    np.testing.assert_allclose(most - least, saved / 1e9, rtol=1e-4)
    assert jnp.isfinite(costs[1].step_s)


@pytest.mark.parametrize(("micro_batches", "stages", "trips"), [(4, 2, 1), (5, 2, 2), (9, 2, 3)])
def test_interleaved_micro_batches_wait_for_those_two_rounds_ahead(micro_batches, stages, trips):
    """At most 2 S are under way: number m starts once m - 2 S is back from all its chunks."""
    parts = types.SimpleNamespace(chunks=jnp.float32(2.0))
    fill_s, again_s = jnp.float32(3.0), jnp.float32(0.5)
    counts = jnp.array([micro_batches], jnp.float32), jnp.array([stages], jnp.float32)
    got = _chunk_trips_s(parts, fill_s, again_s, *counts)
    np.testing.assert_allclose(got, [trips * (2.0 * 3.0 + 0.5)], rtol=1e-6)
