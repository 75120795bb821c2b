"""Plans under many networks: the same numbers however the views are told and however many there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec, env_params, make_plan

from jaxsim.planning import (
    NEVER,
    choice_rates,
    choice_worths,
    complete,
    gpus_once,
    row_rates,
    row_worths,
    same_gpus,
)
from jaxsim.planning.objective import Objective
from jaxsim.planning.scoring import VIEWS_TOGETHER, best_rate
from jaxsim.step_time import NetworkView, job_step_cost
from jaxsim.trees import stack, take

N_VIEWS = VIEWS_TOGETHER + 3  # a whole block and a rest
PLANS = stack(
    [
        make_plan([(0, 1)], [(4, 4)], [8], dp=2, micro_batch=2),
        make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], dp=2, micro_batch=2),
        make_plan([(1,)], [(8,)], [8], 2, dp=4, micro_batch=1),
    ]
)


@pytest.fixture(scope="module")
def world():
    params = env_params(cluster_spec(2, gpus=4), JOB, take(PLANS, 0), efficiency=calibration())
    problem = params.problem.job(0)
    cluster, rng = problem.cluster, np.random.default_rng(0)
    factor = jnp.asarray(rng.uniform(0.05, 2.0, (N_VIEWS, 2, 2)), jnp.float32)
    views = NetworkView(
        cluster.bandwidth_gb_per_s[None] * factor,
        jnp.broadcast_to(cluster.rtt_s, (N_VIEWS, 2, 2)),
        jnp.broadcast_to(cluster.gpus, (N_VIEWS, 2)),
    )
    choice = jnp.asarray(rng.integers(0, problem.choices.size, (N_VIEWS, 3)), jnp.int32)
    return problem, views, choice


@jax.jit
def one_rate(problem, view, plan, choice):
    """The definition: a complete plan's step, one at a time."""
    done, legal = complete(plan, choice, problem, view)
    cost = job_step_cost(done, problem, view, schedules=problem.choices.schedules)
    return jnp.where(legal & cost.runs, cost.efficiency / cost.step_s, 0.0)


def test_every_rate_is_that_of_the_plan_alone(world):
    problem, views, choice = world
    rates = jax.jit(choice_rates)(PLANS, views, problem)
    rows = jax.jit(row_rates)(PLANS, choice, views, problem)
    assert rates.shape == (N_VIEWS, 3, problem.choices.size) and rows.shape == (N_VIEWS, 3)
    for w in (0, 1, VIEWS_TOGETHER - 1, VIEWS_TOGETHER, N_VIEWS - 1):
        for p in range(3):
            view, plan = take(views, w), take(PLANS, p)
            for v in range(problem.choices.size):
                alone = one_rate(problem, view, plan, jnp.int32(v))
                assert rates[w, p, v] == pytest.approx(float(alone), rel=1e-5)
            chosen = one_rate(problem, view, plan, choice[w, p])
            assert rows[w, p] == pytest.approx(float(chosen), rel=1e-5)
    assert len(np.unique(np.asarray(rates))) > N_VIEWS  # links and choices are felt


@pytest.mark.nightly
def test_gpus_may_be_told_once_where_they_are_the_same(world):
    problem, views, choice = world
    once = same_gpus(views)
    assert once.gpus_available.shape == (2,)
    scale = (Objective.of((1.0, 0.5, 2.0, 0.5)), jnp.float32(20.0), jnp.float32(60.0))

    @jax.jit
    def some(views):
        return (
            best_rate(PLANS, choice[0], views, problem),
            choice_worths(PLANS, views, problem, *scale),
            row_worths(PLANS, choice, views, problem, *scale),
            row_worths(PLANS, choice[0], views, problem, *scale),
        )

    found, expected = some(once), some(views)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), found, expected)
    assert float(jnp.max(found[1])) > NEVER


def test_gpus_are_told_once_only_where_all_views_find_the_same(world):
    views = world[1]
    assert np.array_equal(gpus_once(views).gpus_available, views.gpus_available[0])
    one_less = views.replace(gpus_available=views.gpus_available.at[-1, 0].add(-1))
    assert gpus_once(one_less) is one_less


def test_a_choice_may_be_told_once_where_it_is_the_same(world):
    problem, views, choice = world
    rates = np.asarray(jax.jit(choice_rates)(PLANS, views, problem))
    expected = rates[:, np.arange(3), np.asarray(choice[0])]
    assert expected.any(axis=0).sum() > 1 and len(np.unique(expected)) > N_VIEWS
    rows = jax.jit(row_rates)(PLANS, choice[0], same_gpus(views), problem)
    np.testing.assert_allclose(rows, expected, rtol=1e-5)


def test_pairs_that_are_not_asked_for_are_nothing(world):
    problem, views, _ = world
    n_choices = problem.choices.size
    pairs = jnp.arange(0, 3 * n_choices, 2, dtype=jnp.int32)
    some = np.asarray(jax.jit(choice_rates)(PLANS, views, problem, pairs)).reshape(N_VIEWS, -1)
    whole = np.asarray(jax.jit(choice_rates)(PLANS, views, problem)).reshape(N_VIEWS, -1)
    np.testing.assert_allclose(some[:, ::2], whole[:, ::2], rtol=1e-6)
    assert not np.any(some[:, 1::2])
