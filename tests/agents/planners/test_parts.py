"""Planners under local load: plans for parts of the GPUs, and the one that suits the whole range."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers.rival_worlds import EVERYONE, MENU, SMALL
from helpers.rival_worlds import builder as rival_builder
from helpers.toy_world import calibration, cluster_spec

from jaxsim.planning import PARTS, WHOLE, TableBuilder
from jaxsim.planning import candidates as proposals
from jaxsim.scenario.scenario import sample_views
from jaxsim.workload.workload import build_workload

pytestmark = pytest.mark.slow
PLANNERS = ("megatron", "zero", "alpa", "crosspipe", "hyperion", "dt_fm", "sailor")
GPUS = 4


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
    return builder, proposals_of(builder, PLANNERS, PARTS)


@pytest.mark.parametrize("name", PLANNERS)
def test_plans_for_parts_are_as_good_as_those_for_every_number_of_gpus(small, name):
    builder, proposed = small
    every = []
    for gpus in itertools.product(range(1, GPUS + 1), repeat=2):
        less = dataclasses.replace(builder.spec, gpus=gpus, gpus_per_node=gpus)
        other = TableBuilder(less, builder.problem.work, calibration(), MENU)
        every += EVERYONE[name].propose(other, EVERYONE[name].allowed(MENU))
    reached = best_in_the_mean(builder, name, proposed[name])
    assert reached >= 0.95 * best_in_the_mean(builder, name, every)


@pytest.mark.nightly
def test_pipelines_that_fill_their_domains_need_plans_for_parts():
    """With the rest of the GPUs taken, a replica over all of them trains nothing."""
    b, names = rival_builder("embedded"), ("alpa", "dt_fm", "hyperion", "sailor")
    whole, parts = (proposals_of(b, names, x) for x in (WHOLE, PARTS))
    gain = {n: best_in_the_mean(b, n, parts[n]) / best_in_the_mean(b, n, whole[n]) for n in names}
    assert min(gain.values()) >= 1.0 - 1e-6, gain
    assert min(gain[n] for n in names[:3]) > 1.1, gain
