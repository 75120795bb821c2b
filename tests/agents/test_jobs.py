"""Many jobs under every scheduler: taking turns, waiting, MAST's regions, what an episode comes to."""

import functools

import jax
import numpy as np
import pytest
from toy_world import JOB, cluster_spec

from agents.jobs import make_jobs_setup
from agents.jobs_metrics import completion_alone_s, job_metrics
from agents.jobs_registry import make_jobs_by_name
from agents.registry import SchedulerSettings
from agents.rollout import play
from jaxsim.env import world_tape
from jaxsim.jobs_file import SubmittedJob
from jaxsim.jobs_world import build_jobs_world, jobs_bank
from jaxsim.scenario import ScenarioSettings
from jaxsim.workload import JobSpec

SPEC = cluster_spec(3, gpus=4, gbps=2.0)
HORIZON = 24
SETTINGS = ScenarioSettings(horizon=HORIZON, load_share=0.3, load_swing=0.6)
KINDS = (JOB.model, 32, 1024)
PLAYED = ("single_domain", "hysteresis", "mast", "replan_oracle")


def submitted(*rows):
    """(arrival [s], training steps) each."""
    return [
        SubmittedJob(f"row {i}", "toy", JobSpec(*KINDS, step_budget=budget, arrival_s=at_s))
        for i, (at_s, budget) in enumerate(rows)
    ]


@pytest.fixture(scope="module")
def world():
    jobs = submitted((0, 900), (0, 400), (100, 700), (130, 300), (400, 500))
    return build_jobs_world(SPEC, jobs, table_size=6)


@pytest.fixture(scope="module")
def bank(world):
    return jobs_bank(world, SETTINGS, range(2), "test")


def episode_of(name, world, bank, which=0):
    params, key = jax.tree.map(lambda x: x[which], bank)
    make = make_jobs_by_name(name, SchedulerSettings())
    return _play(make, world, params, key)


@functools.partial(jax.jit, static_argnums=0)
def _play(make, world, params, key):
    views = world_tape(params, key, HORIZON + 1)
    setup = make_jobs_setup(params, world)
    episode = play(make, params, setup, views, key, jax.random.key(1), HORIZON)
    alone_s = completion_alone_s(params, world, views)
    return episode, job_metrics(episode, params, alone_s, views.gpus_available[1:]), alone_s


@pytest.fixture(scope="module")
def played(world, bank):
    return {name: episode_of(name, world, bank) for name in PLAYED}


@pytest.mark.parametrize("name", PLAYED)
def test_every_scheduler_runs_the_jobs_without_a_leak(played, name):
    episode, metrics, _ = played[name]
    print(name, jax.tree.map(np.asarray, metrics))
    assert float(metrics.overcommitted) == 0
    assert np.asarray(metrics.progress).sum() > 0
