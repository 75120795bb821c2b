"""GPUs that come and go, and domains that are laid out anew by themselves, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec, env_params, make_plan, pad_plan, play

from jaxsim.env import resize
from jaxsim.plan import Problem
from jaxsim.step_time import LayerSpan, begin_transition
from jaxsim.workload.number_bytes import MOVED_STATE_BYTES, OPTIMIZER_BYTES, WEIGHT_BYTES
from jaxsim.workload.workload import build_workload

WORK = build_workload([JOB]).job(0)
STATE_GB = MOVED_STATE_BYTES * float(WORK.gparams)  # of the whole model
SPEC = cluster_spec(2, gpus=4)
NVLINK, RESTART_S, INTERVAL_S = 100.0 * 0.75, 10.0, 60.0
ONE = make_plan([(0,)], [(8,)], [4], micro_batch=2, dp=4)
APART = make_plan([(0,), (1,)], [(8,), (8,)], [2, 2], micro_batch=2, dp=4, sync_period=30)


def fetch_s(dp, tp=1):
    """Each GPU fetches its shard over NVLink: weights whole, ZeRO-1's optimizer state in dp parts."""
    share = (WEIGHT_BYTES + OPTIMIZER_BYTES / dp) / MOVED_STATE_BYTES / tp
    return STATE_GB * share / NVLINK


def held(*rows):
    """A load trace: GPUs that local jobs hold in intervals 0, 1, ... of domains 0 and 1."""
    rows = [*rows, *[rows[-1]] * (16 - len(rows))]
    return {"trace": jnp.asarray(rows, jnp.float32)}


def trained(plan, load, **changes):
    """[8] seconds of training, and the records of the intervals."""
    params = env_params(SPEC, JOB, plan, load=load, **changes)
    actions = jax.tree.map(lambda x: jnp.broadcast_to(x, (8, 1, *x.shape)), plan)
    _, steps = play(params, jax.random.key(0), actions)
    return np.asarray(steps.record.train_s)[:, 0], steps.record


def test_a_synchronous_job_waits_for_the_domain_that_is_laid_out_anew():
    # Interval 2: half of the GPUs go; interval 4: they come back.
    train_s, record = trained(ONE, held((0, 0), (0, 0), (2, 0), (2, 0), (0, 0)))
    by_hand = np.full(8, INTERVAL_S)
    by_hand[1] -= RESTART_S + fetch_s(2)
    by_hand[3] -= RESTART_S + fetch_s(4)
    np.testing.assert_allclose(train_s, by_hand, rtol=1e-5)
    assert np.asarray(record.migration_gb).sum() == 0.0  # nothing crosses the WAN
    # What changes nothing costs nothing: domain 1 is not used.
    np.testing.assert_allclose(trained(ONE, held((0, 0), (0, 3)))[0], INTERVAL_S)


@pytest.mark.slow
def test_where_nobody_else_wants_gpus_nothing_is_compiled_or_lost():
    args = (SPEC, JOB, ONE)
    quiet = env_params(*args, load=held((0, 0)), gpus_vary=False)
    actions = jax.tree.map(lambda x: jnp.broadcast_to(x, (8, 1, *x.shape)), ONE)
    states, steps = play(quiet, jax.random.key(0), actions)
    assert states.gpus_used is None and states.behind_gb is None
    np.testing.assert_allclose(steps.record.train_s, INTERVAL_S)


def test_groups_that_train_on_their_own_go_on():
    train_s, _ = trained(APART, held((0, 0), (0, 0), (0, 2)))
    by_hand = np.full(8, INTERVAL_S)
    by_hand[1] -= (RESTART_S + fetch_s(2)) / 2  # of half of the batch
    np.testing.assert_allclose(train_s, by_hand, rtol=1e-5)


def test_a_group_that_comes_back_fetches_the_state_from_the_other():
    # Domain 1 is lost in intervals 2 and 3; link 0 -> 1: 8 / 8 x 1.05 x 0.9 GB/s.
    train_s, record = trained(APART, held((0, 0), (0, 0), (0, 4), (0, 4), (0, 0)))
    rate = 8 / 8 * 1.05 * 0.9
    over_wan_s = STATE_GB / rate
    assert fetch_s(4) < over_wan_s < INTERVAL_S - RESTART_S, "the slower of the two is the WAN"
    by_hand = np.full(8, INTERVAL_S)
    by_hand[3] -= (RESTART_S + over_wan_s) / 2
    np.testing.assert_allclose(train_s, by_hand, rtol=1e-5)
    efficiency = np.asarray(record.cost.efficiency)[:, 0]
    np.testing.assert_allclose(efficiency[1:3], 0.5, rtol=1e-5)  # half of the batch, one replica
    moved = np.asarray(record.migration_gb)
    np.testing.assert_allclose(moved.sum(axis=0), [[0, STATE_GB], [0, 0]], rtol=1e-5)
    assert moved[3, 0, 1] == pytest.approx(STATE_GB, rel=1e-5)


def test_a_group_that_finds_no_gpus_when_its_plan_arrives_fetches_the_state_later():
    """From domain 0 alone to a replica in each; in interval 1, the arrival's, domain 1 has no GPUs."""
    actions = jax.tree.map(lambda x: jnp.broadcast_to(x, (8, 1, *x.shape)), APART)
    lacks = {}
    for name, load in (("free", held((0, 0))), ("taken", held((0, 0), (0, 4), (0, 0)))):
        params = env_params(SPEC, JOB, ONE, load=load)
        states, steps = play(params, jax.random.key(0), actions)
        lacks[name] = np.asarray(states.behind_gb)[:, 0, 0, 1]
        arrived_s = np.asarray(steps.record.train_s)[0, 0]
        assert 0 < arrived_s < INTERVAL_S, "the plan arrives in the first interval"
    np.testing.assert_array_equal(lacks["free"], 0.0)
    np.testing.assert_allclose(lacks["taken"][0], STATE_GB, rtol=1e-5)
    np.testing.assert_array_equal(lacks["taken"][1:], 0.0)
    assert np.asarray(steps.record.migration_gb)[1, 0, 1] == pytest.approx(STATE_GB, rel=1e-5)


def test_a_fetch_over_a_slow_link_takes_the_intervals_it_needs():
    rate = 0.05 / 8 * 1.05 * 0.9
    slow = cluster_spec(2, gpus=4, gbps=0.05)
    params = env_params(slow, JOB, APART, load=held((0, 0), (0, 4), (0, 0)))
    actions = jax.tree.map(lambda x: jnp.broadcast_to(x, (8, 1, *x.shape)), APART)
    states, steps = play(params, jax.random.key(0), actions)
    moved = np.asarray(steps.record.migration_gb)[:, 0, 1]
    left = np.asarray(states.behind_gb)[:, 0, 0, 1]
    np.testing.assert_allclose(left + np.cumsum(moved), STATE_GB, rtol=1e-5)  # bytes balance
    np.testing.assert_allclose(moved[1], rate * (INTERVAL_S - RESTART_S), rtol=1e-4)
    np.testing.assert_allclose(moved[2], rate * INTERVAL_S, rtol=1e-4)
    # Half of the batch is lost until all of it is there.
    waiting = left[1:] > 1e-6 * STATE_GB
    train_s = np.asarray(steps.record.train_s)[1:, 0]
    np.testing.assert_allclose(train_s[waiting], INTERVAL_S / 2, rtol=1e-5)
    assert waiting[:2].all()


@pytest.mark.parametrize(("period", "goes_on"), [(1, 0.0), (30, 0.5)])
def test_a_chosen_layout_inside_one_domain(period, goes_on):
    """Domain 1 goes from dp 4 to tp 2 x dp 2: no byte crosses the WAN, and local SGD goes on."""
    old = APART.replace(sync_period=jnp.int32(period))
    new = old.replace(
        dp=jnp.array([4, 2], jnp.int32),
        batch_share=jnp.array([2, 4], jnp.int32),
        tp=jnp.array([1, 2], jnp.int32),
    )
    problem = Problem(WORK, SPEC.to_arrays(), calibration())
    move = jax.jit(begin_transition)(old, new, problem)
    assert float(move.bytes_gb.sum()) == 0.0
    assert float(move.fabric_s) == pytest.approx(fetch_s(2, tp=2), rel=1e-5)
    assert float(move.goes_on) == pytest.approx(goes_on)
    params = env_params(SPEC, JOB, old, load=held((0, 0)))
    actions = jax.tree.map(lambda x: jnp.broadcast_to(x, (8, 1, *x.shape)), new)
    _, steps = play(params, jax.random.key(0), actions)
    down_s = (RESTART_S + fetch_s(2, tp=2)) * (1.0 - goes_on)
    by_hand = np.full(8, INTERVAL_S)
    by_hand[0] -= down_s
    np.testing.assert_allclose(np.asarray(steps.record.train_s)[:, 0], by_hand, rtol=1e-5)


def test_a_move_over_the_wan_stops_everybody_and_settles_what_is_owed():
    elsewhere = make_plan([(1,), (0,)], [(8,), (8,)], [2, 2], micro_batch=2, dp=4, sync_period=30)
    problem = Problem(WORK, SPEC.to_arrays(), calibration())
    move = jax.jit(begin_transition)(APART, elsewhere, problem)
    assert float(move.goes_on) == 0.0 and float(move.bytes_gb.sum()) > 0.0


def test_losses_never_exceed_the_interval_and_padding_changes_nothing():
    problem = Problem(WORK, SPEC.to_arrays(), calibration(restart_s=500.0))
    wide = Problem(WORK, SPEC.to_arrays(4), calibration(restart_s=500.0))
    before, now = jnp.array([4, 4], jnp.int32), jnp.array([2, 4], jnp.int32)
    rate = problem.cluster.bandwidth_gb_per_s
    nothing = jnp.zeros((2, 2), jnp.float32)
    for plan, lost_s in ((ONE, 60.0), (APART, 30.0)):
        small = resize(LayerSpan.of(plan), problem, before, now, rate, jnp.float32(60), nothing)
        assert float(small.lost_s) == pytest.approx(lost_s)
        span = LayerSpan.of(pad_plan(plan, 4))
        four = [jnp.pad(x, (0, 2)) for x in (before, now)]
        links = [jnp.pad(x, ((0, 2), (0, 2))) for x in (rate, nothing)]
        large = resize(span, wide, *four, links[0], jnp.float32(60), links[1])
        assert float(large.lost_s) == pytest.approx(lost_s)


def test_a_later_stage_fetches_its_own_layers_alone():
    """Domain 1 holds layers 4 to 8 of 8: half of the state, wherever they begin."""
    problem = Problem(WORK, SPEC.to_arrays(), calibration())
    pipeline = make_plan([(0, 1)], [(4, 4)], [4], micro_batch=2, dp=4)
    rate = problem.cluster.bandwidth_gb_per_s
    for before, now in (([4, 4], [4, 2]), ([4, 4], [2, 4])):
        gpus = (jnp.array(x, jnp.int32) for x in (before, now))
        got = resize(LayerSpan.of(pipeline), problem, *gpus, rate, jnp.float32(INTERVAL_S))
        assert float(got.lost_s) == pytest.approx(RESTART_S + fetch_s(2) / 2, rel=1e-5)
