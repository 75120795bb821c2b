"""Several jobs: who holds which GPUs, how links are shared, who comes, waits and leaves."""

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
    env_params,
    make_plan,
    play,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.env.sharing import CRUX_LEVELS, allocate_gpus, crux_levels, share_links, share_resources
from jaxsim.env.sharing import step_cost as jobs_cost
from jaxsim.plan import Problem
from jaxsim.plan.plan import empty_plan
from jaxsim.workload.workload import JobSpec, ModelConfig, build_workload

pytestmark = pytest.mark.slow  # as a whole: its tests share what takes long to compile

K = 4
SPEC = cluster_spec(K, gpus=8, gbps=0.5)
CLUSTER, CALIBRATION = SPEC.to_arrays(), calibration()
KEY = jax.random.key(3)
share_of = jax.jit(share_links)
allocate = jax.jit(allocate_gpus)


def stack(*plans):
    return jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x]), *plans)


# --- GPUs ---


def test_gpus_go_to_the_first_job_then_to_the_next():
    """Domain 0 has 8 GPUs of which one job asks 3 x 2, the next 2 x 2: one replica is left for it,
    and the third job, which needs 4 at once, waits; a job that is not there asks for nothing."""
    first = make_plan([(0,)], [(8,)], [8], K, dp=3, pp=2)
    second = make_plan([(0, 1)], [(4, 4)], [8], K, dp=2, pp=2)
    third = make_plan([(0,)], [(8,)], [8], K, dp=1, pp=4)
    absent = make_plan([(1,)], [(8,)], [8], K, dp=8)
    plans = stack(first, absent, second, third)
    active = jnp.array([True, False, True, True])
    held = allocate(plans, active, jnp.array([8, 8, 8, 8], jnp.int32))
    np.testing.assert_array_equal(held, [[6, 0, 0, 0], [0, 0, 0, 0], [2, 2, 0, 0], [0, 0, 0, 0]])


@st.composite
def worlds(draw):
    """Three jobs of random single groups or replicas, and free GPUs that may fall short."""
    plans = []
    for _ in range(3):
        used = draw(st.lists(st.integers(0, K - 1), min_size=1, max_size=K, unique=True))
        apart = draw(st.booleans())
        groups = [(k,) for k in used] if apart else [tuple(used)]
        layers = [(8,)] * len(used) if apart else [tuple([8 // len(used)] * len(used))]
        shape = {name: draw(st.integers(1, 3)) for name in ("dp", "pp", "tp")}
        plans.append(make_plan(groups, layers, [4] * len(groups), K, **shape))
    active = draw(st.lists(st.booleans(), min_size=3, max_size=3))
    free = draw(st.lists(st.integers(0, 40), min_size=K, max_size=K))
    return stack(*plans), jnp.array(active), jnp.array(free, jnp.int32)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_no_domain_gives_more_gpus_than_it_has(world):
    plans, active, free = world
    held = np.asarray(allocate(plans, active, free))
    asked = np.asarray(jax.vmap(lambda p: p.gpus)(plans))
    assert np.all(held >= 0) and np.all(held.sum(axis=0) <= np.asarray(free))
    assert np.all(held <= asked) and np.all(held[~np.asarray(active)] == 0)
    replica = np.asarray(plans.tp * plans.pp * plans.cp)
    np.testing.assert_array_equal(held % replica, 0)
    # Nobody is refused what there is room for: one more replica of a group lacks GPUs somewhere.
    left = np.asarray(free) - np.cumsum(held, axis=0)
    for j in np.flatnonzero(np.asarray(active)):
        group = np.asarray(plans.group[j])
        for g in range(group.max() + 1):
            mine = group == g
            full = held[j][mine] == asked[j][mine]
            assert full.all() or np.any(left[j][mine] < replica[j][mine])


# --- links ---


def max_min(use, capacity):
    """Water filling by bisection, float64."""
    if sum(use) <= capacity:
        return np.array(use, float)
    low, high = 0.0, 1.0
    for _ in range(80):
        water = 0.5 * (low + high)
        low, high = (low, water) if np.minimum(use, water).sum() > capacity else (water, high)
    return np.minimum(use, low)


@settings(max_examples=100, deadline=None)
@given(
    # XLA takes a subnormal number for 0.
    st.lists(st.floats(0, 1, width=32, allow_subnormal=False), min_size=4, max_size=4),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
)
def test_shares_are_max_min_level_by_level(use, level):
    use, level = np.array(use), np.array(level)
    matrix = jnp.asarray(use, jnp.float32)[:, None, None]
    got = np.asarray(share_of(matrix, jnp.asarray(level, jnp.int32)))[:, 0, 0]
    left = 1.0
    for step in (2, 1, 0):
        mine = level == step
        taken = max_min(use[mine], left)
        expected = np.clip(left - (taken.sum() - taken), 1e-6, 1.0)
        expected = np.where(use[mine] > 0, expected, 1.0)
        np.testing.assert_allclose(got[mine], expected, atol=2e-6)
        left = max(left - taken.sum(), 0.0)
    # What all of them carry at most is no more than the link does.
    carried = np.minimum(use, got)[use > 0].sum()
    assert carried <= 1.0 + 1e-5


def test_two_jobs_on_one_link_by_hand():
    """One would keep the link busy for 0.9 of the time, the other for 0.3. Fair: the light one is
    served and leaves 0.7, and finds itself 0.3 beside the 0.7 that the heavy one takes. Crux: the
    one with the higher intensity finds the whole link, the other what is left."""
    use = jnp.array([0.9, 0.3], jnp.float32)[:, None, None]
    same, first, second = (jnp.array(x, jnp.int32) for x in ([0, 0], [1, 0], [0, 1]))
    for level, expected in ((same, [0.7, 0.3]), (first, [1.0, 0.1]), (second, [0.7, 1.0])):
        np.testing.assert_allclose(share_of(use, level)[:, 0, 0], expected, rtol=1e-5)
    # Room for both: each finds what the other leaves on average.
    light = jnp.array([0.5, 0.2], jnp.float32)[:, None, None]
    np.testing.assert_allclose(share_of(light, same)[:, 0, 0], [0.8, 0.5], rtol=1e-5)


def test_crux_ranks_by_gpu_intensity():
    """Crux, SIGCOMM 2024: I_j = W_j / t_j, computation over the time on the slowest link."""
    work = jnp.array([100.0, 60.0, 10.0, 500.0], jnp.float32)
    transfer = jnp.array([10.0, 2.0, 0.0, 1.0], jnp.float32)
    there = jnp.array([True, True, True, False])
    # 10 and 30 TFLOP per second of traffic; who sends nothing stands in nobody's way.
    np.testing.assert_array_equal(crux_levels(work, transfer, there), [0, 1, 2, 0])
    many = jnp.arange(1.0, 33.0, dtype=jnp.float32)
    levels = np.asarray(crux_levels(many, jnp.ones_like(many), jnp.ones((32,), bool)))
    np.testing.assert_array_equal(np.bincount(levels), [4] * CRUX_LEVELS)
    assert np.all(np.diff(levels) >= 0)


@pytest.fixture(scope="module")
def settled():
    """Two jobs under either policy: what each has, and what its step costs."""

    def run(plans, work, view, sharing):
        there = jnp.ones((2,), bool)
        pending = jnp.zeros((2, K, K), jnp.float32)
        world = (Problem(work, CLUSTER, CALIBRATION), view)
        shares = share_resources(plans, there, there, pending, *world, sharing)
        return shares, jobs_cost(plans, *world, shares)

    return jax.jit(run, static_argnames="sharing")


ONE_LINK = make_plan([(0, 1)], [(3, 5)], [8], K, dp=2, micro_batch=2)
SLOW = base_view(CLUSTER).replace(bandwidth_gb_per_s=CLUSTER.bandwidth_gb_per_s * 0.5)


def test_a_job_alone_on_its_links_costs_what_it_does_alone(settled):
    apart = make_plan([(2, 3)], [(3, 5)], [8], K, dp=2, micro_batch=2)
    idle = jax.tree.map(jnp.asarray, empty_plan(K))
    alone = cost_of(ONE_LINK, build_workload([JOB]).job(0), CLUSTER, CALIBRATION, SLOW)
    for other in (apart, idle):
        shares, cost = settled(stack(ONE_LINK, other), build_workload([JOB] * 2), SLOW, "fair")
        np.testing.assert_array_equal(shares.share[0], 1.0)
        for field, value in vars(alone).items():
            got = getattr(cost, field)[0]
            np.testing.assert_allclose(got, value, rtol=2e-6, err_msg=field)
    assert not bool(cost.runs[1]) and float(cost.wan_gb[1].sum()) == 0


def test_equal_jobs_that_fill_a_link_get_half_of_it_each(settled):
    starved = SLOW.replace(bandwidth_gb_per_s=SLOW.bandwidth_gb_per_s * 0.1)
    halved = starved.replace(bandwidth_gb_per_s=starved.bandwidth_gb_per_s * 0.5)
    slowed = cost_of(ONE_LINK, build_workload([JOB]).job(0), CLUSTER, CALIBRATION, halved)
    _, cost = settled(stack(ONE_LINK, ONE_LINK), build_workload([JOB] * 2), starved, "fair")
    np.testing.assert_allclose(cost.step_s, float(slowed.step_s), rtol=1e-5)


def test_crux_keeps_the_intense_job_at_full_speed(settled):
    """The second job's model is twice as wide: more computation for every byte that it sends."""
    wide = JobSpec(ModelConfig(8, 2048, 16, 8, 8192, 3, 32000), 32, 1024)
    work = build_workload([JOB, wide])
    plans = stack(ONE_LINK, ONE_LINK)
    alone = cost_of(ONE_LINK, work.job(1), CLUSTER, CALIBRATION, SLOW)
    _, fair = settled(plans, work, SLOW, "fair")
    shares, crux = settled(plans, work, SLOW, "crux")
    assert float(fair.step_s[1]) > 1.2 * float(alone.step_s)
    np.testing.assert_allclose(crux.step_s[1], float(alone.step_s), rtol=1e-6)
    busy = float((crux.wan_gb[1] / SLOW.bandwidth_gb_per_s / 0.9)[0, 1] / alone.step_s)
    np.testing.assert_allclose(shares.share[0, 0, 1], 1.0 - busy, rtol=1e-4)
    assert float(crux.step_s[0]) > float(fair.step_s[0])


# --- the environment ---

PLANS = [
    empty_plan(K),
    make_plan([(0, 1), (3, 2)], [(3, 5), (4, 4)], [4, 4], K, dp=2, micro_batch=2, pp=2),
    make_plan([(2, 0, 3, 1)], [(2, 3, 2, 1)], [8], K, dp=2, micro_batch=2),
    make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], K, dp=2, micro_batch=2, tp=2),
    make_plan([(1,)], [(8,)], [8], K, dp=4, micro_batch=1),
]
INTERVALS = 12
JOBS = [
    JobSpec(JOB.model, 32, 1024, step_budget=400.0),
    JobSpec(JOB.model, 32, 1024, step_budget=600.0, arrival_s=130.0),
]


def scenario(pad_jobs, sharing="fair"):
    """Two jobs, the second of which is submitted in the third interval, on links that run dry."""
    params = env_params(
        cluster_spec(K, gpus=8, gbps=0.1),
        JOB,
        PLANS[0],
        pad_jobs=pad_jobs,
        network={"white": 0.5, "latency": 0.2},
        load={"share": 0.4, "swing": 0.9},
    )
    return params.replace(
        problem=params.problem.of(build_workload(JOBS, pad_to=pad_jobs)), sharing=sharing
    )


def drawn(seed, pad_jobs):
    """[T, J, ...] a plan per job, held for two intervals."""
    rows = np.random.default_rng(seed).integers(0, len(PLANS), (INTERVALS // 2, 2)).repeat(2, 0)
    idle = [PLANS[0]] * (pad_jobs - 2)
    return stack(*(stack(PLANS[a], PLANS[b], *idle) for a, b in rows))


@pytest.fixture(scope="module")
def played():
    return [play(scenario(2), jax.random.fold_in(KEY, s), drawn(s, 2)) for s in range(6)]


def test_gpus_are_never_held_twice(played):
    shared = 0
    for states, steps in played:
        held = np.asarray(steps.record.cost.gpus_used)
        free = np.asarray(states.view.gpus_available)
        assert np.all(held.sum(axis=1) <= free)
        shared += np.sum(np.all(held > 0, axis=1))
    assert shared > 0, "no domain was ever shared: the test would not notice"


def test_links_carry_no_more_than_they_can(played):
    busiest = 0.0
    for states, steps in played:
        carried = np.asarray(steps.record.wan_gb + steps.record.migration_gb)
        could = np.asarray(states.view.bandwidth_gb_per_s) * 60.0
        apart = could > 0
        assert np.all(carried[~apart] == 0)
        ratio = carried[apart] / could[apart]
        assert ratio.max() <= 1.0 + 1e-5
        busiest = max(busiest, ratio.max())
    assert busiest > 0.85, "no link was ever full: the test would not notice"


def test_a_job_that_has_not_arrived_is_not_there(played):
    """Submitted at 130 s, it is seen where the interval that begins at 180 s is decided on."""
    for _, steps in played:
        there = np.asarray(steps.observation.job_mask[:, 1])
        # Entry t is the observation after interval t, for the one that begins at 60 (t + 1) s.
        np.testing.assert_array_equal(there[:3], [False, False, True])
        before = jax.tree.map(lambda x: np.asarray(x)[:3], steps)
        assert not before.observation.mask.retarget[:2, 1].any()
        assert not before.observation.job_nodes[:2, 1].any()
        assert not before.record.progress[:, 1].any()
        assert not before.record.switched[:, 1].any()
        assert not before.record.cost.gpus_used[:, 1].any()


def test_a_finished_job_is_gone_and_all_ends_with_the_last(played):
    finished = 0
    for states, steps in played:
        done = np.asarray(states.steps_done) >= [400.0, 600.0]
        np.testing.assert_array_equal(steps.terminated, done.all(axis=1))
        gone = done[:-1]
        finished += gone.sum()
        assert not np.asarray(steps.observation.job_mask)[done].any()
        assert not np.asarray(steps.record.cost.gpus_used)[1:][gone].any()
        assert not np.asarray(steps.record.progress)[1:][gone].any()
    assert finished > 0, "no job ever finished: the test would not notice"


def test_padding_jobs_changes_nothing(played):
    states, steps = played[0]
    wide_states, wide = play(scenario(4), jax.random.fold_in(KEY, 0), drawn(0, 4))
    np.testing.assert_allclose(wide.reward, steps.reward, rtol=1e-5, atol=1e-6)
    for name in ("progress", "train_s", "switched"):
        got, value = getattr(wide.record, name), getattr(steps.record, name)
        np.testing.assert_allclose(got[:, :2], value, rtol=1e-5, atol=1e-6, err_msg=name)
        assert not np.asarray(got[:, 2:]).any()
    for name in ("wan_gb", "migration_gb", "gpu_usd"):
        got, value = getattr(wide.record, name), getattr(steps.record, name)
        np.testing.assert_allclose(got, value, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(wide_states.moving[:, :2], states.moving)
    np.testing.assert_array_equal(wide.observation.job_mask[:, :2], steps.observation.job_mask)
    assert not np.asarray(wide.observation.job_mask[:, 2:]).any()
    np.testing.assert_allclose(
        wide.observation.graph.edges, steps.observation.graph.edges, rtol=1e-5, atol=1e-6
    )
