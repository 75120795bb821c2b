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
from jaxsim.planning.enumeration import PlanTable

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
