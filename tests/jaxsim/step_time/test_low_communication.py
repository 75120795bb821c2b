"""Replicas that talk seldom, in pieces or not at all: by hand, and against published utilisations."""

import csv
import math

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.shared_data import shared_data
from helpers.step_time_by_hand import Hand
from helpers.toy_world import JOB, base_view, calibration, cluster_spec, cost_of, make_plan

from jaxsim.plan import Plan
from jaxsim.step_time import outer_exposed_s
from jaxsim.workload.workload import build_workload

HAND = Hand()
WHOLE = 8 * HAND.layer_params + 2 * HAND.table_params
SPEC = cluster_spec(4, gpus=8)
CLUSTER = SPEC.to_arrays()
WORK = build_workload([JOB]).job(0)


def evaluate(plan, view=None, **changes):
    view = base_view(CLUSTER) if view is None else view
    return cost_of(plan, WORK, CLUSTER, calibration(**changes), view)


def replicas(n=2, **fields):
    """One domain each, all with four replicas of the model."""
    values = {"dp": 4, "micro_batch": 2, **fields}
    return make_plan([(k,) for k in range(n)], [(8,)] * n, [16 // 4 // n] * n, 4, **values)


def exposed(fragment_s, period, fragments, overlap, free_s=0.0, step_s=1.0, beside_s=0.0):
    numbers = (fragment_s, period, fragments, overlap, free_s, step_s, beside_s)
    return float(outer_exposed_s(*(jnp.float32(x) for x in numbers)))


def test_streaming_by_hand():
    # 12 s for the whole model, every 30 steps of 1 s.
    assert exposed(12.0, 30, 1, 0) == pytest.approx(12 / 30)
    # Six fragments of 2 s, one every 5 steps: all wait; one step hides half; two hide all of it.
    assert exposed(2.0, 30, 6, 0) == pytest.approx(12 / 30)
    assert exposed(2.0, 30, 6, 1) == pytest.approx(6 / 30)
    assert exposed(2.0, 30, 6, 2) == 0.0
    # A link that is too slow for all of it stays the limit, however long a fragment may travel.
    assert exposed(7.0, 30, 6, 30) == pytest.approx((7 - 5) / 5)
    # The last backward pass hides 0.5 s of the sync inside (0.3 s) and of the fragment.
    assert exposed(2.0, 30, 6, 0, free_s=0.5, beside_s=0.3) == pytest.approx((2 - 0.2) / 5)
    assert exposed(2.0, 30, 6, 1, free_s=0.5, beside_s=0.3) == pytest.approx((2 - 1.2) / 5)
    # What is inside comes first and is charged elsewhere.
    assert exposed(2.0, 30, 6, 1, free_s=0.5, beside_s=0.8) == pytest.approx((2 - 1) / 5)


def test_a_streaming_plan_by_hand():
    fields = {"sync_period": 30, "wire_bits": 4}
    cost = {
        (f, tau): evaluate(replicas(fragments=f, overlap=tau, **fields), outer_sync_efficiency=0.05)
        for f, tau in ((1, 0), (6, 0), (6, 1), (6, 2), (6, 3))
    }
    # 4 bits, a ring of two: each sends all of it once.
    whole = WHOLE * 4 / 8
    e = {"outer_sync_efficiency": 0.05}
    slowest = min(Hand(**e).ring_rate(x, outer=True) for x in (1.05e9, 1.10e9))
    fragment = whole / 6 / slowest + 2 * 0.5 * 0.044
    inside = 2 * HAND.sync_pass(WHOLE, 4)
    hidden = 0.2 * 8 * HAND.layer(2).backward
    assert inside > hidden
    waits = fragment / 5
    alone = float(cost[6, 0].step_s) - waits
    assert fragment > 2 * alone, "the case must not hide in two steps"
    for tau in (1, 2, 3):
        late = max(fragment - tau * alone, 0.0) / 5
        assert float(cost[6, tau].step_s) == pytest.approx(alone + late, rel=1e-4)
    # Fragments pay the latency each; bytes are the same.
    once = whole / slowest + 2 * 0.5 * 0.044
    assert float(cost[6, 0].sync_s - cost[1, 0].sync_s) == pytest.approx(5 * 0.044 / 30, rel=1e-3)
    assert float(cost[1, 0].step_s) == pytest.approx(alone + once / 30, rel=1e-4)
    for one in cost.values():
        assert float(one.wan_gb[0, 1]) == pytest.approx(whole / 30 / 1e9, rel=1e-5)


def test_rarer_syncs_smear_out_what_is_random_from_step_to_step():
    """Nodes of a group wait for each other in every step, groups once in H steps."""
    at = {h: evaluate(replicas(4, sync_period=h), straggler=0.1) for h in (1, 4, 100)}
    nodes, mine = 4 * 4 / 8, 4 / 8  # half a node each
    for h, cost in at.items():
        waited = math.log2(nodes) / math.sqrt(h) + (1 - 1 / math.sqrt(h)) * max(
            math.log2(mine), 0.0
        )
        layer = HAND.layer(2)
        stage = 8 * (1 + 0.1 * waited) * (layer.forward + layer.backward) + HAND.e["micro_batch_s"]
        stage += HAND.embedding(2) + HAND.head(2)
        assert float(cost.compute_s) == pytest.approx(stage, rel=2e-5), h


def gone(*domains):
    """Local jobs hold all GPUs of some domains."""
    gpus = np.asarray(CLUSTER.gpus).copy()
    gpus[list(domains)] = 0
    return base_view(CLUSTER).replace(gpus_available=jnp.asarray(gpus))


MIXED = {"dp": [4, 2, 4, 1], "micro_batch": [2, 1, 2, 1], "schedule": [0, 1, 0, 0]}


def mixed(groups, layers, shares, **fields):
    return make_plan(groups, layers, shares, 4, sync_period=30, **fields)


def test_a_domain_that_leaves_stops_only_its_group():
    plan = mixed([(1,), (3, 0), (2,)], [(8,), (3, 5), (8,)], [2, 4, 1], **MIXED)
    # Without the pipeline over 3 and 0, as somebody would write it down.
    rest = mixed([(1,), (2,)], [(8,), (8,)], [2, 1], dp=[4, 4, 1, 1], micro_batch=[2, 2, 1, 1])
    for away in (gone(0), gone(3)):
        left, alone = evaluate(plan, away), evaluate(rest, away)
        share = (2 * 2 * 4 + 1 * 2 * 4) / (2 * 2 * 4 + 4 * 1 * 2 + 1 * 2 * 4)
        assert float(left.efficiency) == pytest.approx(float(alone.efficiency) * share, rel=1e-6)
        for name in vars(left):
            if name != "efficiency":
                np.testing.assert_array_equal(getattr(left, name), getattr(alone, name), name)
    assert bool(evaluate(plan).runs) and float(evaluate(plan).wan_gb[3, 0]) > 0
    # Two replicas fewer drift less, and whoever is alone drifts from nobody.
    alone = evaluate(plan, gone(0, 1))
    assert float(alone.efficiency) == pytest.approx(8 / 32)
    assert float(np.sum(alone.wan_gb)) == 0.0


def test_synchronous_replicas_wait_for_who_is_gone():
    plan = make_plan([(1,), (2,)], [(8,), (8,)], [2, 2], 4, dp=4, micro_batch=2)
    assert bool(evaluate(plan).runs) and not bool(evaluate(plan, gone(2)).runs)
    local = plan.replace(sync_period=jnp.int32(30))
    assert bool(evaluate(local, gone(2)).runs) and not bool(evaluate(local, gone(1, 2)).runs)


def test_shards_over_two_domains_by_hand():
    fields = {"zero_stage": 3, "micro_batch": 2}
    hybrid, flat = (evaluate(replicas(**fields, shard_groups=s)) for s in (1, 2))
    # Two micro-batches, resharded: four gathers and a scatter of half the model each, on each link;
    # the all-reduce of a hybrid is a gather and a scatter.
    half = WHOLE * 2 / 2 / 1e9
    assert float(hybrid.wan_gb[0, 1]) == pytest.approx(2 * half, rel=1e-5)
    assert float(flat.wan_gb[0, 1]) == pytest.approx((2 * 2 + 1) * half, rel=1e-5)
    # 18 bytes a parameter over 8 instead of 4 GPUs.
    saved = HAND.state(WHOLE, 18, 4) - HAND.state(WHOLE, 18, 8)
    assert float(hybrid.memory_gb[0] - flat.memory_gb[0]) == pytest.approx(saved / 1e9, rel=1e-4)
    # Three passes more than the all-reduce: bytes, and a hop for every layer, prefetch hides a part.
    rate = min(HAND.ring_rate(x) for x in (1.05e9, 1.10e9))
    slow = [3 * (half * 1e9 / HAND.ring_rate(x) + 8 * 0.022) for x in (1.05e9, 1.10e9)]
    layer = HAND.layer(2)
    computes = 2 * 8 * (layer.forward + layer.backward)
    assert min(slow) > computes
    adds = [traffic + (1 - 0.15) * computes - computes for traffic in slow]
    update = HAND.optimizer(WHOLE, 8) - HAND.optimizer(WHOLE, 4)
    assert rate > 0
    assert float(flat.step_s - hybrid.step_s) == pytest.approx(max(adds) + update, rel=1e-3)


def test_shards_over_pairs_of_four_balance():
    """Inside a pair 2 (s - 1) / s of the gradient each way, between pairs 2 (q - 1) / q of a shard."""
    cost = evaluate(replicas(4, dp=1, zero_stage=1, shard_groups=2, micro_batch=4))
    gb = np.asarray(cost.wan_gb)
    want = np.zeros((4, 4))
    for a, b in ((0, 1), (1, 0), (2, 3), (3, 2)):
        want[a, b] = 2 * WHOLE / 1e9
    for a, b in ((0, 2), (1, 3), (2, 0), (3, 1)):
        want[a, b] = WHOLE / 1e9
    np.testing.assert_allclose(gb, want, rtol=1e-5)
    np.testing.assert_allclose(gb.sum(axis=0), gb.sum(axis=1), rtol=1e-6)


def test_reshard_may_be_said_domain_by_domain():
    keeps = {0: "never", 1: "always"}
    plans = [
        Plan.build(SPEC, JOB, [["a"], ["b"]], zero_stage=3, dp=4, pp=1, micro_batch=2, reshard=r)
        for r in (None, keeps)
    ]
    as_job, said = (evaluate(plan) for plan in plans)
    # Weights and gradients that are kept exist whole; the other domain is as the job says.
    assert float(said.memory_gb[0]) > float(as_job.memory_gb[0])
    assert float(said.memory_gb[1]) == float(as_job.memory_gb[1])


# Published utilisations. The authors take the smallest of these bandwidths that reaches a level.
GRID = 0.1 * 10 ** (4 * np.arange(50) / 49)  # [Gbit/s]
LEVELS = (50, 80, 90, 95, 99)


def published():
    path = shared_data("low_communication/bandwidth_for_utilisation.csv")
    with path.open(newline="") as file:
        rows = [r for r in csv.DictReader(file) if int(r["sync_every_H_steps"]) > 1]
    return [r for r in rows if r["method"] != "streaming_diloco_eager"]


def misses(row, payload, fragments):
    """[percentage points] by which the utilisation between the published bandwidth and the next
    smaller one of the grid misses each level; `payload` bytes on the wire for each that is sent."""
    step, period = float(row["step_time_s"]), int(row["sync_every_H_steps"])
    gbit = float(row["params"]) * float(row["payload_bits"]) * payload / 1e9
    streams = row["method"] == "streaming_diloco"
    parts, overlap = (fragments if streams else 1), float("inner" in row["overlap"])
    out = []
    for level in LEVELS:
        text = row[f"gbit_s_for_cu{level}"]
        at = np.argmin(np.abs(np.log(GRID / float(text))))
        reached = []
        for gbps in GRID[[at - 1, at]]:
            # A sync runs behind the last backward pass, two thirds of a step.
            lost = exposed(gbit / parts / gbps, period, parts, overlap, 2 / 3 * step, step)
            reached.append(100 * step / (step + lost))
        out.append(max(reached[0] - level, level - reached[1], 0.0))
    return out


# What the authors count of a model's bits, and the fragments of streaming: one number each per model
# and paper; nothing else is fitted. (The third paper, whose table has one row of this kind for each
# model, asks for more the smaller the model. Its 1e9 row is not to be had with the bits of the
# others: it needs 2.4 Gbit/s for 50 %, where the second paper's, by H, would need 1.3.)
FITTED = {
    ("diloco_scaling_laws", 10e9): (0.72, 1),
    ("diloco_scaling_laws", 405e9): (0.74, 1),
    ("diloco_scaling_laws", 671e9): (0.76, 1),
    ("streaming_diloco", 1e9): (0.86, 7),
    ("streaming_diloco", 10e9): (0.86, 15),
    ("streaming_diloco", 100e9): (0.80, 30),
    ("eager_updates", 1e9): (2.9, 16),
    ("eager_updates", 10e9): (1.18, 13),
    ("eager_updates", 100e9): (0.5, 12),
}


@pytest.mark.parametrize("model", FITTED)
def test_published_utilisations_within_three_points(model):
    source, params = model
    rows = [r for r in published() if r["source"] == source and float(r["params"]) == params]
    assert len(rows) == (1 if source == "eager_updates" else 4)
    worst = {
        (r["method"], r["sync_every_H_steps"], r["payload_bits"], r["overlap"]): max(
            misses(r, *FITTED[model])
        )
        for r in rows
    }
    assert max(worst.values()) <= 3.0, worst


def test_the_third_paper_is_missed_with_the_bits_of_the_second():
    """By what docs/simulator.md says, whatever the number of fragments."""
    rows = {float(r["params"]): r for r in published() if r["source"] == "eager_updates"}
    least = {
        params: min(max(misses(row, 0.86, fragments)) for fragments in range(1, 31))
        for params, row in rows.items()
    }
    assert least == pytest.approx({1e9: 16.5, 10e9: 5.5, 100e9: 12.5}, abs=0.1)


def test_utilisation_of_intellect_1_within_one_point():
    # 38 minutes of local steps, then 103, 382 or 469 s of sync (arXiv 2412.01152).
    period, step = 100, 38 * 60 / 100
    for sync_s, utilisation in ((103.0, 95.7), (382.0, 85.6), (469.0, 83.0)):
        lost = exposed(sync_s, period, 1, 0, step_s=step)
        assert abs(100 * step / (step + lost) - utilisation) < 1.0
