"""Traffic of sharded weights by hand: gathers, scatters, what a pass hides, what is kept."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.step_time_by_hand import Hand
from helpers.toy_world import JOB, base_view, calibration, cluster_spec, cost_of, make_plan

from jaxsim.step_time.sharding import hidden_in_part
from jaxsim.step_time.sync import rings
from jaxsim.workload.workload import build_workload

HAND = Hand()
WHOLE = 8 * HAND.layer_params + 2 * HAND.table_params


def evaluate(plan, job=JOB, spec=None, **changes):
    cluster = (spec or cluster_spec()).to_arrays()
    work = build_workload([job]).job(0)
    return cost_of(plan, work, cluster, calibration(**changes), base_view(cluster))


def test_prefetch_hides_a_share_of_the_lesser():
    compute, traffic = jnp.float32([4.0, 1.0, 2.0]), jnp.float32([1.0, 4.0, 2.0])
    got = hidden_in_part(compute, traffic, jnp.float32(0.75))
    # Of a short gather a quarter shows; a long one sticks out by 3, and a quarter of the pass.
    np.testing.assert_allclose(got, [0.25, 3.25, 0.5])


CASES = {  # stage, reshard, scatter each -> gathers forward, backward, scatters of 4 micro-batches
    "full shard, a scatter a step": (3, "always", False, 4, 4, 1),
    "full shard, a scatter a micro-batch": (3, "always", True, 4, 4, 4),
    "shard grad op": (2, "always", True, 4, 0, 4),
    "weights kept": (3, "never", False, 1, 0, 1),
}


@pytest.mark.parametrize("reduce_bytes", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_how_often_weights_are_gathered_and_gradients_scattered(case, reduce_bytes):
    stage, reshard, each, forward_times, backward_times, scatters = CASES[case]
    job = dataclasses.replace(JOB, reshard=reshard, scatter_each=each, reduce_bytes=reduce_bytes)
    plan = make_plan([(0,)], [(8,)], [4], dp=4, micro_batch=2, zero_stage=stage)
    cost = evaluate(plan, job, shard_overlap=0.15)
    layer, m = HAND.layer(2), 4
    start = 8 * HAND.start(4)  # a collective for each of eight layers
    moved = HAND.sync_bytes(WHOLE, 4) / HAND.e["gather_efficiency"]
    gather, scatter = moved + start, reduce_bytes / 2 * moved + start
    sync = forward_times * HAND.beside(8 * layer.forward, gather, 0.15)
    again = gather if backward_times else 0.0
    with_scatter = HAND.beside(8 * layer.backward, again + scatter, 0.15)
    sync += scatters * with_scatter
    sync += (m - scatters) * HAND.beside(8 * layer.backward, again, 0.15)
    sync += (gather + scatter) / 8
    np.testing.assert_allclose(cost.sync_s, sync, rtol=2e-5)


def test_pipelines_keep_weights_where_the_stack_says_so():
    """torchtitan's default: ZeRO-2 in traffic and memory as soon as there is a pipeline."""
    job = dataclasses.replace(JOB, reshard="unless-pipelined", reduce_bytes=4)
    spec = cluster_spec(gpus=8)
    piped = make_plan([(0,)], [(8,)], [4], dp=2, pp=2, micro_batch=2, zero_stage=3)
    whole = {r: evaluate(piped, dataclasses.replace(job, reshard=r), spec) for r in
             ("always", "never", "unless-pipelined")}  # fmt: skip
    assert float(whole["unless-pipelined"].sync_s) == float(whole["never"].sync_s)
    assert float(whole["never"].sync_s) < 0.5 * float(whole["always"].sync_s)
    params = 4 * HAND.layer_params + HAND.table_params
    gathered = 2 * (2 * HAND.layer_params + HAND.table_params)
    # 16-bit weights and fp32 gradients of the whole stage, instead of two layers and a table.
    more = ((2 + 4) * params - gathered) / 1e9
    held = [float(whole[r].memory_gb[0]) for r in ("never", "always")]
    np.testing.assert_allclose(held[0] - held[1], more, rtol=1e-4)
    alone = make_plan([(0,)], [(8,)], [4], dp=2, micro_batch=2, zero_stage=3)
    one, other = (
        evaluate(alone, dataclasses.replace(job, reshard=r), spec)
        for r in ("always", "unless-pipelined")
    )
    assert float(one.sync_s) == float(other.sync_s), "without a pipeline it reshards"


@pytest.mark.parametrize(("cp", "factor"), [(2, 4 / 3), (4, 8 / 5)])
def test_a_ring_in_order_waits_for_the_rank_that_sees_everything(cp, factor):
    skewed = Hand(dataclasses.replace(JOB, balanced_ring=False))
    core, even = (hand.operators(2, 1, cp)[1] - hand.e["kernel_s"] for hand in (skewed, HAND))
    np.testing.assert_allclose(core / even, factor)
    plan = make_plan([(0,)], [(8,)], [8], dp=1, cp=cp, micro_batch=2, zero_stage=0)
    slow = evaluate(plan, skewed.job)
    quick = evaluate(plan)
    layer = skewed.layer(2, cp=cp)
    np.testing.assert_allclose(
        slow.compute_s,
        8 * (skewed.stage(layer, 8) + HAND.embedding(2, cp=cp) + HAND.head(2, cp=cp)),
        rtol=2e-5,
    )
    assert float(slow.compute_s) > float(quick.compute_s)


def test_rings_of_copies_and_of_shards_by_hand():
    """Four groups, two to a copy of the state: copies are groups 0, 1 and 2, 3; groups 0, 2 and 1, 3
    hold the same shard."""
    plan = make_plan([(0,), (1,), (2,), (3,)], [(8,)] * 4, [2] * 4, 4, shard_groups=2)
    within, between = rings(plan)
    assert np.argwhere(np.asarray(within)).tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]
    assert np.argwhere(np.asarray(between)).tolist() == [[0, 2], [1, 3], [2, 0], [3, 1]]
    one = plan.replace(shard_groups=jnp.int32(1))
    within, between = rings(one)
    assert not np.any(within)
    assert np.argwhere(np.asarray(between)).tolist() == [[0, 1], [1, 2], [2, 3], [3, 0]]
