"""Rollout decides as clairvoyant does where the future is known, and as well as its samples allow."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import PLANS, ROWS, TABLE
from helpers.toy_world import JOB, calibration, cluster_spec, env_params

from agents.foresight.programme import (
    distinct_transfers,
    make_course,
    migration_table,
    never_done,
    outcomes_of_moves,
    values_of_rows,
)
from agents.foresight.rollout import Rollout
from agents.oracles.truth import solve_truth
from agents.protocol import Estimate, EvaluatedTable, make_setup, table_rates
from jaxsim.env.env import reset, step, world_tape
from jaxsim.trees import stack

pytestmark = pytest.mark.slow  # as a whole: its tests share what takes long to compile

STEPS, WORLDS = 6, 24


def world(seed):
    rng = np.random.default_rng(seed)
    return env_params(
        cluster_spec(3, gpus=4, gbps=float(10 ** rng.uniform(-0.8, 0.3))),
        JOB,
        PLANS[seed % ROWS],
        network={"white": 0.5, "ou_sigma": 0.5, "ou_tau": 3.0},
        efficiency=calibration(restart_s=float(rng.uniform(1, 70))),
        horizon=jnp.int32(STEPS),
    )


@functools.cache
def known_futures():
    """Rows that clairvoyant and rollout decide for in interval 1, from each row and from idle."""
    told = distinct_transfers(TABLE.plans, world(0).problem.job(0))

    @jax.jit
    @jax.vmap
    def both(params, key):
        setup = make_setup(params, TABLE)
        views = world_tape(params, key, STEPS + 1)
        rates = table_rates(setup, views)
        rates = jnp.where(jnp.arange(rates.shape[-1]) == 0, rates, 0.0)  # one lower choice
        # Clairvoyant's transfers are told apart, the rollout's are not.
        truth = solve_truth(setup, views, rates, told)
        future = jax.tree.map(lambda x: x[None, 1:], views)
        scheduler = Rollout(futures=1, horizon=STEPS).bind(setup)

        def from_row(row, idle):
            seen = EvaluatedTable(
                row=row,
                idle=idle,
                may_switch=jnp.array(True),
                now=Estimate(rates[0, :, 0], jnp.zeros(ROWS, jnp.int32)),
                switch_s=jnp.zeros(ROWS, jnp.float32),
                view=jax.tree.map(lambda x: x[0], views),
                t=jnp.int32(1),
            )
            rows = jnp.mod(row + jnp.arange(ROWS, dtype=jnp.int32), ROWS)  # that in force first
            return scheduler.best_of(rows, seen, future)

        rows = jnp.arange(ROWS, dtype=jnp.int32)
        chosen = jax.vmap(from_row, (0, None))(rows, jnp.array(False))
        return truth.best[1], chosen, truth.start, from_row(jnp.int32(0), jnp.array(True))

    params = stack(world(s) for s in range(WORLDS))
    keys = jax.vmap(jax.random.key)(jnp.arange(WORLDS, dtype=jnp.uint32))
    return [np.asarray(x) for x in both(params, keys)]


def test_with_the_future_known_it_decides_as_clairvoyant_does():
    best, chosen, start, deployed = known_futures()
    np.testing.assert_array_equal(chosen, best)
    np.testing.assert_array_equal(deployed, start)
    moves = best != np.arange(ROWS)
    assert 0.1 < moves.mean() < 0.9 and len(set(start.tolist())) > 1


@functools.cache
def programme(free=False):
    """The programme over made-up rates [M, T, P] of four rows, a move taking most of an interval; where
    it is `free`, the last two rows are no move apart."""
    params = world(0)
    setup = make_setup(params, TABLE)
    moves = migration_table(TABLE.plans, setup.problem)
    kind = np.minimum(np.arange(ROWS), ROWS - 1 - free)
    moves = moves.replace(
        restart_s=jnp.where(kind[:, None] == kind[None, :], 0.0, 40.0),
        bytes_gb=jnp.zeros_like(moves.bytes_gb),
        fabric_s=jnp.zeros_like(moves.fabric_s),
    )
    links = setup.prior.bandwidth_gb_per_s

    @jax.jit
    def solve(rate):
        width = jnp.broadcast_to(links, (*rate.shape[:2], *links.shape))
        return values_of_rows(rate, width, moves, TABLE.mask, setup)

    return solve


def test_rows_that_differ_in_what_stops_no_job_are_changed_at_once():
    """The last two rows are fast in turn. Between them nothing is lost; where a move takes 40 s, it is
    best to stay through a slow interval, and to move in the last."""
    rate = np.zeros((1, 4, ROWS), np.float32)
    rate[0, 0::2, ROWS - 2] = rate[0, 1::2, ROWS - 1] = 1.0
    at_once, moved = (programme(free)(jnp.asarray(rate)).value[0] for free in (True, False))
    np.testing.assert_allclose(at_once[ROWS - 2], 4 * 60.0, rtol=1e-6)
    np.testing.assert_allclose(at_once[ROWS - 1], 4 * 60.0, rtol=1e-6)
    np.testing.assert_allclose(moved[ROWS - 2], 60.0 + 0.0 + 60.0 + 20.0, rtol=1e-6)


def test_it_does_not_wait_for_what_only_some_futures_hold():
    """Row 1 or row 2 will be the fast one from the second interval on, nobody knows which. With the
    futures known one by one it pays to wait for either; over both at once row 0 is as good."""
    rate = np.ones((2, 4, ROWS), np.float32)
    rate[0, 1:, 1], rate[0, 1:, 2] = 2.2, 0.1
    rate[1, 1:, 2], rate[1, 1:, 1] = 2.2, 0.1
    apart = [programme()(jnp.asarray(rate[i : i + 1]))[0][0, 0] for i in range(2)]
    together, best, options = programme()(jnp.asarray(rate))
    assert float(together[0, 0]) < 0.8 * float(np.mean(apart))
    # By hand: a move at 0 trains 20 s at 1.0, then three intervals at (2.2 + 0.1) / 2 = 1.15.
    np.testing.assert_allclose(together[0, 0], max(240.0, 20.0 + 180.0 * 1.15), rtol=1e-5)
    assert int(best[0, 0]) == 0
    # What is still to be had is what the best of the options brings; to move now, 20 s less the sum.
    np.testing.assert_allclose(options.max(axis=2), together[:-1], rtol=1e-6)
    np.testing.assert_allclose(options[0, 0, 1], 20.0 + 180.0 * 1.15, rtol=1e-5)


def test_where_later_moves_are_done_tells_nothing_but_where_to_look():
    """Links of any speed, standing still among them: every move ends where it does without knowing."""
    rng = np.random.default_rng(3)
    setup = make_setup(world(0), TABLE)
    moves = migration_table(TABLE.plans, setup.problem)
    length, n_links = 12, setup.prior.bandwidth_gb_per_s.shape
    links = 10.0 ** rng.uniform(-2, 1, (4, length, *n_links)) * (
        rng.random((4, length, *n_links)) > 0.3
    )
    rate = jnp.asarray(rng.uniform(0, 1, (4, length, ROWS)), jnp.float32)

    @jax.jit
    @jax.vmap
    def both(rate, links):
        course = make_course(rate, links, setup)

        def step(latest, t):
            told = outcomes_of_moves(course, moves, t, setup, latest)
            return told.carried, (told, outcomes_of_moves(course, moves, t, setup))

        return jax.lax.scan(step, never_done(moves, length), jnp.arange(length), reverse=True)[1]

    told, alone = both(rate, jnp.asarray(links, jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, told, alone)
    carried = np.asarray(told.carried)
    assert (carried == length).any() and (np.diff(carried, axis=1) >= 0).all()
    assert len(np.unique(carried)) > 6


def test_more_futures_do_not_hurt_in_the_mean():
    """What the first decision is worth in truth: the mean over 400 futures, other ones each time."""
    rng = np.random.default_rng(0)
    centre = np.array([1.0, 1.05, 1.1])

    def drawn(count):
        walk = np.cumsum(rng.normal(0, 0.25, (count, 5, ROWS)), axis=1)
        return jnp.asarray(np.exp(walk) * centre, jnp.float32)

    truth = np.asarray(drawn(400)).mean(axis=0)
    stay = truth[:, 0].sum() * 60.0
    gone = (truth[0] * 20.0 + truth[1:].sum(axis=0) * 60.0)[1:]
    worth = np.array([stay, *gone])
    mean = {
        m: np.mean([worth[int(programme()(drawn(m))[1][0, 0])] for _ in range(120)])
        for m in (1, 8, 64)
    }
    error = 2 * worth.std() / np.sqrt(120)
    assert mean[1] - error < mean[8] and mean[8] - error < mean[64]
    assert mean[1] + error / 2 < mean[64]


def test_its_decisions_have_one_shape_and_remember_what_was_measured():
    """Traced, not compiled: a memory goes round a scan, and the first average is a measurement."""

    def course(params, key):
        state, first = reset(key, params)
        scheduler = Rollout(futures=3, horizon=4, shortlist=2).bind(make_setup(params, TABLE))

        def body(carry, _):
            state, seen, memory = carry
            plan, memory = scheduler.decide(key, seen, memory)
            state, timestep = step(key, state, plan, params)
            return (state, timestep.observation, memory), memory.started

        return jax.lax.scan(body, (state, first.observation, scheduler.init(key)), length=2)[1]

    assert jax.eval_shape(course, world(0), jax.random.key(0)).shape == (2,)
    scheduler = Rollout().bind(make_setup(world(0), TABLE))
    seen = EvaluatedTable(
        row=jnp.int32(0),
        idle=jnp.array(False),
        may_switch=jnp.array(True),
        now=Estimate(jnp.array([1.0, 2.0, 3.0], jnp.float32), jnp.zeros(ROWS, jnp.int32)),
        switch_s=jnp.zeros(ROWS, jnp.float32),
        view=scheduler.setup.prior,
        t=jnp.int32(1),
    )
    memory = scheduler.learned(seen, scheduler.init(jax.random.key(0)))
    assert memory.average.tolist() == [1.0, 2.0, 3.0]
    twice = scheduler.learned(seen.replace(now=seen.now.replace(rate=0.0 * seen.now.rate)), memory)
    np.testing.assert_allclose(twice.average, [0.8, 1.6, 2.4], rtol=1e-6)
    # Links at base are expected to stay there, and the futures are of their shape.
    view = memory.outlook.coming(scheduler.setup, seen.view)
    np.testing.assert_allclose(view.bandwidth_gb_per_s, seen.view.bandwidth_gb_per_s, rtol=1e-5)
    futures = scheduler.imagined(jax.random.key(1), seen.view, memory)
    assert futures.bandwidth_gb_per_s.shape == (8, 24, 3, 3)
    assert np.all(np.asarray(futures.gpus_available) <= np.asarray(seen.view.gpus_available))


def test_transfers_told_apart_change_nothing():
    """Over three futures, every value, decision and option to the last bit."""
    rng = np.random.default_rng(5)
    setup = make_setup(world(0), TABLE)
    moves = migration_table(TABLE.plans, setup.problem)
    told = distinct_transfers(TABLE.plans, setup.problem)
    assert told.which.max() + 1 < ROWS * ROWS  # fewer amounts than moves
    rate = jnp.asarray(rng.uniform(0, 1, (3, 10, ROWS)), jnp.float32)
    base = np.asarray(setup.prior.bandwidth_gb_per_s)
    links = jnp.asarray(base * 10.0 ** rng.uniform(-1.5, 0.5, (3, 10, 1, 1)), jnp.float32)

    @jax.jit
    def solve(moves):
        return values_of_rows(rate, links, moves, TABLE.mask, setup)

    apart, alone = solve(moves.replace(transfers=told)), solve(moves)
    jax.tree.map(np.testing.assert_array_equal, apart, alone)
    assert (np.asarray(alone.best) != np.arange(ROWS)).any()
