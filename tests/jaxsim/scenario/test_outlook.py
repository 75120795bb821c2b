"""Samples of the states to be expected: independent of one another, of the scenario's own course, and
of the bank that they are drawn in."""

import dataclasses

import jax
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec, make_plan

from jaxsim.env import world_tape
from jaxsim.plan import Problem
from jaxsim.plan.plan import default_lower_choices
from jaxsim.planning.table import PlanTable
from jaxsim.scenario import (
    OUTLOOK,
    Draw,
    ScenarioSettings,
    World,
    drawn_bank,
    other_draws,
    outlook_of,
)
from jaxsim.trees import stack, take
from jaxsim.workload.workload import build_workload

PLAN = make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2)
# Links that stay for hours where they are: a course of one draw says little of what is to be expected.
SLOW = ScenarioSettings(
    ou_tau=(500.0, 500.0), ou_sigma=(0.3, 0.3), white=(0.0, 0.0), base_spread=0.25, horizon=64
)


def toy_world():
    plans = stack([PLAN])
    yes = np.ones(1, bool)
    table = PlanTable(plans, yes, np.ones(1, np.float32), yes, ~yes)
    parts = (build_workload([JOB]), cluster_spec().to_arrays(), calibration())
    return World(Problem(*parts, default_lower_choices()), table, plans)


def bank(seeds, settings=SLOW, split="a"):
    """Params [S], keys [S] and samples [S, W] of a bank."""
    world, draws = toy_world(), [Draw(settings, seed) for seed in seeds]
    params, keys = drawn_bank(world, draws, split, references=False)
    return params, keys, outlook_of(other_draws(world, draws, split), params, settings.horizon)


def logs(samples, params):
    """[S, W] log of one link's bandwidth over the scenario's own base."""
    base = np.asarray(params.problem.cluster.bandwidth_gb_per_s)[:, None]
    return np.log((samples.bandwidth_gb_per_s / np.where(base > 0, base, np.inf))[..., 0, 1])


def test_samples_of_a_scenario_do_not_hang_together_however_slowly_links_move():
    params, _, samples = bank(
        range(0, 24 * OUTLOOK, OUTLOOK)
    )  # none has a draw in common with another
    now, before = (logs(x, params) for x in (samples.now, samples.before))
    assert now.shape == (24, OUTLOOK)
    # A mean over them strays by 0.3 / sqrt(W); one course of as many intervals by nearly 0.3.
    assert now.mean(axis=1).std() == pytest.approx(now.std() / np.sqrt(OUTLOOK), rel=0.5)
    neighbours = np.corrcoef(now[:, :-1].ravel(), now[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 0.06  # of one course it is 0.998
    # The state before each is that of the same course: exp(-1 / 500) alike.
    assert np.corrcoef(now.ravel(), before.ravel())[0, 1] > 0.99
    assert (now != before).any(axis=1).all()


def test_they_lie_at_the_scenario_s_base_and_are_not_of_its_course():
    params, keys, samples = bank(range(40))
    base = np.asarray(params.problem.cluster.bandwidth_gb_per_s)
    assert np.abs(logs(samples.now, params).mean(axis=1)).max() < 5 * 0.3 / np.sqrt(OUTLOOK)
    assert np.std(base[:, 0, 1]) > 0
    own = [world_tape(take(params, i), keys[i], 1).bandwidth_gb_per_s[0, 0, 1] for i in range(40)]
    own = np.log(np.asarray(own) / base[:, 0, 1])
    assert abs(np.corrcoef(own, logs(samples.now, params).mean(axis=1))[0, 1]) < 0.5


@pytest.mark.parametrize("load", [{}, {"load_share": 0.5, "load_job_share": 0.25}])
def test_a_scenario_s_samples_are_the_same_in_every_bank_and_others_in_every_split(load):
    settings = dataclasses.replace(SLOW, **load)
    _, _, alone = bank([3], settings)
    _, _, among = bank(range(6), settings)
    jax.tree.map(np.testing.assert_array_equal, take(alone, 0), take(among, 3))
    _, _, other = bank([3], settings, split="b")
    assert not np.array_equal(other.now.bandwidth_gb_per_s, alone.now.bandwidth_gb_per_s)


def test_an_episode_of_one_interval_has_samples_too():
    _, _, samples = bank([0], dataclasses.replace(SLOW, horizon=1))
    assert samples.now.bandwidth_gb_per_s.shape[:2] == (1, OUTLOOK)
