"""Rows of prepared plans: the same environment as with the plans themselves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.random_plans import GPU, K, random_plan, random_plans
from helpers.toy_world import JOB, cluster_spec, env_params, make_plan

from jaxsim.env.env import auto_reset, first_states, reset, step
from jaxsim.env.prepare import with_rows
from jaxsim.env.rows import row_cost, where_needed
from jaxsim.files.errors import InputError
from jaxsim.plan.modes import Schedule
from jaxsim.plan.plan import MENU_SCHEDULES
from jaxsim.step_time.closed_form import NetworkView, choice_fits, job_step_cost
from jaxsim.trees import stack, take

pytestmark = pytest.mark.nightly  # as a whole: its tests share what takes long to compile

PLANS, CASES = 400, 3000
SPEC = cluster_spec(K, gpus=36, gpu=GPU)


@pytest.fixture(scope="module")
def prepared():
    """Params with 400 rows, and one more: the plan in force at reset."""
    rng = np.random.default_rng(0)
    params = env_params(SPEC, JOB, random_plan(rng))
    return with_rows(params, random_plans(rng, PLANS))


def random_views(rng, n, cluster):
    """Links from four times as good as the cluster's to a hundredth, one of them down; in most views
    few GPUs are held by others."""
    factor = 10.0 ** rng.uniform(-2, 0.6, (2, n, K, K))
    factor[0, :, 2, 5] = 0.0
    least = np.where(rng.random((n, 1)) < 0.7, 33, 0)
    gpus = rng.integers(np.broadcast_to(least, (n, K)), 37)
    return NetworkView(
        jnp.asarray(np.asarray(cluster.bandwidth_gb_per_s) * factor[0], jnp.float32),
        jnp.asarray(np.asarray(cluster.rtt_s) / factor[1], jnp.float32),
        jnp.asarray(gpus, jnp.int32),
    )


def test_a_row_costs_what_its_plan_costs(prepared):
    """Thousands of random plans, networks and loads; every field of the cost, and the mask."""
    problem, rng = prepared.problem.job(0), np.random.default_rng(1)
    rows = jnp.asarray(rng.integers(0, PLANS, CASES), jnp.int32)
    views = random_views(rng, CASES, problem.cluster)

    @jax.jit
    @jax.vmap
    def looked_up(row, view):
        return row_cost(prepared.rows, row, problem, view, prepared.schedules)

    @jax.jit
    @jax.vmap
    def computed(row, view):
        plan = take(prepared.rows.plans, row)
        fits = choice_fits(plan, problem, view.gpus_available, prepared.schedules)
        return job_step_cost(plan, problem, view), fits

    (got, got_fits), (expected, fits) = looked_up(rows, views), computed(rows, views)
    np.testing.assert_array_equal(got_fits, fits)
    needed = np.asarray(prepared.rows.costs.gpus)[np.asarray(rows)]
    whole = np.all(needed <= np.asarray(views.gpus_available), axis=1)
    assert 0.2 * CASES < whole.sum() < 0.9 * CASES, "rows with and without all replicas"
    runs = np.asarray(expected.runs)
    assert 0.2 * CASES < runs.sum() < 0.95 * CASES
    for name in ("runs", "fits", "gpus_used"):
        np.testing.assert_array_equal(getattr(got, name), getattr(expected, name), err_msg=name)
    np.testing.assert_allclose(got.step_s, expected.step_s, rtol=1e-5)
    for name in ("memory_gb", "wan_gb", "sync_gb", "egress_usd", "efficiency", "optimizer_s"):
        close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-9, err_msg=name)
        close(getattr(got, name), getattr(expected, name))
    scale = np.asarray(expected.total_s)
    for name in ("exposed_wan_s", "sync_s", "wan_busy_s"):
        # Some are differences: compared on the scale of the whole step.
        error = np.asarray(getattr(got, name)) - np.asarray(getattr(expected, name))
        assert np.all(np.abs(error) <= 1e-5 * scale), name
    # Of pipelines that end together either may be called the slowest.
    ties = np.zeros(CASES, bool)
    for name in ("compute_s", "tensor_parallel_s", "context_parallel_s", "bubble_s"):
        error = np.asarray(getattr(got, name)) - np.asarray(getattr(expected, name))
        ties |= np.abs(error) > 1e-5 * scale
    assert ties.mean() < 0.01, ties.mean()
    np.testing.assert_allclose(got.total_s, expected.total_s, rtol=1e-5)


def play(params, key, actions):
    state, first = reset(key, params)
    return first, jax.lax.scan(lambda s, a: step(key, s, a, params), state, actions)[1]


@pytest.mark.nightly
def test_an_episode_of_rows_is_one_of_plans():
    """States aside, everything that an environment returns: under load, with transitions, local SGD."""
    rng = np.random.default_rng(3)
    jitter = {"white": 0.3, "latency": 0.2, "ou_sigma": 0.3, "ou_tau": 5.0}
    plans = [
        make_plan([(0, 1), (3, 2)], [(3, 5), (4, 4)], [4, 4], 4, dp=2, micro_batch=2),
        make_plan([(2, 0, 3, 1)], [(2, 3, 2, 1)], [8], 4, dp=2, micro_batch=2),
        make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], 4, dp=2, micro_batch=2, sync_period=4),
        make_plan([(0,), (1,)], [(8,), (8,)], [2, 6], 4, dp=2, micro_batch=2, sync_period=4),
    ]
    spec, load = cluster_spec(4, gpus=8, gbps=0.5), {"share": 0.6, "swing": 0.6}
    params = env_params(spec, JOB, plans[0], network=jitter, load=load)
    many = stack(plans)
    rows = jnp.asarray(rng.integers(0, 4, (6, 24, 1)), jnp.int32)
    keys = jax.random.split(jax.random.key(5), 6)
    actions = take(many, rows)
    several = jax.vmap(play, (None, 0, 0))
    expected = jax.jit(several)(params, keys, actions)
    got = jax.jit(several)(with_rows(params, many), keys, rows)
    seen = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), expected[1].observation.plan)
    used = np.asarray(expected[1].record.cost.gpus_used).reshape(-1, 4)
    lost = used < np.asarray(jax.vmap(lambda plan: plan.gpus)(seen))
    assert lost.any() and not lost.all(), "some steps lack replicas"
    assert np.any(np.asarray(expected[1].observation.moving))
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(expected), jax.tree.leaves(got), strict=True
    ):
        x = np.asarray(x)
        finite = np.abs(x[np.isfinite(x)]) if x.dtype == np.float32 else np.zeros(0)
        # Differences of close numbers: compared on the scale of the field.
        scale = 2e-5 * finite.max(initial=0.0)
        where = jax.tree_util.keystr(path)
        np.testing.assert_allclose(y, x, rtol=2e-5, atol=scale, err_msg=where)


def test_known_scenarios_start_from_their_index():
    spec = cluster_spec(4, gpus=8, gbps=0.5)
    plan = make_plan([(0, 1)], [(3, 5)], [8], 4, dp=2, micro_batch=2)
    params = env_params(spec, JOB, plan, network={"white": 0.3}, horizon=jnp.int32(2))
    keys = jax.random.split(jax.random.key(0), 3)
    bank = first_states(keys, params)
    wrapped = jax.jit(auto_reset(lambda key: (jnp.int32(1), params), bank))
    state = take(bank[0], 0)
    for _ in range(2):
        state, timestep, _ = wrapped(jax.random.key(7), state, params.initial_plan, params)
    expected_state, expected = jax.jit(reset)(keys[1], params)
    assert bool(timestep.truncated) and int(state.t) == 1
    for got, value in ((state, expected_state), (timestep.observation, expected.observation)):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(value), strict=True):
            if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 5, 70])
def test_the_general_way_is_taken_where_it_is_needed(size):
    """Alone, in a batch smaller than a block, in one of several blocks; with an unbatched argument."""
    either = where_needed(
        lambda x, y: x % 3 != 0, lambda x, y: {"out": x + y}, lambda x, y: {"out": -x * y}, 32
    )
    x = jnp.arange(size, dtype=jnp.int32)
    got = jax.jit(jax.vmap(either, (0, None)))(x, jnp.int32(4))["out"]
    np.testing.assert_array_equal(got, [-4 * i if i % 3 == 0 else i + 4 for i in range(size)])
    twice = jax.vmap(jax.vmap(either, (0, None)), (None, 0))(x, jnp.arange(2, dtype=jnp.int32))
    for y in range(2):
        expected = [-y * i if i % 3 == 0 else i + y for i in range(size)]
        np.testing.assert_array_equal(twice["out"][y], expected)
    assert int(either(jnp.int32(3), jnp.int32(4))["out"]) == -12


def test_what_cannot_be_prepared_is_refused(prepared):
    rng = np.random.default_rng(0)
    params = env_params(SPEC, JOB, random_plan(rng, MENU_SCHEDULES), schedules=MENU_SCHEDULES)
    with pytest.raises(InputError, match="schedule"):
        with_rows(params, random_plans(rng, 3, (Schedule.GREEDY,)))
    with pytest.raises(InputError, match="schedule"):
        with_rows(params, random_plans(rng, 3, (Schedule.ZERO_BUBBLE,)))
    two = env_params(SPEC, JOB, random_plan(rng), pad_jobs=2)
    with pytest.raises(InputError, match="one job"):
        with_rows(two, random_plans(rng, 3))
    state = jax.eval_shape(lambda: reset(jax.random.key(0), prepared)[0])
    with pytest.raises(TypeError, match="numbers of rows"):
        jax.eval_shape(step, jax.random.key(0), state, prepared.initial_plan, prepared)
    with pytest.raises(TypeError, match="a Plan"):
        jax.eval_shape(step, jax.random.key(0), state, jnp.zeros((1,), jnp.int32), params)
