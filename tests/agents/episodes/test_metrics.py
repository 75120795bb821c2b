"""What an episode comes to: figures that are not defined are missing, not flattering."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, cluster_spec, env_params, make_plan

from agents.baselines.static import StaticPlan
from agents.episodes.metrics import episode_metrics
from agents.episodes.rollout import play
from agents.protocol import make_setup
from jaxsim.planning.table import PlanTable

STEPS = 3
PLAN = make_plan([(0, 1)], [(4, 4)], [8], dp=2, micro_batch=2)


@functools.cache
def an_episode():
    """Params, and an episode of the right shape in which every number is one."""
    params = env_params(cluster_spec(), JOB, PLAN)
    one = jnp.ones(1, jnp.float32)
    plans = jax.tree.map(lambda x: jnp.asarray(x)[None], PLAN)
    table = PlanTable(plans, one > 0, one, one > 0, one > 0)

    def run(key):
        setup = make_setup(params, table)
        return play(StaticPlan(), params, setup, None, key, key, STEPS)

    shapes = jax.eval_shape(run, jax.random.key(0))
    return params, jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)


def overlap(train_s, wan_busy_s, exposed_s):
    """The metric of three intervals."""
    params, episode = an_episode()
    columns = [jnp.asarray(x, jnp.float32)[:, None] for x in (train_s, wan_busy_s, exposed_s)]
    cost = episode.record.cost.replace(
        wan_busy_s=columns[1], exposed_wan_s=columns[2], sync_s=0.0 * columns[2]
    )
    record = episode.record.replace(train_s=columns[0], cost=cost)
    return jax.jit(episode_metrics)(episode.replace(record=record), params).overlap


@pytest.mark.parametrize(
    ("train_s", "wan_busy_s", "expected"),
    [
        ((60, 60, 60), (4, 4, 4), 0.75),  # of 4 s of traffic 1 s shows
        ((60, 60, 60), (4, 0, 2), 0.625),  # without traffic there is nothing to overlap
        ((60, 60, 0), (4, 4, 1), 0.75),  # nor where the job never ran
        ((60, 60, 60), (0, 0, 0), np.nan),
        ((0, 0, 0), (4, 4, 4), np.nan),
    ],
)
def test_overlap_is_the_mean_over_the_intervals_with_traffic(train_s, wan_busy_s, expected):
    np.testing.assert_allclose(overlap(train_s, wan_busy_s, (1, 1, 1)), expected, rtol=1e-6)


def an_eventful_episode():
    """Params and three intervals of numbers that are all different; the job never ran in the last."""
    params, episode = an_episode()
    rng = np.random.default_rng(0)
    drawn = jax.tree.map(
        lambda x: (
            jnp.asarray(rng.uniform(0.5, 2.0, x.shape), x.dtype) if x.dtype == jnp.float32 else x
        ),
        episode,
    )
    runs = jnp.array([1.0, 1.0, 0.0], jnp.float32)[:, None]
    record = drawn.record.replace(
        progress=drawn.record.progress * runs,
        train_s=drawn.record.train_s * runs,
        switched=jnp.array([True, False, True])[:, None],
    )
    memory = record.cost.memory_gb.at[:, 0, 1].set(0.0)  # the second domain is not used
    return params, drawn.replace(record=record.replace(cost=record.cost.replace(memory_gb=memory)))


def test_every_figure_of_an_episode_by_hand():
    params, episode = an_eventful_episode()
    found = jax.tree.map(float, jax.jit(episode_metrics)(episode, params))
    record = jax.tree.map(lambda x: np.asarray(x, float), episode.record)
    cost, parts, ran = record.cost, record.reward_parts, slice(0, 2)
    steps = (record.progress / cost.efficiency)[:, 0]
    step_s = cost.step_s[ran, 0]
    moved_gb = record.wan_gb.sum() + record.migration_gb.sum()
    carried_gb = float(episode.bandwidth_gb_per_s.sum()) * 60.0
    tokens = steps.sum() * float(params.problem.work.tokens_per_step[0])
    ratio = cost.communication_s[ran, 0] / cost.compute_s[ran, 0]
    assert min(record.wan_gb.sum(), record.migration_gb.sum()) > 0.2 * moved_gb
    expected = {
        "progress": record.progress.sum(),
        "step_s": (steps[ran] * step_s).sum() / steps.sum(),
        "step_s_std": step_s.std(),
        "tokens_per_s": tokens / 180.0,
        "utilisation": parts.utilisation.mean(),
        "memory_utilisation": cost.memory_gb[ran, 0, 0].mean() / 80.0,
        "bandwidth_utilisation": moved_gb / carried_gb,
        "comm_to_compute": ratio.mean(),
        "wan_gb_per_step": moved_gb / steps.sum(),
        "usd_per_mtoken": (record.egress_usd + record.gpu_usd).sum() / (tokens / 1e6),
        "efficiency": record.progress.sum() / steps.sum(),
        "effective_tokens_per_s": record.progress.sum() / steps.sum() * tokens / 180.0,
        "usd_per_effective_mtoken": (record.egress_usd + record.gpu_usd).sum()
        / (record.progress.sum() / steps.sum() * tokens / 1e6),
        "replans": 1.0,  # the first interval deploys
        "reward": float(episode.reward.mean()),
        "reward_eff": parts.efficiency.mean(),
        "reward_util": parts.utilisation.mean(),
        "reward_cost": parts.cost.mean(),
        "reward_fair": parts.fairness.mean(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-5, err_msg=name)
    assert set(expected) | {"overlap"} == set(vars(found))


def test_a_job_of_less_than_a_token_a_second_has_its_efficiency():
    params, episode = an_eventful_episode()
    work = params.problem.work
    slow = params.replace(
        problem=params.problem.replace(
            work=work.replace(tokens_per_step=jnp.full_like(work.tokens_per_step, 1e-3))
        )
    )
    usual, found = (jax.jit(episode_metrics)(episode, p) for p in (params, slow))
    assert 0 < float(found.tokens_per_s) < 1
    np.testing.assert_allclose(found.efficiency, usual.efficiency, rtol=1e-5)


def test_an_idle_job_has_no_step_time_and_no_traffic_per_step():
    params, episode = an_eventful_episode()
    nothing = 0.0 * episode.record.progress
    idle = episode.replace(record=episode.record.replace(progress=nothing, train_s=nothing))
    found = jax.tree.map(float, jax.jit(episode_metrics)(idle, params))
    assert found.progress == 0 and found.tokens_per_s == 0
    undefined = ("step_s", "step_s_std", "memory_utilisation", "comm_to_compute", "overlap")
    undefined += ("wan_gb_per_step", "usd_per_mtoken", "efficiency", "usd_per_effective_mtoken")
    for name in undefined:
        assert np.isnan(getattr(found, name)), name
