"""Policy-guided search: between the bare policy and the planner, by how many rows are tried."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import ROWS, TABLE, restless_world

from agents.foresight import Rollout
from agents.hi_ppo.scheduler import HiPPO, PolicyParams, init_policy
from agents.hi_ppo.search import GuidedSearch, _proposed
from agents.hi_ppo.settings import Networks
from agents.protocol import find_row, make_setup
from jaxsim.env import reset, step
from jaxsim.trees import take

NETWORKS, STEPS, KEY = Networks(8), 8, jax.random.key(3)


def test_proposals_are_the_best_rows_behind_the_one_in_force():
    logits = jnp.array([0.1, 5.0, -1.0, 3.0])
    for count, expected in ((1, [2, 1]), (2, [2, 1, 3]), (9, [2, 1, 3, 0])):
        np.testing.assert_array_equal(_proposed(logits, jnp.int32(2), count), expected)


@functools.cache
def params():
    return restless_world(STEPS, restart_s=1.0)


@functools.cache
def policy():
    """Fresh, but for a score that is not zero: it does not play like the rule it starts from."""
    fresh = init_policy(jax.random.key(0), NETWORKS)
    score = fresh.upper["params"]["score"]
    drawn = jax.random.normal(jax.random.key(1), score["kernel"].shape)
    upper = {"params": {**fresh.upper["params"], "score": {**score, "kernel": drawn}}}
    return HiPPO(PolicyParams(upper, fresh.lower), jnp.int32(1), NETWORKS)


def rows_of(scheduler):
    """The row that is wanted in every interval of an episode."""
    setup = make_setup(params(), TABLE)
    bound = scheduler.bind(setup)

    @jax.jit
    def interval(state, observation, memory):
        plan, memory = bound.decide(KEY, observation, memory)
        row, found = find_row(TABLE, take(plan, 0))
        state, timestep = step(KEY, state, plan, params())
        return state, timestep.observation, memory, row, found

    state, timestep = jax.jit(reset)(KEY, params())
    observation, memory, rows = timestep.observation, bound.init(KEY), []
    for _ in range(STEPS):
        state, observation, memory, row, found = interval(state, observation, memory)
        assert found
        rows.append(int(row))
    return rows


@pytest.mark.nightly
def test_of_one_row_or_without_weight_it_is_the_bare_policy():
    bare, planner = rows_of(policy()), Rollout(futures=2, horizon=3)
    assert len(set(bare)) > 1
    assert rows_of(GuidedSearch(policy(), planner, rows=1)) == bare
    assert rows_of(GuidedSearch(policy(), planner, weight=0.0, rows=ROWS)) == bare


@pytest.mark.nightly
def test_with_all_the_weight_it_is_the_planner_whoever_proposes():
    """But for the first deployment, which is the policy's."""
    planner = Rollout(futures=4, horizon=6)
    alone = rows_of(planner)
    assert len(set(alone)) > 1 and alone != rows_of(policy())
    assert rows_of(GuidedSearch(policy(), planner, weight=1e6, rows=ROWS)) == alone
