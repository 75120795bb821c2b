"""Many jobs under every scheduler: taking turns, waiting, MAST's regions, what an episode comes to."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from helpers.schedulers import bound
from helpers.toy_world import JOB, cluster_spec

from agents.episodes.rollout import play
from agents.many_jobs import mast as jobs_mast
from agents.many_jobs.metrics import (
    completion_alone_s,
    job_metrics,
    utilisation_alone,
)
from agents.many_jobs.scheduling import PerJobScheduler, make_jobs_setup
from agents.protocol import Estimate, Scheduler, make_setup
from agents.registry import find, jobs_names, make_for_jobs
from jaxsim.env.env import reset, step, world_tape
from jaxsim.files.errors import InputError
from jaxsim.load.jobs_file import SubmittedJob
from jaxsim.load.local_jobs import load_process
from jaxsim.planning import base_view, one_view, score_plans
from jaxsim.scenario import ScenarioSettings
from jaxsim.scenario.jobs import build_jobs_world, jobs_bank
from jaxsim.trees import take
from jaxsim.workload.workload import JobSpec, ModelConfig

pytestmark = pytest.mark.nightly  # as a whole: its tests share what takes long to compile

SPEC = cluster_spec(3, gpus=4, gbps=2.0)
HORIZON = 24
SETTINGS = ScenarioSettings(horizon=HORIZON, load_share=0.3, load_swing=0.6)
KINDS = (JOB.model, 32, 1024)
ARRIVALS = [0, 0, 100, 130, 400]


def submitted(*rows):
    """(arrival [s], training steps) each."""
    return [
        SubmittedJob(f"row {i}", "toy", JobSpec(*KINDS, step_budget=budget, arrival_s=at_s))
        for i, (at_s, budget) in enumerate(rows)
    ]


@pytest.fixture(scope="module")
def world():
    budgets = (900, 400, 700, 300, 500)
    return build_jobs_world(SPEC, submitted(*zip(ARRIVALS, budgets, strict=True)), table_size=18)


@pytest.fixture(scope="module")
def bank(world):
    params, keys = jobs_bank(world, SETTINGS, range(1), "test")
    return take((params, keys), 0)


@pytest.fixture(scope="module")
def truth(world, bank):
    """The views of all intervals, and what each job needs alone."""

    @jax.jit
    def solve(params, key):
        views = world_tape(params, key, HORIZON + 1)
        return views, completion_alone_s(params, world, views)

    return solve(*bank)


@pytest.fixture(scope="module")
def played(world, bank, truth):
    """An episode under MAST, and what it comes to."""

    @jax.jit
    def run(params, key, views, alone_s):
        setup = make_jobs_setup(params, world)
        mast = make_for_jobs(find("mast"), world)
        episode = play(mast, params, setup, views, key, jax.random.key(1), HORIZON)
        return episode, job_metrics(episode, params, alone_s, views.gpus_available[1:])

    return run(*bank, *truth)


@pytest.mark.nightly
def test_an_episode_of_many_jobs(played, truth):
    """Three domains for five jobs: nobody holds what another has, somebody waits, all get done, no
    sooner than each would alone."""
    episode, metrics = played
    held = np.asarray(episode.record.cost.gpus_used).sum(axis=1)
    assert np.all(held <= np.asarray(truth[0].gpus_available)[1:])
    assert float(metrics.overcommitted) == 0
    np.testing.assert_array_equal(metrics.finished, 1)
    assert np.all(np.asarray(metrics.jct_normalised) >= 1.0 - 1e-4)
    waited, jct_s = np.asarray(metrics.queueing_s), np.asarray(metrics.jct_s)
    assert np.all((waited >= 0) & (waited < jct_s)) and waited.max() > 60.0
    assert float(metrics.makespan_s) == pytest.approx(float((ARRIVALS + jct_s).max()))


@pytest.mark.nightly
def test_mast_goes_where_the_data_is_unless_the_gpus_there_are_not():
    """Three regions alike, two jobs whose data is in the last. MAST starts the first one there after
    a restart; `single_domain`, which does not ask, fetches first. The region is full then, and the
    second job fetches over the faster link: less than waiting for the first would take it."""
    data = {"data_gb": 30.0, "data_at": (SPEC.domains[2],)}
    jobs = [dataclasses.replace(job, **data) for job in submitted((0, 5000), (0, 5000))]
    world = build_jobs_world(SPEC, jobs, table_size=18)
    steady = ScenarioSettings(horizon=8, jitter="none", latency=0.0)
    params, key = take(jobs_bank(world, steady, range(1), "test"), 0)
    links = np.asarray(world.problem.cluster.bandwidth_gb_per_s)[2, :2]
    fetch_s = 30.0 / (links.max() * float(world.problem.calibration.wan_efficiency))
    restart_s = float(world.problem.calibration.restart_s)
    starts_s, fetched_gb = {}, {}
    for name in ("mast", "single_domain"):
        scheduler = make_for_jobs(find(name), world)

        @jax.jit
        def run(params, key, scheduler=scheduler):
            views = world_tape(params, key, 9)
            setup = make_jobs_setup(params, world)
            episode = play(scheduler, params, setup, views, key, jax.random.key(1), 8)
            alone_s = completion_alone_s(params, world, views)
            return job_metrics(episode, params, alone_s, views.gpus_available[1:]), episode

        metrics, episode = run(params, key)
        starts_s[name] = np.asarray(metrics.queueing_s)
        fetched_gb[name] = float(np.asarray(episode.record.migration_gb)[:, 2].sum())
    first, second = starts_s["mast"]
    np.testing.assert_allclose(first, restart_s, rtol=1e-3)
    np.testing.assert_allclose(second, restart_s + fetch_s, rtol=1e-3)
    assert fetched_gb["mast"] == pytest.approx(30.0, rel=1e-4)
    assert starts_s["single_domain"].min() >= (restart_s + fetch_s) * 0.999
    assert fetched_gb["single_domain"] == pytest.approx(60.0, rel=1e-4)


@pytest.mark.nightly
def test_mast_keeps_every_job_in_one_region(played):
    group = np.asarray(played[0].plan.group)  # [T, J, K]
    used = group >= 0
    assert used.sum(axis=2).max() == 1
    for j in range(group.shape[1]):
        where = group[:, j][used[:, j].any(axis=1)]
        assert len(where) and np.all(where == where[0])


def test_mast_fits_a_deployed_job_to_the_gpus_that_others_leave_it(monkeypatch, world, bank):
    """Two jobs in one region: each is given the choice that suits what it sees of the twelve GPUs,
    not the whole cluster."""

    def score(own, view):
        crowded = jnp.sum(view.gpus_available) < 12
        size = own.table.size
        return Estimate(jnp.ones(size), jnp.where(crowded, 1, 0) * jnp.ones(size, jnp.int32))

    monkeypatch.setattr(jobs_mast, "score_table", score)
    params, key = bank
    params = params.replace(load=load_process(3))
    alone = np.asarray(world.tables.single_domain & world.tables.mask)[0]
    asked = np.asarray(jax.vmap(jax.vmap(lambda plan: plan.gpus.sum()))(world.tables.plans))[0]
    row = int(np.where(alone, asked, 99).argmin())

    @jax.jit
    def decide(params, key):
        many = jobs_mast.JobsMast().bind(make_jobs_setup(params, world))
        seen = reset(key, params)[1].observation
        there = seen.job_mask[:, None]

        def deployed(held, idle):
            mine = held[0, row]
            return jnp.where(there.reshape((-1,) + (1,) * mine.ndim), mine[None], idle)

        target = jax.tree.map(deployed, world.tables.plans, seen.target)
        seen = seen.replace(plan=target, target=target)
        return many.decide(key, seen, many.init(key))[0]

    plan, menu = decide(params, key), params.problem.choices
    assert int(menu.schedule[0]) != int(menu.schedule[1])
    np.testing.assert_array_equal(plan.schedule[:2, 0], menu.schedule[1])


def test_a_job_alone_is_done_when_its_budget_is_trained_at_the_best_rate(world, bank):
    """On links that stand still: budget / rate from arrival on, within the horizon and beyond it."""
    params, _ = bank
    work, base = params.problem.work, one_view(base_view(params.problem.cluster))
    views = jax.tree.map(lambda x: jnp.repeat(x, HORIZON + 1, axis=0), base)
    table = take(world.tables, 0)
    alone = jax.jit(lambda params: completion_alone_s(params, world, views))
    rates, _ = jax.jit(score_plans)(table.plans, base, params.problem.of(work.job(0)))
    rate = float(np.where(np.asarray(table.mask), np.asarray(rates[0]), 0.0).max())
    for longer in (1.0, 100.0):
        more = work.replace(step_budget=longer * work.step_budget)
        got = alone(params.replace(problem=params.problem.of(more)))
        real = np.asarray(work.mask)
        wanted = longer * np.asarray(work.step_budget) / rate
        np.testing.assert_allclose(np.asarray(got)[real], wanted[real], rtol=1e-4)
    assert wanted[real].max() > HORIZON * float(params.interval_s)


@pytest.mark.nightly
def test_no_scheduler_uses_more_than_jobs_that_have_the_cluster_to_themselves(played, truth, bank):
    params, _ = bank
    views, alone_s = truth
    most = float(utilisation_alone(params, alone_s, views.gpus_available[1:]))
    assert 0.0 < float(played[1].utilisation) <= most * (1 + 1e-5)


# --- taking turns ---


@struct.dataclass
class Probe(Scheduler):
    """Takes the most GPUs that fit into what it sees, and remembers what that was."""

    oracle = True
    fixed = True
    nothing: jax.Array
    setup: Any = None

    def bind(self, setup):
        return self.replace(setup=setup)

    def init(self, key):
        del key
        return self.nothing, jnp.int32(-1), self.nothing

    def decide(self, key, seen, memory, truth):
        del key, memory
        own = self.setup
        asked = jax.vmap(lambda plan: plan.gpus)(own.table.plans)  # [P, K]
        free = seen.view.gpus_available
        fits = own.table.mask & jnp.all(asked <= free[None], axis=1)
        row = jnp.argmax(jnp.where(fits, asked.sum(axis=1), -1))
        plan = jax.tree.map(
            lambda new, old: jnp.where(seen.mask.retarget[0], new[row][None], old),
            own.table.plans,
            seen.target,
        )
        most = jnp.max(jnp.where(own.table.mask, asked.sum(axis=1), 0))
        return plan, (free, most, truth.views.gpus_available[seen.t])


def test_jobs_take_turns(world, bank, truth):
    """Two of five jobs are there, on 12 GPUs: each may ask for 6, the second finds what the first
    leaves, the oracle is told the same of the interval to come, and who is deployed stays."""
    params, key = bank
    params = params.replace(load=load_process(3))  # every GPU is free

    @jax.jit
    def twice(params, key, views):
        probes = [Probe(jnp.full((3,), -1, jnp.int32))] * len(ARRIVALS)
        many = PerJobScheduler.of(probes).bind(make_jobs_setup(params, world))
        seen = reset(key, params)[1].observation
        plans, memory = many.decide(key, seen, many.init(key), views)
        seen = seen.replace(plan=plans, target=plans)
        return plans, memory, many.decide(key, seen, memory, views)

    views = truth[0].replace(gpus_available=jnp.full_like(truth[0].gpus_available, 4))
    plans, (free, most, told), (again, (free_again, _, _)) = twice(params, key, views)
    gpus = np.asarray(jax.vmap(lambda plan: plan.gpus)(plans))
    np.testing.assert_array_equal(free[0], [4, 4, 4])
    np.testing.assert_array_equal(free[1], 4 - gpus[0])
    np.testing.assert_array_equal(told[:2], free[:2])
    assert np.all(np.asarray(most[:2]) <= 6) and 0 < gpus[0].sum() <= 6 and 0 < gpus[1].sum() <= 6
    assert gpus[2:].sum() == 0 and np.all(np.asarray(free[2:]) == -1), "they have not arrived"
    jax.tree.map(np.testing.assert_array_equal, again, plans)
    np.testing.assert_array_equal(free_again[0], 4 - gpus[1])


@pytest.mark.nightly
def test_a_crowd_does_not_keep_a_rule_from_its_smallest_plan(world, bank):
    """Five jobs on 12 GPUs: an equal part is 2, but an even split of three domains asks for 3. They
    play it, as long as there is room."""
    params, key = bank
    params = params.replace(load=load_process(3))

    @jax.jit
    def decide(params, key):
        setup = make_jobs_setup(params, world)
        many = make_for_jobs(find("static_even_split"), world).bind(setup)
        seen = reset(key, params)[1].observation
        everyone = jnp.ones_like(seen.job_mask)
        retarget = jnp.ones_like(seen.mask.retarget)
        seen = seen.replace(job_mask=everyone, mask=seen.mask.replace(retarget=retarget))
        return many.decide(key, seen, many.init(key))[0]

    held = np.asarray(jax.vmap(lambda plan: plan.gpus)(decide(params, key)))  # [J, K]
    assert np.all(held[0] > 0) and np.all(held.sum(axis=0) <= 4)
    assert (held.sum(axis=1) > 0).sum() == 12 // held[0].sum()


@pytest.mark.nightly
def test_one_job_decides_as_it_would_without_turns(world):
    alone = world.replace(
        problem=world.problem.of(jax.tree.map(lambda x: x[:1], world.problem.work)),
        kind=world.kind[:1],
    )
    idle = ScenarioSettings(horizon=HORIZON)
    params, keys = take(jobs_bank(alone, idle, range(1), "test"), 0)
    table = take(world.tables, 0)

    @jax.jit
    def decide(params, key):
        seen = reset(key, params)[1].observation
        one = bound("hysteresis", make_setup(params, table))
        many = make_for_jobs(find("hysteresis"), alone).bind(make_jobs_setup(params, alone))
        return [s.decide(key, seen, s.init(key))[0] for s in (one, many)]

    one, many = decide(params, keys)
    assert np.asarray(one.group).max() >= 0
    jax.tree.map(np.testing.assert_array_equal, many, one)


# --- nobody reads the future ---

CHANGE, DECISIONS = 3, 6


@pytest.fixture(scope="module")
def two_futures(world, bank, truth):
    """Params and what is observed before each of DECISIONS intervals, [2, ...]: the same world up to
    interval CHANGE - 1, then slow links and one domain left. Job j asks for row j, whatever happens."""
    params, key = bank
    calm = jax.tree.map(lambda x: x[: DECISIONS + 1], truth[0])
    later = jnp.arange(DECISIONS + 1) >= CHANGE
    slow = jnp.where(later, 0.05, 1.0)[:, None, None]
    gone = later[:, None] & (jnp.arange(3) < 2)[None]
    wild = calm.replace(
        bandwidth_gb_per_s=calm.bandwidth_gb_per_s * slow,
        gpus_available=jnp.where(gone, 0, calm.gpus_available),
    )
    actions = jax.tree.map(lambda x: x[0, : len(ARRIVALS)], world.tables.plans)

    @jax.jit
    def observed(params):
        def body(carry, _):
            state, timestep = carry
            return step(key, state, actions, params), timestep.observation

        return jax.lax.scan(body, reset(key, params), length=DECISIONS)[1]

    taped = [params.replace(tape=tape) for tape in (calm, wild)]
    return taped, [observed(one) for one in taped]


WATCHFUL = (
    "mast",
    "bace_pipe",
    "rollout",
)  # their own ways to look at jobs and links; the others nightly


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.nightly] * (n not in WATCHFUL))
        for n in jobs_names()
        if not find(n).learned
    ],
)
def test_a_changed_future_changes_no_decision_of_many_jobs(two_futures, world, name):
    """Decision t is taken before interval t + 1 is played: those for intervals 1..CHANGE agree, but
    for the oracle's, who knows of interval CHANGE. Once it is measured, who watches decides anew."""

    @jax.jit
    def decided(params, seen):
        setup = make_jobs_setup(params, world)
        scheduler = make_for_jobs(find(name), world).bind(setup)
        extra = (params.tape,) if scheduler.oracle else ()

        def act(memory, observation):
            plan, memory = scheduler.decide(jax.random.key(3), observation, memory, *extra)
            return memory, plan

        return jax.lax.scan(act, scheduler.init(jax.random.key(4)), seen)[1]

    one, other = (vars(decided(*future)) for future in zip(*two_futures, strict=True))
    differs = np.zeros(DECISIONS, bool)
    for field in one:
        unlike = np.asarray(one[field]) != np.asarray(other[field])
        differs |= unlike.reshape(DECISIONS, -1).any(axis=1)
    assert not differs[: CHANGE - 1].any()
    assert differs[CHANGE - 1] == (name == "replan_oracle")
    assert differs[CHANGE:].any()


@pytest.mark.nightly
def test_every_job_that_fits_nowhere_is_named():
    huge = ModelConfig(8, 65536, 16, 16, 262144, 3, 32000)
    wide = dataclasses.replace(huge, hidden=32768)
    jobs = [
        SubmittedJob(
            f"jobs.csv: line {line}", name, JobSpec(model, 32, 1024, arrival_s=float(line))
        )
        for line, name, model in ((3, "huge", huge), (5, "wide", wide), (7, "huge", huge))
    ]
    with pytest.raises(InputError) as error:
        build_jobs_world(SPEC, [*submitted((0, 1)), *jobs], table_size=18)
    text = str(error.value)
    assert "\n" not in text and "row 0" not in text and text.count("no plan fits") == 2
    assert text.startswith("jobs.csv: line 3, jobs.csv: line 7: huge: toy: no plan fits")
    assert "; jobs.csv: line 5: wide: toy: no plan fits" in text


@pytest.mark.nightly
def test_a_kind_of_job_has_no_more_plans_than_were_asked_for_whatever_the_number_of_parts(world):
    jobs = submitted((0, 1))
    few, more = (
        int(of.tables.mask.sum()) for of in (world, build_jobs_world(SPEC, jobs, table_size=36))
    )
    assert 12 < few <= 18 and few <= more <= 36
    # However few were asked for, every part of the GPUs has its fallback plans: each region alone.
    few = build_jobs_world(SPEC, jobs, table_size=1).tables
    gpus = jax.vmap(jax.vmap(lambda plan: plan.gpus))(few.plans)
    used = np.asarray(gpus)[0][np.asarray(few.mask & few.single_domain)[0]]
    for part in (4, 2, 1):
        held = (used == part).any(axis=1) & ((used > 0).sum(axis=1) == 1)
        assert set(used[held].argmax(axis=1)) == {0, 1, 2}, part


def test_data_in_no_domain_is_named():
    jobs = [dataclasses.replace(submitted((0, 1))[0], data_gb=1.0, data_at=("atlantis",))]
    with pytest.raises(InputError, match=f"row 0: data_at: .*'atlantis'; known: {SPEC.domains[0]}"):
        build_jobs_world(SPEC, jobs, table_size=18)
