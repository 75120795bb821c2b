"""Episodes as a host loop: equal to one compiled scan, the world's program compiled once."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from helpers.toy_world import JOB, cluster_spec

from agents.episodes import episode_metrics, play
from agents.foresight import distinct_transfers
from agents.many_jobs import job_metrics, make_jobs_setup
from agents.protocol import make_setup
from experiments.common import load_world
from experiments.evaluate import (
    Evaluator,
    contestants,
    evaluator,
    jobs_scenarios,
    named,
    play_jobs,
    requested,
    requested_for_jobs,
)
from experiments.evaluate import playing as programs
from experiments.evaluate.programs import (
    bound_scheduler,
    decide,
    first_timestep,
    rates_now,
    truths,
)
from jaxsim.load import SubmittedJob
from jaxsim.planning import Preference
from jaxsim.scenario import ScenarioSettings, build_jobs_world, jobs_bank, padded_world
from jaxsim.trees import take

INTERVALS = 6


@pytest.fixture(scope="module")
def world():
    return load_world(None, "gpt2-medium", 64, 1024, 6, layout_limit=50)[1]


@pytest.fixture(scope="module")
def bank(world):
    settings = ScenarioSettings(horizon=INTERVALS, jitter="uniform", uniform=0.5)
    return Evaluator(world, settings, range(2), "test", (1.0, 0.0, 0.0, 0.0))


# Ray scores the table once for each scenario, a self-tuning rule remembers much, an oracle is told.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("ray", marks=pytest.mark.nightly),
        pytest.param("self_tuning_hysteresis", marks=pytest.mark.nightly),
        pytest.param("replan_oracle", marks=pytest.mark.nightly),
    ],
)
def test_the_host_loop_comes_to_what_one_scan_does(world, bank, name):
    scheduler = named(name, world, {})
    metrics, episode = bank.play(scheduler)

    @jax.jit
    @jax.vmap
    def scanned(params, scored, truth, key, decision_key):
        setup = make_setup(params, world.table).replace(scored=scored)
        rest = (truth, key, decision_key, INTERVALS, truth.rates)
        whole = play(scheduler, params, setup, *rest)
        return episode_metrics(whole, params), whole

    keys = jax.random.split(jax.random.key(20), len(bank))
    expected = scanned(bank.taped, bank.scored, bank.truth, bank.keys, keys)
    for mine, theirs in zip((metrics, episode), expected, strict=True):
        close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
        jax.tree.map(close, mine, jax.tree.map(np.asarray, theirs))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["mast", "hysteresis"])
def test_many_jobs_in_the_host_loop_come_to_what_one_scan_does(name):
    """Of three scenarios at once, filled up to four; jobs of several kinds come while others train."""
    jobs = [
        SubmittedJob(f"row {i}", "toy", dataclasses.replace(JOB, step_budget=300.0, arrival_s=at_s))
        for i, at_s in enumerate((0.0, 0.0, 200.0))
    ]
    world = build_jobs_world(cluster_spec(3, gpus=4, gbps=2.0), jobs, table_size=18)
    settings = ScenarioSettings(horizon=INTERVALS, load_share=0.3, load_swing=0.6)
    scenarios = jobs_scenarios(
        world, *jobs_bank(world, settings, range(3), "test"), settings.horizon
    )
    (one,) = requested_for_jobs(name, None)
    found = list(play_jobs(one, world, scenarios))

    @jax.jit
    def scanned(params, key, views, alone_s):
        setup = make_jobs_setup(params, world)
        whole = play(one.of(world), params, setup, views, key, jax.random.key(20), INTERVALS)
        return job_metrics(whole, params, alone_s, views.gpus_available[1:])

    assert len(found) == 3
    for mine, scenario in zip(found, scenarios, strict=True):
        theirs = jax.tree.map(np.asarray, scanned(*scenario))
        close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
        jax.tree.map(close, mine, theirs)


def test_fewer_intervals_are_the_start_of_the_whole(world, bank):
    scheduler = named("hysteresis", world, {})
    whole, start = bank.play(scheduler)[1], bank.play(scheduler, intervals=3)[1]
    jax.tree.map(np.testing.assert_array_equal, start, jax.tree.map(lambda x: x[:, :3], whole))


def test_another_scheduler_compiles_its_decision_alone(world, bank):
    bank.play(named("hysteresis", world, {}))
    compiled = programs.stepped._cache_size(), programs.decided._cache_size()
    bank.play(named("hysteresis", world, {"hysteresis_horizon": 3.0}))
    assert (programs.stepped._cache_size(), programs.decided._cache_size()) == compiled
    bank.play(named("smoothed_hysteresis", world, {}))
    assert programs.stepped._cache_size() == compiled[0]
    assert programs.decided._cache_size() == compiled[1] + 1


def test_a_timed_decision_is_the_one_that_scores_the_table_itself(world, bank):
    """What scores the table is one program for all, and the plan is the same."""
    before = rates_now._cache_size()
    for name in ("hysteresis", "best_static"):
        assert np.all(bank.decision_ms(named(name, world, {}), calls=2) > 0)
    assert rates_now._cache_size() == before + 1
    params, scored, key = jax.device_put(take((bank.taped, bank.scored, bank.keys), 0))
    setup = make_setup(params, world.table).replace(scored=scored)
    seen = first_timestep(key, params)[1].observation
    bound, memory = bound_scheduler(named("hysteresis", world, {}), setup)
    rates = rates_now(setup, seen)
    alone, told = (decide(bound, (), one, memory)[0] for one in (seen, seen.replace(rates=rates)))
    jax.tree.map(np.testing.assert_array_equal, alone, told)


def test_what_is_computed_once_is_not_computed_in_every_interval(world, bank):
    """Ray's rates without links: they reach the decision as an argument."""
    scheduler = named("ray", world, {})
    setup = make_setup(take(bank.taped, 0), world.table).replace(scored=take(bank.scored, 0))
    ready = scheduler.bind(setup)
    (own,) = programs._own(scheduler, setup, ready)
    np.testing.assert_array_equal(own, ready.blind)
    other = programs._with_own(scheduler, setup, [own * 0.0])
    np.testing.assert_array_equal(other.blind, np.zeros_like(own))


@pytest.mark.nightly
@pytest.mark.parametrize("load", [0.0, 0.5], ids=["links", "load"])
def test_domains_and_rows_that_are_not_there_change_nothing_that_is_played(load):
    """Every scheduler decides and the world moves as without them; so do the oracles."""
    spec, world, _ = load_world(None, "gpt2-medium", 64, 1024, 6, layout_limit=50, loaded=True)
    padded = padded_world(world, spec, spec.n_domains + 2)
    assert padded.table.size > world.table.size
    settings = ScenarioSettings(
        horizon=INTERVALS, jitter="uniform", uniform=0.5, base_spread=0.3, load_share=load
    )
    bare, more = (
        Evaluator(one, settings, range(2), "test", (1.0, 0.0, 0.0, 0.0)) for one in (world, padded)
    )
    policy = requested("hi_ppo")[1]
    for name in ("best_static", "hysteresis", "rollout", "replan_oracle", "clairvoyant", "hi_ppo"):
        played = (
            bank.play(contestants(name, policy, {}, bank.world)[0].scheduler)
            for bank in (bare, more)
        )
        (mine, course), (theirs, other) = played
        np.testing.assert_allclose(mine.progress, theirs.progress, rtol=2e-5, err_msg=name)
        k = spec.n_domains
        np.testing.assert_array_equal(course.plan.group, other.plan.group[..., :k], err_msg=name)
        assert not other.plan.used[..., k:].any()


@pytest.mark.nightly
def test_where_nothing_moves_the_table_is_scored_once(world, monkeypatch):
    settings = ScenarioSettings(horizon=INTERVALS, jitter="none", base_spread=0.3)
    still = Evaluator(world, settings, range(2), "test", (1.0, 0.0, 0.0, 0.0))
    asked, program = [], evaluator.rates_under
    monkeypatch.setattr(
        evaluator,
        "rates_under",
        lambda *args: asked.append(args[3].rtt_s.shape[1]) or program(*args),
    )
    once = still._rates_along(still.taped, known=False)
    monkeypatch.setattr(evaluator, "FEW", 0)
    each = still._rates_along(still.taped, known=False)
    assert asked == [1, evaluator.VIEWS] and once.shape[1] == INTERVALS + 1
    np.testing.assert_allclose(once, each, rtol=1e-6)


@pytest.mark.nightly
def test_weights_that_were_prepared_are_not_scored_again(bank, monkeypatch):
    preferences = [Preference((1.0, 0.0, 0.0, 0.0)), Preference((0.5, 0.0, 0.5, 0.0))]
    bank.weigh(preferences)
    monkeypatch.setattr(bank, "_rates_along", None)  # whoever asks for it now fails
    rates, usual = (bank.weighed(w, oracle=False)[3] for w in reversed(preferences))
    assert rates.shape == usual.shape and np.any(rates != usual)


@pytest.mark.nightly
def test_the_future_solved_for_many_preferences_is_that_of_each_alone(bank):
    preferences = [Preference((0.5, 0.0, 0.5, 0.0)), Preference((0.2, 0.0, 0.8, 0.0), 500.0)]
    bank.weigh(preferences, oracle=True)
    table = bank.world.table
    transfers = distinct_transfers(table.plans, bank.world.problem.job(0))
    for asked in preferences:
        params, _, together, rates = bank.weighed(asked)
        alone = jax.device_get(truths(table, transfers, params, rates))
        np.testing.assert_array_equal(together.best, alone.best)
        np.testing.assert_allclose(together.value, alone.value, rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(together.start_value, alone.start_value, rtol=1e-5)
    first, second = (bank.weighed(asked)[2].value for asked in preferences)
    assert np.any(first != second)
