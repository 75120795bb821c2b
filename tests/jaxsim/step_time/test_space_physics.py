"""What must hold for every plan of the whole space: pipelines beside domains alone, each with settings
of its own, and any way to talk."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from helpers.space_plans import random_space_plans
from helpers.toy_world import (
    JOB,
    base_view,
    calibration,
    cluster_spec,
    default_lower_choices,
    pad_plan,
)

from jaxsim.plan import Problem
from jaxsim.plan.modes import Schedule
from jaxsim.planning import PlanSpace, share_batch
from jaxsim.step_time import group_periods, job_step_cost
from jaxsim.trees import stack, take
from jaxsim.workload.workload import build_workload

K, GPUS, LAYERS = 4, 4, JOB.model.layers
SPEC = cluster_spec(K, gpus=GPUS)
WORK = build_workload([JOB]).job(0)
SPACE = PlanSpace(max_pipeline=3)


def problem_on(cluster):
    return Problem(WORK, cluster, calibration(), default_lower_choices())


PROBLEM = problem_on(SPEC.to_arrays())


def drawn(seed, count, **more):
    return random_space_plans(np.random.default_rng(seed), count, K, GPUS, LAYERS, SPACE, **more)


@jax.jit
def dealt(plans, view, problem):
    return jax.vmap(lambda plan: share_batch(plan, problem, view))(plans)


@jax.jit
def costs(plans, view, problem):
    return jax.vmap(lambda plan: job_step_cost(plan, problem, view))(plans)


def networks(seed, count):
    """(slow, fast) views: 80 Mbit/s to 40 Gbit/s and 1 to 200 ms, then some of the links faster."""
    rng, base = np.random.default_rng(seed), base_view(PROBLEM.cluster)
    for _ in range(count):
        speed = 10.0 ** rng.uniform(-2.0, 0.7, (K, K))
        more = np.exp(np.abs(rng.normal(0.0, 1.0, (K, K))) * (rng.random((K, K)) < 0.7))
        rtt = 10.0 ** rng.uniform(-3.0, -0.7, (K, K))
        view = base.replace(rtt_s=jnp.asarray((rtt + rtt.T) / 2, jnp.float32))
        slow, fast = (jnp.asarray(x, jnp.float32) for x in (speed, speed * more))
        yield view.replace(bandwidth_gb_per_s=slow), view.replace(bandwidth_gb_per_s=fast)


def bytes_of(plan):
    """[K, K] [B] a step over each link, from what the plan says alone."""
    m, sent = JOB.model, np.zeros((K, K))
    group, n = plan.group, int(plan.group.max()) + 1
    rows = [sorted(np.flatnonzero(group == g), key=lambda k: plan.position[k]) for g in range(n)]
    held, ends = {}, {}
    for row in rows:
        starts = np.cumsum([0, *plan.layers[row]])
        for i, k in enumerate(row):
            held[k] = set(range(starts[i], starts[i + 1]))
            # The embedding's table lies on the first stage, the head's on the last.
            ends[k] = {name for name, at in (("first", 0), ("last", len(row) - 1)) if i == at}
    for g, row in enumerate(rows):
        sequences = int(plan.batch_share[g] * plan.micro_batch[g] * plan.dp[g])
        activations = sequences * JOB.seq * m.hidden * 2 * int(plan.activation_bits) / 16
        for a, b in itertools.pairwise(row):  # activations there, as many gradients back
            sent[a, b] += activations
            sent[b, a] += activations
        if n == 1:
            continue
        for a, b in itertools.product(row, rows[(g + 1) % n]):
            params = len(held[a] & held[b]) * m.layer_params
            params += len(ends[a] & ends[b]) * m.embedding_params
            ring = 2 * (n - 1) / n * 2 * params * int(plan.wire_bits) / 16
            sent[a, b] += ring / int(plan.sync_period)
    return sent


def test_the_bytes_of_every_link_follow_from_the_plan():
    """200 random plans: activations of all micro-batches both ways, and the ring's share of every layer
    that both ends hold, once in H steps."""
    plans, _ = dealt(drawn(0, 200), base_view(PROBLEM.cluster), PROBLEM)
    cost = costs(plans, base_view(PROBLEM.cluster), PROBLEM)
    plans = jax.device_get(plans)
    kinds = set()
    for i in range(200):
        plan = take(plans, i)
        expected = bytes_of(plan)
        np.testing.assert_allclose(cost.wan_gb[i], expected / 1e9, rtol=2e-5, atol=1e-9)
        kinds.add(
            (bool((plan.position > 0).any()), int(plan.group.max()) > 0, plan.sync_period > 1)
        )
        # Money follows the bytes.
        egress = (expected / 1e9 * SPEC.egress_usd_per_gb).sum()
        np.testing.assert_allclose(cost.egress_usd[i], egress, rtol=2e-5, atol=1e-9)
    # Only where groups are several does H say anything.
    assert {(p, True, h) for p in (True, False) for h in (True, False)} <= kinds


def test_more_bandwidth_never_slows_a_plan_whose_shares_stay():
    plans = drawn(1, 500)
    for slow, fast in networks(2, 6):
        fixed, _ = dealt(plans, slow, PROBLEM)
        before, after = (costs(fixed, view, PROBLEM) for view in (slow, fast))
        np.testing.assert_array_less(after.total_s, np.asarray(before.total_s) * (1 + 1e-5))


MOST_DEALS = 256


def every_deal(plan):
    """[D, K] int32 of all ways to deal the batch in blocks, one at least to every group; the last one
    again and again; None where there are more than MOST_DEALS."""
    n = int(plan.group.max()) + 1
    unit = plan.micro_batch[:n] * plan.dp[:n]
    block = int(unit.max())
    total = JOB.global_batch // block
    if total < n:
        return None
    cuts = list(itertools.islice(itertools.combinations(range(1, total), n - 1), MOST_DEALS + 1))
    if len(cuts) > MOST_DEALS:
        return None
    shares = np.zeros((MOST_DEALS, K), np.int32)
    blocks = np.diff([[0, *cut, total] for cut in cuts], axis=1)
    shares[: len(cuts), :n] = blocks * (block // unit)
    shares[len(cuts) :] = shares[len(cuts) - 1]
    return shares


@jax.jit
def quickest(plans, shares, view):
    """[P] [s] of plans [P, ...] with the best of the shares [P, D, K]."""

    def one(args):
        plan, every = args
        each = jax.vmap(lambda s: job_step_cost(plan.replace(batch_share=s), PROBLEM, view).total_s)
        return each(every).min()

    return jax.lax.map(one, (plans, shares))


def test_more_bandwidth_never_slows_the_best_deal_and_the_balanced_one_is_near_it():
    """Shares are balanced by the time between micro-batches. A balanced plan may therefore be slower
    over faster links, but by no more than twice what the first block of every group takes. With ZeRO 3,
    whose traffic per micro-batch is no part of that time, nothing is said.
    """
    every = jax.device_get(drawn(3, 160, zero_stages=(1,)))
    some = [(take(every, i), every_deal(take(every, i))) for i in range(160)]
    some = [(plan, deals) for plan, deals in some if deals is not None and plan.group.max() > 0]
    assert len(some) > 60
    plans, shares = stack(plan for plan, _ in some), jnp.asarray(np.stack([d for _, d in some]))
    least = jnp.asarray(np.stack([one_block(plan) for plan, _ in some]))
    for slow, fast in networks(4, 3):
        best = [np.asarray(quickest(plans, shares, view)) for view in (slow, fast)]
        assert np.all(best[1] <= best[0] * (1 + 1e-5))
        for view, limit in zip((slow, fast), best, strict=True):
            done, legal = dealt(plans, view, PROBLEM)
            assert bool(jnp.all(legal))
            cost = costs(done, view, PROBLEM)
            first = costs(plans.replace(batch_share=least), view, PROBLEM)
            fill_s = np.asarray(first.total_s - first.sync_s - first.optimizer_s)
            found = np.asarray(cost.total_s)
            assert np.all(found >= limit * (1 - 1e-5))
            assert np.all(found <= limit * (1 + 1e-5) + 2 * fill_s)


def one_block(plan):
    """[K] int32 shares of one block for each group."""
    n = int(plan.group.max()) + 1
    unit = plan.micro_batch[:n] * plan.dp[:n]
    shares = np.zeros(K, np.int32)
    shares[:n] = unit.max() // unit
    return shares


def test_the_time_between_micro_batches_of_gpipe_is_what_one_more_costs():
    """Its passes never overlap: the slowest forward and the slowest backward follow each other, and no
    round trip is waited for."""
    plans = drawn(5, 300, zero_stages=(1,))
    plans = jax.tree.map(lambda x: x[np.asarray(plans.group).max(axis=1) == 0], plans)
    plans = plans.replace(schedule=jnp.full_like(plans.schedule, Schedule.GPIPE))
    many = 1000 * np.eye(K, dtype=np.int32)[0]
    for view, _ in networks(6, 3):
        times = []
        for shares in (many, 2 * many):
            some = plans.replace(batch_share=jnp.broadcast_to(shares, plans.batch_share.shape))
            cost = costs(some, view, PROBLEM)
            times.append(np.asarray(cost.total_s - cost.sync_s, np.float64))
        period = periods(plans, view)[:, 0]
        marginal = (times[1] - times[0]) / 1000
        np.testing.assert_allclose(period, marginal, rtol=2e-3)


@jax.jit
def periods(plans, view):
    def one(plan):
        return group_periods(plan, PROBLEM, view, PROBLEM.choices.schedules)

    return jax.vmap(one)(plans)


def test_padding_changes_neither_shares_nor_cost():
    plans = jax.device_get(drawn(7, 64))
    large = stack(pad_plan(take(plans, i), 2 * K) for i in range(64))
    padded = problem_on(SPEC.to_arrays(2 * K))
    for view, _ in networks(8, 2):
        wide = base_view(padded.cluster)
        grown = [np.asarray(getattr(wide, name)).copy() for name in ("bandwidth_gb_per_s", "rtt_s")]
        for values, name in zip(grown, ("bandwidth_gb_per_s", "rtt_s"), strict=True):
            values[:K, :K] = getattr(view, name)
        wide = wide.replace(bandwidth_gb_per_s=jnp.asarray(grown[0]), rtt_s=jnp.asarray(grown[1]))
        small_plans, legal = dealt(plans, view, PROBLEM)
        large_plans, also = dealt(large, wide, padded)
        np.testing.assert_array_equal(legal, also)
        np.testing.assert_array_equal(large_plans.batch_share[:, :K], small_plans.batch_share)
        assert not np.any(large_plans.batch_share[:, K:])
        small, large_cost = costs(small_plans, view, PROBLEM), costs(large_plans, wide, padded)
        for field, value in vars(small).items():
            got = np.asarray(getattr(large_cost, field))
            real = got[(slice(None), *(slice(0, K),) * (got.ndim - 1))]
            # Bubble and exposed WAN are differences: rounding of the sum is allowed.
            slack = 2e-6 * float(np.max(small.total_s))
            atol = slack if field in ("bubble_s", "exposed_wan_s", "sync_s") else 0.0
            np.testing.assert_allclose(real, value, rtol=5e-6, atol=atol, err_msg=field)
            assert got.ndim == 1 or not np.any(got[:, K:]), field
