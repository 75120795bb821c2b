"""Planners under local load: plans for parts of the GPUs, and the one that suits the whole range."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from helpers.rival_worlds import EVERYONE, MENU, SMALL
from helpers.rival_worlds import builder as rival_builder
from helpers.toy_world import calibration, cluster_spec

from jaxsim.env import world_tape
from jaxsim.planning import ASKED_PARTS, WHOLE, TableBuilder
from jaxsim.planning import candidates as proposals
from jaxsim.scenario import ScenarioSettings, build_world, sample_views, scenario_bank
from jaxsim.workload.workload import build_workload

pytestmark = pytest.mark.nightly
PLANNERS = ("megatron", "zero", "alpa", "crosspipe", "hyperion", "dt_fm", "sailor")
GPUS, SCENARIOS = 4, 24


def states(builder):
    """Of links and load: in half of them local jobs hold some of the GPUs."""
    views = sample_views(builder.problem.cluster, 32, 0, loaded=True)
    assert np.unique(np.asarray(views.gpus_available)).size > 2
    return views


def best_in_the_mean(builder, name, plans):
    """[training steps / s] of the best of the plans that never change."""
    rates = builder.choice_rates(plans, states(builder)) * EVERYONE[name].allowed(MENU)
    return rates.max(axis=-1).mean(axis=0).max()


def proposals_of(builder, names, parts):
    rules = {name: EVERYONE[name] for name in names}
    args = (builder.spec, builder.problem.work, builder.problem.calibration, rules)
    return proposals.propose_candidates(*args, parts=parts)[1]


@pytest.fixture(scope="module")
def small():
    """Two domains of four GPUs, and what planners propose for parts of them."""
    spec, work = cluster_spec(2, gpus=GPUS, gbps=40.0), build_workload([SMALL]).job(0)
    builder = TableBuilder(spec, work, calibration(), MENU)
    return builder, proposals_of(builder, PLANNERS, ASKED_PARTS)


def every_number_of_gpus(builder, name, gpus):
    """What a planner proposes for every number of GPUs of two domains."""
    found = []
    for some in itertools.product(range(1, gpus + 1), repeat=2):
        less = dataclasses.replace(builder.spec, gpus=some, gpus_per_node=some)
        other = TableBuilder(less, builder.problem.work, calibration(), MENU)
        found += EVERYONE[name].propose(other, EVERYONE[name].allowed(MENU))
    return found


@pytest.mark.parametrize("name", PLANNERS)
def test_plans_for_parts_are_as_good_as_those_for_every_number_of_gpus(small, name):
    builder, proposed = small
    every = every_number_of_gpus(builder, name, GPUS)
    reached = best_in_the_mean(builder, name, proposed[name])
    assert reached >= 0.95 * best_in_the_mean(builder, name, every)


@pytest.fixture(scope="module")
def half_taken():
    """Two domains of eight GPUs of which local jobs hold 50 % +- 20 %, what planners propose, and 192
    states: eight moments of each scenario."""
    spec = cluster_spec(2, gpus=8, gbps=40.0)
    builder = TableBuilder(spec, build_workload([SMALL]).job(0), calibration(), MENU)
    world, _ = build_world(spec, SMALL, 8, 50, calibration(), loaded=True)
    load = {"load_share": 0.5, "load_swing": 0.2}
    settings = ScenarioSettings(jitter="uniform", base_spread=0.25, horizon=8, **load)
    bank = scenario_bank(world, settings, range(SCENARIOS), "test")
    views = jax.vmap(lambda params, key: world_tape(params, key, 8))(*bank)
    views = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), views)
    return builder, proposals_of(builder, PLANNERS, ASKED_PARTS), views


@pytest.mark.nightly
@pytest.mark.parametrize("name", PLANNERS)
def test_with_half_of_the_gpus_taken_no_planner_is_understated(half_taken, name):
    """The best plan that never changes is within the interval of the one that brute force finds."""
    builder, proposed, views = half_taken

    def each_scenario(plans):
        rates = builder.choice_rates(plans, views) * EVERYONE[name].allowed(MENU)
        by_state = rates.max(axis=-1)
        best = by_state[:, by_state.mean(axis=0).argmax()]
        return best.reshape(SCENARIOS, -1).mean(axis=1)

    found = each_scenario(proposed[name])
    interval = 1.96 * found.std(ddof=1) / SCENARIOS**0.5
    assert found.mean() >= each_scenario(every_number_of_gpus(builder, name, 8)).mean() - interval


@pytest.mark.nightly
def test_pipelines_that_fill_their_domains_need_plans_for_parts():
    """With the rest of the GPUs taken, a replica over all of them trains nothing."""
    b, names = rival_builder("embedded"), ("alpa", "dt_fm", "hyperion", "sailor")
    whole, parts = (proposals_of(b, names, x) for x in (WHOLE, ASKED_PARTS))
    gain = {n: best_in_the_mean(b, n, parts[n]) / best_in_the_mean(b, n, whole[n]) for n in names}
    assert min(gain.values()) >= 1.0 - 1e-6, gain
    assert min(gain[n] for n in names[:3]) > 1.1, gain
