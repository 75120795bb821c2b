"""What a switch of plans moves and how long it takes, against sets of layers and a slow replay."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec, env_params, make_plan, play
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.plan import Problem
from jaxsim.plan.plan import FREE_FIELDS, Plan, empty_plan, needs_reconfiguration
from jaxsim.step_time.reconfiguration import (
    Transition,
    advance_transition,
    begin_transition,
    migration_gb,
    transition_s,
)
from jaxsim.step_time.sync import ring_bytes_gb
from jaxsim.step_time.topology import topology
from jaxsim.workload.number_bytes import MOVED_STATE_BYTES
from jaxsim.workload.workload import DataSets, build_workload

K, LAYERS = 4, 8
WORK = build_workload([JOB]).job(0)
# 14 bytes a parameter, the two tables spread over the layers.
LAYER_STATE_GB = MOVED_STATE_BYTES * float(WORK.gparams) / LAYERS
few = settings(deadline=None, max_examples=60)

migrate = jax.jit(migration_gb)


CLUSTER = cluster_spec(K, gpus=4).to_arrays()


@jax.jit
def begin(old, new, work, efficiency):
    return begin_transition(old, new, Problem(work, CLUSTER, efficiency))


def over_wan(restart, load):
    """A transition of a restart and transfers alone."""
    nothing = jnp.float32(0.0)
    return Transition(jnp.float32(restart), jnp.asarray(load, jnp.float32), nothing, nothing)


advance = jax.jit(advance_transition)


@st.composite
def layouts(draw):
    """Groups of domains with the layers each holds, e.g. ([(2, 0), (1,)], [(3, 5), (8,)])."""
    order = draw(st.permutations(range(K)))[: draw(st.integers(1, K))]
    cuts = [i for i in range(1, len(order)) if draw(st.booleans())]
    groups = [tuple(g.tolist()) for g in np.split(np.array(order), cuts)]
    layers = []
    for group in groups:
        marks = draw(st.sets(st.integers(1, LAYERS - 1), min_size=len(group) - 1,
                             max_size=len(group) - 1))  # fmt: skip
        edges = [0, *sorted(marks), LAYERS]
        layers.append(tuple(b - a for a, b in itertools.pairwise(edges)))
    return groups, layers


def plan_of(layout, **fields):
    groups, layers = layout
    return make_plan(groups, layers, [8] * len(groups), K, **fields)


def held(layout):
    """Domain -> set of its layers."""
    sets = {k: set() for k in range(K)}
    for group, counts in zip(*layout, strict=True):
        start = 0
        for domain, count in zip(group, counts, strict=True):
            sets[domain] = set(range(start, start + count))
            start += count
    return sets


@few
@given(layouts(), layouts())
def test_migration_brings_exactly_the_missing_layers(old, new):
    moved = np.asarray(migrate(plan_of(old), plan_of(new), WORK)) / LAYER_STATE_GB
    before, after = held(old), held(new)
    missing = [len(after[k] - before[k]) for k in range(K)]
    np.testing.assert_allclose(moved.sum(axis=0), missing, atol=1e-4)
    # From those that hold them, the old groups in equal parts.
    groups = len(old[0])
    lacks = [after[k] - before[k] for k in range(K)]
    expected = [[len(lacks[j] & before[i]) / groups for j in range(K)] for i in range(K)]
    np.testing.assert_allclose(moved, expected, atol=1e-4)
    assert np.all(np.diag(moved) == 0)


def test_data_goes_to_whoever_reads_batches_and_has_none():
    """60 GB are at domains 2 and 3. A pipeline 0 -> 1 beside domain 2: only domain 0 reads and lacks,
    30 GB come from each holder. Turned round, domain 1 reads instead, and domain 0 keeps its own."""
    at = jnp.array([False, False, True, True])
    work = WORK.replace(data=DataSets(gb=jnp.float32(60.0), at=at))
    both = ([(0, 1), (2,)], [(4, 4), (LAYERS,)])
    turned = ([(1, 0), (2,)], [(4, 4), (LAYERS,)])
    apart = ([(0,), (1,)], [(LAYERS,), (LAYERS,)])
    to_0, to_1 = np.zeros((2, K, K))
    to_0[2:, 0], to_1[2:, 1] = 30.0, 30.0
    idle = jax.tree.map(jnp.asarray, empty_plan(K))
    np.testing.assert_allclose(migrate(idle, plan_of(both), work), to_0)
    for old, new, fetched in [(both, turned, to_1), (both, apart, to_1), (apart, both, 0 * to_0)]:
        layers_gb = np.asarray(migrate(plan_of(old), plan_of(new), WORK))
        moved = np.asarray(migrate(plan_of(old), plan_of(new), work))
        np.testing.assert_allclose(moved, layers_gb + fetched, rtol=1e-6)


@few
@given(layouts())
def test_the_same_plan_moves_nothing(layout):
    assert float(jnp.sum(migrate(plan_of(layout), plan_of(layout), WORK))) == 0.0


@pytest.mark.parametrize("name", Plan.__dataclass_fields__)
def test_free_fields_are_free_and_all_others_stop_the_job(name):
    old = make_plan([(0, 1)], [(4, 4)], [8], K)
    value = getattr(old, name)
    new = old.replace(**{name: value + 1})
    assert bool(needs_reconfiguration(old, new)) == (name not in FREE_FIELDS)
    assert not bool(needs_reconfiguration(old, old))


@few
@given(layouts(), layouts())
def test_a_local_sgd_plan_first_pays_its_outer_sync(old, new):
    owing = plan_of(old, sync_period=8)
    paid = np.asarray(begin(owing, plan_of(new), WORK, calibration()).bytes_gb)
    plain = np.asarray(begin(plan_of(old), plan_of(new), WORK, calibration()).bytes_gb)
    n = len(old[0])
    owed = paid - plain
    # One all-reduce: each of n groups sends 2 (n - 1) / n of its 16-bit values to the next.
    total = 2 * (n - 1) * 2 * float(WORK.gparams) if n > 1 else 0.0
    np.testing.assert_allclose(owed.sum(), total, rtol=1e-4, atol=1e-6)
    # It crosses the links that the gradient ring of the old plan crosses.
    ring = np.asarray(ring_bytes_gb(WORK, plan_of(old), topology(plan_of(old))))
    np.testing.assert_array_equal(owed > 1e-6, ring > 0)


def test_changing_the_sync_period_alone_moves_only_the_outer_sync():
    old = make_plan([(0,), (1,), (2,)], [(8,)] * 3, [4] * 3, K, sync_period=4)
    new = old.replace(sync_period=jnp.int32(1))
    moved = np.asarray(begin(old, new, WORK, calibration()).bytes_gb)
    each = 2 * 2 / 3 * 2 * float(WORK.gparams)
    expected = np.zeros((K, K))
    expected[0, 1] = expected[1, 2] = expected[2, 0] = each
    np.testing.assert_allclose(moved, expected, rtol=1e-5)


def replay(restart, load, rates, interval):
    """When a transition ends [s], followed link by link and interval by interval."""
    arrivals = [restart]
    for i, j in zip(*np.nonzero(load), strict=True):
        left, now = float(load[i, j]), restart
        while left > 1e-12:
            t = int(now / interval + 1e-9)
            if t >= len(rates):
                return np.inf
            spend = min((t + 1) * interval - now, left / rates[t, i, j])
            left, now = left - spend * rates[t, i, j], now + spend
        arrivals.append(now)
    return max(arrivals)


links = st.lists(st.floats(0.05, 2.0), min_size=16, max_size=16)


@few
@given(
    st.floats(0.0, 150.0),
    st.lists(st.floats(0.0, 40.0), min_size=16, max_size=16),
    st.lists(links, min_size=6, max_size=6),
)
def test_a_transition_moves_all_bytes_in_the_time_the_links_imply(restart, load, rates):
    load = np.where(np.array(load).reshape(4, 4) < 5.0, 0.0, np.array(load).reshape(4, 4))
    rates = np.array(rates).reshape(6, 4, 4)
    transition = over_wan(restart, load)
    total, downtime, trained = np.zeros((4, 4)), 0.0, 0.0
    for rate in rates:
        transition, train_s, moved = advance(
            transition, jnp.asarray(rate, jnp.float32), jnp.float32(60.0)
        )
        total += np.asarray(moved)
        assert np.all(np.asarray(moved) <= rate * 60.0 * (1 + 1e-5))
        trained = float(train_s)
        downtime += 60.0 - trained
        if trained > 0:
            break
    expected = replay(restart, load, rates, 60.0)
    if np.isfinite(expected) and expected < 360.0 - 1e-2:
        np.testing.assert_allclose(downtime, expected, rtol=1e-4, atol=2e-3)
        np.testing.assert_allclose(total, load, rtol=1e-5)
        assert float(transition.bytes_gb.sum()) == 0.0 and float(transition.restart_s) == 0.0
    elif not np.isfinite(expected):
        assert trained == 0.0
        np.testing.assert_allclose(total + np.asarray(transition.bytes_gb), load, rtol=1e-4)


@few
@given(st.floats(0.0, 50.0), links, links)
def test_duration_at_constant_rates_is_that_of_the_slowest_link(restart, load, rates):
    load, rates = np.array(load).reshape(4, 4), np.array(rates).reshape(4, 4)
    transition = over_wan(restart, load)
    duration = transition_s(transition, jnp.asarray(rates, jnp.float32))
    np.testing.assert_allclose(duration, restart + (load / rates).max(), rtol=1e-5)


# The same in the environment: a switch from domain 0 to domain 1 over one slow link.

SPEC = cluster_spec(2, gpus=4, gbps=0.1)  # 0 -> 1: 0.1 / 8 x 1.05 x 0.9 GB/s
OLD = make_plan([(0,)], [(8,)], [16], micro_batch=2)
NEW = make_plan([(1,)], [(8,)], [16], micro_batch=2)
BYTES_GB = LAYER_STATE_GB * LAYERS
DOWN_S = 10.0 + BYTES_GB / (0.1 / 8 * 1.05 * 0.9)


def lost(domain, start):
    """A load trace in which local jobs take a whole domain in the intervals from `start` on."""
    trace = np.zeros((16, 2), np.float32)
    trace[start:, domain] = 4
    return {"trace": jnp.asarray(trace)}


def played(*plans, params=None):
    """Eight intervals of these plans, the last one held."""
    params = env_params(SPEC, JOB, OLD, load=lost(1, 99)) if params is None else params
    plans = [*plans, *[plans[-1]] * (8 - len(plans))]
    return play(params, jax.random.key(0), jax.tree.map(lambda *x: jnp.stack(x)[:, None], *plans))


@pytest.mark.slow
def test_a_switch_of_several_intervals_gives_no_progress_for_exactly_that_long():
    intervals = int(DOWN_S // 60)
    assert 2 < intervals < 6 and DOWN_S % 60 > 5, "the case must end inside a later interval"
    states, steps = played(NEW)
    trained = np.asarray(steps.record.train_s)[:, 0]
    np.testing.assert_array_equal(trained[:intervals], 0.0)
    np.testing.assert_allclose(trained[intervals], (intervals + 1) * 60 - DOWN_S, rtol=1e-3)
    np.testing.assert_allclose(trained[intervals + 1 :], 60.0)
    progress = np.asarray(steps.record.progress)[:, 0]
    assert np.all(progress[:intervals] == 0)
    step_s = np.asarray(steps.record.cost.step_s)[-1, 0]
    np.testing.assert_allclose(progress[intervals:], trained[intervals:] / step_s, rtol=1e-5)
    np.testing.assert_allclose(states.steps_done[-1, 0], progress.sum(), rtol=1e-6)
    # Bytes: all of the state, in one direction, and the egress they cost.
    moved = np.asarray(steps.record.migration_gb)
    np.testing.assert_allclose(moved.sum(axis=0), [[0, BYTES_GB], [0, 0]], rtol=1e-5)
    np.testing.assert_allclose(
        np.asarray(steps.record.egress_usd).sum(), BYTES_GB * 0.03, rtol=1e-5
    )
    np.testing.assert_array_equal(steps.record.switched[:, 0], [True] + [False] * 7)
    np.testing.assert_array_equal(
        states.moving[:, 0], [True] * intervals + [False] * (8 - intervals)
    )


def test_the_observation_tells_what_is_left_of_a_switch():
    states, steps = played(NEW)
    seen = steps.observation
    np.testing.assert_array_equal(seen.moving, states.moving)
    left = np.asarray(seen.transition.bytes_gb)[:, 0].sum(axis=(1, 2))
    np.testing.assert_allclose(left[0], BYTES_GB - 50.0 * 0.1 / 8 * 1.05 * 0.9, rtol=1e-4)
    assert np.all(np.diff(left) <= 0) and left[-1] == 0.0
    np.testing.assert_array_equal(seen.mask.retarget[:, 0], ~np.asarray(states.moving)[:, 0])


def test_no_retargeting_while_moving():
    third = make_plan([(0, 1)], [(4, 4)], [16], micro_batch=2)
    straight, _ = played(NEW)
    swerving, _ = played(NEW, third, OLD, third, NEW, NEW, NEW, NEW)
    intervals = int(DOWN_S // 60)
    for t in range(intervals):
        np.testing.assert_array_equal(swerving.target.group[t], straight.target.group[t])
        np.testing.assert_allclose(
            swerving.transition.bytes_gb[t], straight.transition.bytes_gb[t], rtol=1e-6
        )


def test_free_fields_change_at_once_and_restart_nothing():
    faster = OLD.replace(
        micro_batch=OLD.micro_batch * 2, batch_share=OLD.batch_share // 2, recompute=OLD.recompute
    )
    states, steps = played(OLD, faster)
    assert not np.any(steps.record.switched) and not np.any(states.moving)
    np.testing.assert_allclose(steps.record.train_s, 60.0)
    np.testing.assert_array_equal(states.plan.micro_batch[:2, 0, 0], [2, 4])
    assert np.asarray(steps.record.migration_gb).sum() == 0
    assert steps.record.cost.compute_s[1, 0] != steps.record.cost.compute_s[0, 0]


def test_free_fields_of_the_target_follow_while_moving():
    wider = NEW.replace(micro_batch=NEW.micro_batch * 2, batch_share=NEW.batch_share // 2)
    plain, plain_steps = played(NEW)
    states, steps = played(NEW, wider)
    np.testing.assert_array_equal(states.moving, plain.moving)
    np.testing.assert_allclose(steps.record.train_s, plain_steps.record.train_s)
    assert int(states.plan.micro_batch[-1, 0, 0]) == 4
    # The plan in force is the old one until arrival.
    assert int(states.plan.group[0, 0, 0]) == 0 and int(states.plan.micro_batch[1, 0, 0]) == 2


def test_a_lost_domain_allows_a_new_target():
    # Domain 1 is lost in interval 2, seen before interval 3.
    onward = make_plan([(0,)], [(8,)], [8], micro_batch=2, dp=2)
    params = env_params(SPEC, JOB, OLD, load=lost(1, 2))
    states, steps = played(NEW, NEW, onward, params=params)
    assert not bool(steps.observation.mask.retarget[0, 0])
    assert bool(steps.observation.mask.retarget[1, 0])
    np.testing.assert_array_equal(states.moving[:4, 0], [True, True, False, False])
    # Over NVLink each of the two GPUs fetches the weights and half of the optimizer state.
    shard_s = BYTES_GB * (2 + 12 / 2) / 14 / (100.0 * 0.75)
    np.testing.assert_allclose(steps.record.train_s[:4, 0], [0, 0, 50.0 - shard_s, 60.0], rtol=1e-6)


def test_holding_on_to_a_target_whose_domain_is_lost_does_not_start_over():
    # Lost while the bytes are under way, back before they have arrived.
    trace = lost(1, 2)["trace"].at[3:].set(0.0)
    params = env_params(SPEC, JOB, OLD, load={"trace": trace})
    straight, plain = played(NEW)
    states, steps = played(NEW, params=params)
    assert bool(steps.observation.mask.retarget[1, 0])
    np.testing.assert_array_equal(steps.record.switched, plain.record.switched)
    np.testing.assert_array_equal(states.moving, straight.moving)
    np.testing.assert_allclose(steps.record.train_s, plain.record.train_s)


def test_a_lost_domain_allows_a_return_to_the_plan_in_force():
    params = env_params(SPEC, JOB, OLD, load=lost(1, 2))
    states, steps = played(NEW, NEW, OLD, params=params)
    np.testing.assert_array_equal(states.moving[:4, 0], [True, True, False, False])
    # Its processes were stopped: a restart, and no bytes, since nothing was given up.
    np.testing.assert_allclose(steps.record.train_s[:4, 0], [0, 0, 50.0, 60.0])
    assert np.asarray(steps.record.migration_gb)[2:].sum() == 0


def test_a_link_that_is_down_holds_up_only_what_must_cross_it():
    nothing = jnp.zeros((K, K), jnp.float32)
    rate, half = nothing.at[0, 1].set(0.5), jnp.float32(0.5)
    over, down = nothing.at[0, 1].set(2.0), nothing.at[1, 2].set(2.0)
    left, train_s, moved = advance(over_wan(half, over), rate, jnp.float32(10.0))
    assert float(train_s) == pytest.approx(10.0 - 0.5 - 2.0 / 0.5)
    assert float(moved[0, 1]) == 2.0 and float(left.bytes_gb.sum()) == 0.0
    left, train_s, _ = advance(over_wan(half, down), rate, jnp.float32(10.0))
    assert float(train_s) == 0.0 and float(left.bytes_gb[1, 2]) == 2.0


# Two pipelines that sync every 30 steps, one over domains 0 and 1, one over 2 and 3.
PAIRS = plan_of(([(0, 1), (2, 3)], [(3, 5), (4, 4)]), sync_period=30)


def test_the_pipeline_that_does_not_change_goes_on_with_its_half_of_the_batch():
    """Domain 2 goes from dp 1 to tp 2, alone: by hand, half of the sequences go on."""
    new = PAIRS.replace(tp=PAIRS.tp.at[2].set(2))
    assert float(begin(PAIRS, new, WORK, calibration()).goes_on) == pytest.approx(0.5)
    alone = plan_of(([(0, 1), (2,)], [(3, 5), (8,)]), sync_period=30)
    new = alone.replace(tp=alone.tp.at[2].set(2))
    assert float(begin(alone, new, WORK, calibration()).goes_on) == pytest.approx(0.5)


@pytest.mark.parametrize("layers", [[(4, 4), (4, 4)], [(3, 5), (5, 3)]])
def test_nobody_goes_on_while_layers_move_between_domains(layers):
    new = plan_of(([(0, 1), (2, 3)], layers), sync_period=30)
    move = begin(PAIRS, new, WORK, calibration())
    assert float(move.goes_on) == 0.0 and float(move.bytes_gb.sum()) > 0.0
