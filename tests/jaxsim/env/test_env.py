"""The environment's contract: same numbers padded, vmapped or looped, rewards, ends, resets."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, cluster_spec, env_params, make_plan, pad_plan, play

from jaxsim.env.env import auto_reset, reset, step
from jaxsim.plan.plan import empty_plan
from jaxsim.trees import stack, take
from jaxsim.workload.workload import JobSpec, build_workload

SPEC = cluster_spec(4, gpus=8, gbps=0.5)
PLANS = [
    make_plan([(0, 1), (3, 2)], [(3, 5), (4, 4)], [4, 4], 4, dp=2, micro_batch=2),
    make_plan([(2, 0, 3, 1)], [(2, 3, 2, 1)], [8], 4, dp=2, micro_batch=2),
    make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], 4, dp=2, micro_batch=2, sync_period=4),
]
SEQUENCES = [(0,) * 8, (0, 1, 1, 1, 1, 2, 2, 2), (1, 0, 2, 1, 0, 2, 1, 0)]
WEIGHTS = jnp.array([0.7, 0.3, 0.2, 0.1], jnp.float32)
JITTER = {"white": 0.3, "latency": 0.2, "ou_sigma": 0.3, "ou_tau": 5.0}
LOAD = {"share": 0.3, "swing": 0.5}
KEY = jax.random.key(3)
# One scenario's shapes throughout, so that one compilation must serve all tests of this file.
jit_step = jax.jit(chex.assert_max_traces(lambda *x: step(*x), n=1))
jit_reset = jax.jit(chex.assert_max_traces(lambda *x: reset(*x), n=1))


def scenario(seed=0, **changes):
    jitter = {**JITTER, "white": 0.1 + 0.1 * seed}
    return env_params(SPEC, JOB, PLANS[0], network=jitter, load=LOAD, weights=WEIGHTS, **changes)


def actions(rows, n_domains=4, n_jobs=1):
    """[T, J, ...] full plans; padded jobs stay idle."""
    idle = [jax.tree.map(jnp.asarray, empty_plan(n_domains))] * (n_jobs - 1)
    each = [stack([pad_plan(p, n_domains), *idle]) for p in PLANS]
    return stack(each[r] for r in rows)


@pytest.fixture(scope="module")
def small():
    return [play(scenario(), KEY, actions(rows)) for rows in SEQUENCES]


@pytest.mark.slow
def test_padding_domains_and_jobs_changes_nothing(small):
    params = scenario(pad_domains=8, pad_jobs=2)
    for (states, steps), rows in zip(small, SEQUENCES, strict=True):
        wide_states, wide = play(params, KEY, actions(rows, 8, 2))
        np.testing.assert_allclose(wide.reward, steps.reward, rtol=2e-5, atol=2e-6)
        for part, value in vars(steps.record.reward_parts).items():
            got = getattr(wide.record.reward_parts, part)
            np.testing.assert_allclose(got, value, rtol=2e-5, atol=2e-6, err_msg=part)
        np.testing.assert_allclose(wide.record.progress[:, :1], steps.record.progress, rtol=1e-5)
        np.testing.assert_array_equal(wide.record.progress[:, 1], 0.0)
        np.testing.assert_array_equal(wide_states.moving[:, :1], states.moving)
        assert_same_observation(steps.observation, wide.observation)


def assert_same_observation(small, wide):
    """[T, ...] observations of 4 domains and 1 job inside those of 8 and 2."""
    # The noise of every real link and domain is that of the small cluster, bit for bit.
    for name, value in vars(small.view).items():
        got = getattr(wide.view, name)
        inside = got[(slice(None), *(slice(0, 4),) * (got.ndim - 1))]
        np.testing.assert_array_equal(inside, value, err_msg=name)
    np.testing.assert_allclose(wide.graph.nodes[:, :4], small.graph.nodes, rtol=1e-5, atol=1e-6)
    edges = wide.graph.edges.reshape(-1, 8, 8, wide.graph.edges.shape[-1])
    expected = small.graph.edges.reshape(-1, 4, 4, wide.graph.edges.shape[-1])
    np.testing.assert_allclose(edges[:, :4, :4], expected, rtol=1e-5, atol=1e-5)
    assert np.all(edges[:, 4:] == 0) and np.all(edges[:, :, 4:] == 0)
    assert np.all(wide.graph.nodes[:, 4:] == 0)
    jobs = np.asarray(wide.job_nodes)
    np.testing.assert_allclose(jobs[:, :1, :4], small.job_nodes, rtol=1e-5, atol=1e-6)
    assert np.all(jobs[:, 1] == 0) and np.all(jobs[:, :, 4:] == 0)
    for name in ("steps_done", "since_sync", "since_switch", "moving", "job_mask"):
        got, value = getattr(wide, name), getattr(small, name)
        np.testing.assert_allclose(got[:, :1], value, rtol=1e-5, atol=1e-5, err_msg=name)
    for name in ("retarget", "lower"):
        got, value = getattr(wide.mask, name), getattr(small.mask, name)
        np.testing.assert_array_equal(got[:, :1], value, err_msg=name)
    np.testing.assert_array_equal(wide.mask.domains[:, :4], small.mask.domains)
    assert not np.any(wide.mask.domains[:, 4:]) and not np.any(wide.mask.retarget[:, 1])


def test_the_world_is_the_same_whatever_is_done(small):
    views = [steps.observation.view for _, steps in small]
    for view in views[1:]:
        for name, value in vars(views[0]).items():
            np.testing.assert_array_equal(getattr(view, name), value, err_msg=name)
    assert len(np.unique(np.asarray(views[0].bandwidth_gb_per_s)[:, 0, 1])) == 8


def test_reward_is_the_weighted_sum_of_its_parts(small):
    for _, steps in small:
        parts = steps.record.reward_parts
        expected = 0.7 * parts.efficiency + 0.3 * parts.utilisation
        expected = expected - 0.2 * parts.cost - 0.1 * parts.fairness
        np.testing.assert_allclose(steps.reward, expected, rtol=1e-5, atol=1e-6)


def test_reward_parts_by_hand(small):
    _, steps = small[1]
    record, parts = steps.record, steps.record.reward_parts
    progress = np.asarray(record.progress, np.float64)[:, 0]
    np.testing.assert_allclose(parts.efficiency, progress / 100.0 - 1.0, rtol=1e-5)
    free = np.asarray(steps.observation.view.gpus_available, np.float64)
    useful = progress * float(build_workload([JOB]).job(0).useful_tflop)
    np.testing.assert_allclose(parts.utilisation, useful / (free.sum(1) * 100 * 60), rtol=1e-5)
    assert np.all(np.asarray(parts.utilisation) <= 0.5), "the toy GEMM reaches half of the peak"
    used = np.asarray(record.cost.gpus_used, np.float64)[:, 0]
    price = np.array([1.0, 1.5, 2.0, 2.5])
    np.testing.assert_allclose(record.gpu_usd, (used * price).sum(1) / 60.0, rtol=1e-5)
    i, j = np.indices((4, 4))
    egress = np.where(i != j, 0.01 * (1 + i + 2 * j), 0.0)
    gigabytes = np.asarray(record.wan_gb) + np.asarray(record.migration_gb)
    np.testing.assert_allclose(record.egress_usd, (gigabytes * egress).sum((1, 2)), rtol=1e-5)
    np.testing.assert_allclose(parts.cost, record.egress_usd / record.gpu_usd, rtol=1e-5)
    load = (used + 8 - free) / 8
    np.testing.assert_allclose(parts.fairness, load.var(axis=1), rtol=1e-4, atol=1e-6)


def test_traffic_of_an_interval_is_that_of_its_steps(small):
    _, steps = small[2]
    record = steps.record
    taken = np.asarray(record.progress / record.cost.efficiency)[:, 0, None, None]
    per_step = np.asarray(record.cost.wan_gb)[:, 0]
    np.testing.assert_allclose(record.wan_gb, taken * per_step, rtol=1e-5)
    capacity = np.asarray(steps.observation.view.bandwidth_gb_per_s) * 60.0
    assert np.all(np.asarray(record.wan_gb + record.migration_gb) <= capacity * (1 + 1e-4))


def test_everything_is_finite(small):
    for states, steps in small:
        chex.assert_tree_all_finite((states.steps_done, states.transition, steps.observation))
        chex.assert_tree_all_finite((steps.reward, steps.record.reward_parts, steps.record.wan_gb))


def test_step_compiles_once_for_all_states_and_scenarios():
    for seed in range(3):
        params = scenario(seed)
        state, timestep = jit_reset(jax.random.key(seed), params)
        for row in (0, 1, 2):
            action = jax.tree.map(lambda x: x[None], PLANS[row])
            before = jax.tree.structure(state), jax.tree.map(lambda x: (x.shape, x.dtype), state)
            state, timestep = jit_step(KEY, state, action, params)
            after = jax.tree.structure(state), jax.tree.map(lambda x: (x.shape, x.dtype), state)
            assert before == after
    assert timestep.reward.shape == ()


def test_the_memory_of_a_scenario_is_quadratic_in_its_domains():
    def size(n_domains):
        shapes = jax.eval_shape(reset, KEY, scenario(pad_domains=n_domains))
        leaves = (x for x in jax.tree.leaves(shapes) if x.dtype != KEY.dtype)
        return sum(np.prod(x.shape, dtype=int) * x.dtype.itemsize for x in leaves)

    at = [4, 5, 6]
    quadratic = np.polyfit(at, [size(k) for k in at], 2)
    assert quadratic[0] < 200, "bytes for each pair of domains"
    np.testing.assert_allclose(np.polyval(quadratic, 40), size(40), rtol=1e-6)


@pytest.mark.slow
def test_vmap_over_scenarios_and_params_is_a_loop():
    many = [scenario(seed) for seed in range(3)]
    keys = jax.random.split(KEY, 3)
    menu = [actions(rows) for rows in SEQUENCES]
    stacked, moves = (stack(t) for t in (many, menu))
    states, steps = jax.jit(jax.vmap(play))(stacked, keys, moves)
    for b in range(3):
        one_states, one = play(many[b], keys[b], menu[b])
        np.testing.assert_allclose(steps.reward[b], one.reward, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(steps.record.progress[b], one.record.progress, rtol=1e-5)
        for name in ("group", "batch_share"):
            got = getattr(states.plan, name)[b]
            np.testing.assert_array_equal(got, getattr(one_states.plan, name))
    assert len(np.unique(np.asarray(steps.reward[:, 0]))) == 3


def test_truncated_at_the_horizon_and_terminated_by_the_budget(small):
    _, steps = small[0]
    np.testing.assert_array_equal(steps.truncated, [False] * 7 + [True])
    assert not np.any(steps.terminated)
    done = float(steps.record.progress[:3].sum()) + 0.5 * float(steps.record.progress[3, 0])
    params = scenario()
    budget = jnp.array([done], jnp.float32)
    params = params.replace(
        problem=params.problem.of(params.problem.work.replace(step_budget=budget))
    )
    states, ended = play(params, KEY, actions(SEQUENCES[0]))
    np.testing.assert_array_equal(ended.terminated, [False] * 3 + [True] * 5)
    assert not np.any(ended.truncated), "finished is not cut off"
    np.testing.assert_allclose(states.steps_done[-1, 0], done, rtol=1e-6)
    np.testing.assert_array_equal(ended.observation.job_mask[:, 0], [True] * 3 + [False] * 5)


@pytest.mark.slow
def test_auto_reset_keeps_the_final_observation():
    bank = [scenario(seed, horizon=jnp.int32(2)) for seed in range(2)]
    stacked = stack(bank)

    def draw(key):
        index = jax.random.randint(key, (), 0, 2)
        return jax.random.fold_in(key, 1), take(stacked, index)

    wrapped = jax.jit(chex.assert_max_traces(auto_reset(draw), n=1))
    params = bank[0]
    state, _ = jit_reset(KEY, params)
    action = jax.tree.map(lambda x: x[None], PLANS[1])
    for t in range(4):
        expected_state, expected = jit_step(KEY, state, action, params)
        key = jax.random.fold_in(KEY, t)
        new, timestep, in_force = wrapped(key, state, action, params)
        np.testing.assert_allclose(timestep.reward, expected.reward, rtol=1e-6)
        chex.assert_trees_all_close(timestep.final_observation, expected.observation, rtol=1e-6)
        over = t % 2 == 1
        assert bool(timestep.truncated) == over and int(new.t) == (1 if over else t % 2 + 2)
        if over:
            scenario_key, fresh = draw(jax.random.split(key)[1])
            chex.assert_trees_all_close(in_force, fresh, rtol=1e-6)
            fresh_state, first = jit_reset(scenario_key, fresh)
            np.testing.assert_allclose(
                timestep.observation.view.bandwidth_gb_per_s,
                first.observation.view.bandwidth_gb_per_s,
                rtol=1e-6,
            )
            np.testing.assert_array_equal(new.plan.group, fresh_state.plan.group)
            assert float(new.steps_done[0]) == 0.0
        else:
            chex.assert_trees_all_close(new.steps_done, expected_state.steps_done, rtol=1e-6)
            chex.assert_trees_all_close(in_force, params, rtol=1e-6)
        state, params = new, in_force


def two_jobs(spec, plan, action, budget=1e9):
    """Two equal jobs from one plan to another; the first has a budget [training steps]."""
    jobs = [JobSpec(JOB.model, 32, 1024, step_budget=budget), JOB]
    params = env_params(spec, JOB, plan, pad_domains=8, pad_jobs=2)
    both = [jax.tree.map(lambda x: jnp.stack([x, x]), pad_plan(p, 8)) for p in (plan, action)]
    params = params.replace(problem=params.problem.of(build_workload(jobs)), initial_plan=both[0])
    return play(params, KEY, held(both[1]))[1]


def held(plan):
    """Eight intervals of one action."""
    return jax.tree.map(lambda x: jnp.stack([x] * 8), plan)


def test_a_finished_job_frees_its_links_and_gpus():
    plan = make_plan([(0, 1)], [(3, 5)], [8], 4, dp=2, micro_batch=2)
    always, short = two_jobs(SPEC, plan, plan), two_jobs(SPEC, plan, plan, budget=1.0)
    params = env_params(SPEC, JOB, plan)
    _, alone = play(params, KEY, held(params.initial_plan))
    shared, freed = (np.asarray(s.record.progress)[:, 1] for s in (always, short))
    assert np.all(shared < 0.9 * np.asarray(alone.record.progress)[:, 0]), "they share the link"
    np.testing.assert_allclose(freed[1:], alone.record.progress[1:, 0], rtol=1e-5)
    np.testing.assert_allclose(short.record.gpu_usd[1:], alone.record.gpu_usd[1:], rtol=1e-5)
    efficiency = short.record.reward_parts.efficiency
    np.testing.assert_allclose(
        efficiency[1:], alone.record.reward_parts.efficiency[1:], rtol=1e-4, atol=1e-5
    )


def test_a_finished_job_moves_no_more():
    """Told to go elsewhere when it is done, it stays, and the other moves as if it were alone."""
    spec = cluster_spec(4, gpus=8, gbps=0.2)
    old = make_plan([(0,)], [(8,)], [8], 4, dp=2, micro_batch=2)
    new = make_plan([(1,)], [(8,)], [8], 4, dp=2, micro_batch=2)
    jobs = [JobSpec(JOB.model, 32, 1024, step_budget=1.0), JOB]
    params = env_params(spec, JOB, old, pad_domains=8, pad_jobs=2)

    def both(first, second):
        return stack([pad_plan(first, 8), pad_plan(second, 8)])

    params = params.replace(
        problem=params.problem.of(build_workload(jobs)), initial_plan=both(old, old)
    )
    ends = both(old, old)  # the first job is done after this interval
    moves, stays = both(new, new), both(old, new)
    told, alone = (play(params, KEY, stack([ends, *[after] * 7])) for after in (moves, stays))
    np.testing.assert_array_equal(told[1].record.switched[:, 0], False)
    assert not np.any(told[0].moving[:, 0])
    assert np.any(told[1].record.switched[:, 1])
    for name in ("migration_gb", "progress", "train_s"):
        got, value = getattr(told[1].record, name), getattr(alone[1].record, name)
        np.testing.assert_array_equal(got, value, err_msg=name)
    assert np.asarray(told[1].record.migration_gb).sum() > 0


def test_migrations_of_two_jobs_share_the_links():
    old = make_plan([(0,)], [(8,)], [8], 4, dp=2, micro_batch=2)
    new = make_plan([(1,)], [(8,)], [8], 4, dp=2, micro_batch=2)
    steps = two_jobs(cluster_spec(4, gpus=8, gbps=0.2), old, new)
    moved = np.asarray(steps.record.migration_gb)
    rate = 0.2 / 8 * 1.05 * 0.9
    np.testing.assert_allclose(moved[0, 0, 1], 50.0 * rate, rtol=1e-4)
    state_gb = 14 * float(build_workload([JOB]).job(0).gparams)
    np.testing.assert_allclose(moved.sum(axis=0)[0, 1], 2 * state_gb, rtol=1e-4)
    down_s = 10.0 + 2 * state_gb / rate
    trained = np.asarray(steps.record.train_s).sum(axis=0)
    np.testing.assert_allclose(trained, 480.0 - down_s, rtol=1e-3)


def test_who_moves_pays_for_the_bytes_of_the_move_too():
    spec = cluster_spec(2, gpus=8, gbps=1.0)
    here, there = (make_plan([(k,)], [(8,)], [8], 2, dp=2, micro_batch=1) for k in (0, 1))
    actions = stack([stack([there])] * 6)
    _, steps = play(env_params(spec, JOB, here), jax.random.key(0), actions)
    record = jax.tree.map(np.asarray, steps.record)
    price = np.asarray(spec.egress_usd_per_gb)
    assert record.migration_gb.sum() > 1.0 and price[0, 1] > 0.0
    gb = record.wan_gb + record.migration_gb
    np.testing.assert_allclose(record.egress_usd, (gb * price).sum(axis=(1, 2)), rtol=1e-5)


def test_two_jobs_share_gpus_and_links_from_the_first_moment():
    """Both want all eight GPUs of one domain; only the first gets them."""
    spec = cluster_spec(2, gpus=8, gbps=1.0)
    plan = make_plan([(0,)], [(8,)], [8], 2, dp=8, micro_batch=1)
    alone = env_params(spec, JOB, plan, pad_jobs=2)
    both = build_workload([JOB, JOB])
    plans = stack([jax.tree.map(jnp.asarray, plan)] * 2)
    params = alone.replace(problem=alone.problem.of(both), initial_plan=plans)
    _, timestep = jax.jit(reset)(jax.random.key(0), params)
    used = np.asarray(timestep.record.cost.gpus_used)
    assert used[0].sum() == 8 and used.sum() == 8
