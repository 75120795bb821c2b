"""Exactness of the oracles, and that nobody else reads the future, on small random worlds.

240 worlds of three domains and three plans, five intervals each: drifting and jittering links so slow
that a switch takes from a fraction of an interval to several, moving local load.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.schedulers import bound
from helpers.toy_world import JOB, calibration, cluster_spec, env_params, make_plan

from agents.baselines import mast, replanning, static
from agents.baselines.hysteresis import Hysteresis
from agents.episodes.rollout import play
from agents.hi_ppo.scheduler import HiPPO
from agents.oracles.clairvoyant import Clairvoyant
from agents.oracles.replan_oracle import ReplanOracle
from agents.oracles.truth import family_bound, make_truth
from agents.protocol import (
    best_choices,
    carry_out,
    find_row,
    make_setup,
    table_rates,
)
from agents.registry import ENTRIES, find, names
from jaxsim.env.env import reset, step
from jaxsim.plan import Problem
from jaxsim.plan.plan import empty_plan
from jaxsim.planning import Objective
from jaxsim.planning.scoring import one_view
from jaxsim.planning.table import PlanTable
from jaxsim.step_time.reconfiguration import begin_transition
from jaxsim.trees import stack, take

pytestmark = pytest.mark.nightly  # as a whole: its tests share what takes long to compile

WORLDS, ROWS, STEPS = 240, 3, 5
IDLE = -1
PLANS = [
    make_plan([(0, 1)], [(4, 4)], [8], 3, dp=2, micro_batch=2),
    make_plan([(1, 2)], [(3, 5)], [8], 3, dp=2, micro_batch=2),
    make_plan([(2,), (0,)], [(8,), (8,)], [4, 4], 3, dp=2, micro_batch=2, sync_period=8),
]
TABLE = PlanTable(
    plans=stack(PLANS),
    mask=jnp.ones(ROWS, bool),
    base_rate=jnp.ones(ROWS, jnp.float32),
    single_domain=jnp.array([False, False, True]),
    even_split=jnp.array([False, True, False]),
    candidates_of={e.name: jnp.ones((ROWS, 12), bool) for e in ENTRIES if e.rules},
)
MADE = {name: find(name).make(TABLE, 12) for name in names(learned=False)}
ORACLES, OTHERS = names(oracle=True), names(oracle=False, learned=False)


def world(seed, trace=None, load_trace=None):
    """EnvParams of one random world; the plan in force at reset, or none, is drawn too."""
    rng = np.random.default_rng(seed)
    spec = cluster_spec(3, gpus=4, gbps=float(10 ** rng.uniform(-0.8, 0.3)))
    start = [*PLANS, jax.tree.map(jnp.asarray, empty_plan(3))][int(rng.integers(ROWS + 1))]
    network = {
        "white": rng.uniform(0, 0.8),
        "ou_sigma": rng.uniform(0, 0.6),
        "ou_tau": rng.uniform(0.5, 10),
        "latency": 0.2,
        "trace": jnp.ones((8, 3, 3), jnp.float32) if trace is None else trace,
    }
    load = {
        "share": rng.uniform(0, 0.4),
        "swing": rng.uniform(0, 0.5),
        "trace": jnp.zeros((8, 3), jnp.float32) if load_trace is None else load_trace,
    }
    return env_params(
        spec,
        JOB,
        start,
        network=network,
        load=load,
        efficiency=calibration(restart_s=float(rng.uniform(1, 70))),
        horizon=jnp.int32(STEPS),
    )


def setup_of(params, mask=TABLE.mask):
    return make_setup(params, TABLE.replace(mask=mask))


@jax.jit
@functools.partial(jax.vmap, in_axes=(0, 0, None))
def truth_of(params, key, mask):
    return make_truth(params, setup_of(params, mask), key, STEPS)


@jax.jit
def all_moves(work):
    """[P][P] Transition from each plan to each."""
    problem = Problem(work, cluster_spec(3, gpus=4).to_arrays(), calibration())
    return [[begin_transition(p, q, problem) for q in PLANS] for p in PLANS]


@pytest.fixture(scope="module")
def moves(worlds):
    """[P, P, K, K] [GB] over links and [P, P] [s] inside domains; the same in all worlds."""
    found = all_moves(take(worlds[0], 0).problem.work.job(0))
    move_gb = [[np.asarray(q.bytes_gb, np.float64) for q in p] for p in found]
    fabric_s = np.array([[float(q.fabric_s) for q in p] for p in found])
    assert fabric_s.max() > 0.0
    return np.array(move_gb), fabric_s


@pytest.fixture(scope="module")
def worlds():
    """Params, keys and truths of all worlds, leaves [WORLDS, ...]."""
    params = stack(world(s) for s in range(WORLDS))
    keys = jax.vmap(jax.random.key)(jnp.arange(WORLDS, dtype=jnp.uint32))
    return params, keys, truth_of(params, keys, TABLE.mask)


SEQUENCES = jnp.asarray(list(itertools.product(range(ROWS), repeat=STEPS)), jnp.int32)


@jax.jit
def play_every_sequence(params, keys, truths):
    """[WORLDS, 3^5] progress and return of every sequence of rows, in the environment itself."""

    def one_world(params, key, truth):
        setup = setup_of(params)
        state, _ = reset(key, params)

        def action(t, row):
            view = take(truth.views, t)
            return carry_out(setup, row, truth.table.choice[t, row], view)

        times, rows = jnp.arange(1, STEPS + 1), jnp.arange(ROWS)
        menu = jax.vmap(jax.vmap(action, (None, 0)), (0, None))(times, rows)

        def one_sequence(sequence):
            def body(state, chosen):
                options, row = chosen
                state, timestep = step(key, state, take(options, row), params)
                return state, (timestep.record.progress[0], timestep.reward)

            _, (progress, reward) = jax.lax.scan(body, state, (menu, sequence))
            return progress.sum(), reward.sum()

        return jax.vmap(one_sequence)(SEQUENCES)

    return jax.vmap(one_world)(params, keys, truths)


@pytest.fixture(scope="module")
def every_sequence(worlds):
    progress, returns = play_every_sequence(*worlds)
    return np.asarray(progress), np.asarray(returns)


row_of = jax.jit(jax.vmap(lambda plan: find_row(TABLE, plan)))


def first_rows(params):
    """[WORLDS] row in force at reset, IDLE where nothing is."""
    row, found = row_of(jax.tree.map(lambda x: x[:, 0], params.initial_plan))
    return np.where(found, row, IDLE)


def test_clairvoyant_value_is_the_best_of_every_action_sequence(worlds, every_sequence):
    params, _, truths = worlds
    rows = first_rows(params)
    value = np.asarray(truths.value)[np.arange(WORLDS), 1, rows]
    value = np.where(rows == IDLE, truths.start_value, value)
    best = every_sequence[0].max(axis=1)
    np.testing.assert_allclose(value, best, rtol=1e-4)
    assert 20 < np.sum(rows == IDLE) < 100
    # The worlds are worth solving: in many, moving beats every plan that is kept.
    keep = [SEQUENCES.tolist().index([r] * STEPS) for r in range(ROWS)]
    kept = every_sequence[0][:, keep]
    stay = np.where(rows == IDLE, kept.max(axis=1), kept[np.arange(WORLDS), rows])
    assert np.mean((best > 1.02 * stay)[rows != IDLE]) > 0.25
    # Some move in the first interval, some wait for a better moment.
    first = np.asarray(truths.best)[np.arange(WORLDS), 1, rows]
    assert 0.1 < np.mean((first != rows)[rows != IDLE]) < 0.9


def test_clairvoyant_is_exact_where_gpus_come_and_go(worlds):
    """Local jobs take so many that replicas are lost: staying costs what laying out anew does. Rows
    that sync in every step; what a group of local SGD fetches depends on more than the row."""
    params, keys, _ = worlds
    load = params.load.replace(
        share=jnp.full((WORLDS,), 0.6, jnp.float32), swing=jnp.full((WORLDS,), 0.5, jnp.float32)
    )
    crowded = params.replace(load=load)
    truths = truth_of(crowded, keys, jnp.array([True, True, False]))
    progress = np.asarray(play_every_sequence(crowded, keys, truths)[0])
    rows = first_rows(params)
    deployed = (rows == 0) | (rows == 1)
    value = np.asarray(truths.value)[np.arange(WORLDS), 1, rows]
    some = np.all(np.asarray(SEQUENCES) < 2, axis=1)
    best = progress[:, some].max(axis=1)
    np.testing.assert_allclose(value[deployed], best[deployed], rtol=1e-4)
    # It is felt: without it the same courses would bring more.
    easy = truth_of(crowded.replace(gpus_vary=False), keys, jnp.array([True, True, False]))
    easy = np.asarray(easy.value)[np.arange(WORLDS), 1, rows]
    assert np.mean((easy > 1.01 * value)[deployed]) > 0.5


def test_clairvoyant_value_holds_from_every_row_and_interval(worlds, moves):
    """The programme's own table, by recursion over the physics in float64."""
    params, _, truths = worlds
    for w in range(0, WORLDS, 8):
        one = take((params, truths), w)
        expected = recursion(*one, *moves)
        np.testing.assert_allclose(one[1].value[1:], expected[1:], rtol=2e-4, atol=1e-2)


def recursion(params, truth, move_gb, fabric_s):
    """[T + 2, P]: stay, or move and walk through the intervals until every link is done."""
    rate = np.asarray(truth.table.rate, np.float64)
    speed = np.asarray(truth.views.bandwidth_gb_per_s, np.float64)
    speed = speed * float(params.problem.calibration.wan_efficiency)
    restart, dt = float(params.problem.calibration.restart_s), 60.0
    value = np.zeros((len(rate) + 1, ROWS))
    for t in reversed(range(len(rate))):
        for p in range(ROWS):
            options = [rate[t, p] * dt + value[t + 1, p]]
            for q in set(range(ROWS)) - {p}:
                load, idle, a, inside = move_gb[p, q].copy(), restart, t, fabric_s[p, q]
                while a < len(rate):
                    lost = min(idle, dt)
                    need = np.max(np.where(load > 0, load / np.maximum(speed[a], 1e-12), 0.0))
                    need = max(need, inside)
                    if idle <= dt and need <= dt - lost:
                        options.append(rate[a, q] * (dt - lost - need) + value[a + 1, q])
                        break
                    load = np.maximum(load - speed[a] * (dt - lost), 0.0)
                    inside = max(inside - (dt - lost), 0.0)
                    idle, a = idle - lost, a + 1
            value[t, p] = max(options)
    return value


def test_clairvoyant_is_exact_for_any_weights(worlds):
    """Its value is the best return of all sequences of rows, with weights of each world's own. No
    local jobs: their moves change the price of the GPUs in force, which is taken at its mean."""
    params, keys, _ = worlds
    rng = np.random.default_rng(8)
    drawn = rng.dirichlet(np.ones(4), WORLDS)
    drawn[:, 0] += 0.05
    drawn[:, 2] *= 0.3  # or nothing but standing still is worth it
    weights = jnp.asarray(drawn, jnp.float32)
    still = params.load.replace(share=jnp.zeros((WORLDS,), jnp.float32))
    free = params.replace(
        weights=weights,
        load=still,
        problem=params.problem.replace(
            cluster=params.problem.cluster.replace(
                usd_per_gpu_hour=8.0 * params.problem.cluster.usd_per_gpu_hour
            )
        ),
    )
    no_limit = jnp.full((WORLDS,), jnp.inf, jnp.float32)
    asked = free.replace(objective=Objective(weights, no_limit, no_limit))
    truths = truth_of(asked, keys, TABLE.mask)
    rows = first_rows(params)
    value = np.asarray(truths.value)[np.arange(WORLDS), 1, rows]
    progress, returns = (np.asarray(x) for x in play_every_sequence(free, keys, truths))
    best = returns.max(axis=1) + drawn[:, 0] * STEPS  # the reward counts progress from -1
    deployed = rows != IDLE
    np.testing.assert_allclose(value[deployed], best[deployed], rtol=2e-4, atol=2e-4)
    # The weights matter: the fastest course is often not the best one.
    fastest = returns[np.arange(WORLDS), progress.argmax(axis=1)] + drawn[:, 0] * STEPS
    assert np.mean(fastest < best - 1e-2) > 0.1


def test_clairvoyant_plays_its_value(worlds, every_sequence):
    @jax.jit
    @jax.vmap
    def progress(params, key, truth):
        episode = play(Clairvoyant(), params, setup_of(params), truth, key, key, STEPS)
        return episode.record.progress.sum()

    np.testing.assert_allclose(progress(*worlds), every_sequence[0].max(axis=1), rtol=1e-4)


def test_nothing_in_the_family_beats_the_bound(worlds, every_sequence):
    params, _, truths = worlds

    n_choices = truths.rates.shape[-1]
    plans = jax.tree.map(lambda x: jnp.repeat(x, n_choices, axis=0), TABLE.plans)
    choice = jnp.tile(jnp.arange(n_choices, dtype=jnp.int32), ROWS)
    nothing = truths.replace(table=truths.table.replace(rate=0.0 * truths.table.rate))
    bound = jax.jit(jax.vmap(family_bound, (0, None, None, 0)))
    bounds = np.asarray(bound(params, plans, choice, nothing))
    assert np.all(every_sequence[0].max(axis=1) <= bounds * (1 + 1e-5))
    by_hand = np.asarray(truths.table.rate)[:, 1:].max(axis=2).sum(axis=1) * 60.0
    np.testing.assert_allclose(bounds, by_hand, rtol=1e-5)


def test_the_return_orders_exactly_as_progress_does(worlds, every_sequence):
    """With weights (1, 0, 0, 0); the sequences include a switch in every interval."""
    params, _, _ = worlds
    progress, returns = every_sequence
    expected = progress / np.asarray(params.progress_ref) - STEPS
    np.testing.assert_allclose(returns, expected, rtol=1e-4, atol=1e-4)
    switching = [i for i, s in enumerate(SEQUENCES.tolist()) if np.all(np.diff(s))]
    assert len(switching) == 3 * 2**4
    for some in (slice(None), switching):
        ahead = progress[:, some, None] - progress[:, None, some]
        better = returns[:, some, None] - returns[:, None, some]
        clear = np.abs(ahead) > 1e-4 * progress.max()
        assert clear.any() and np.all(np.sign(ahead)[clear] == np.sign(better)[clear])


def row_by_hand(worlds, moves, t, horizon):
    """[WORLDS] the row with the most work in `horizon` intervals like t, the switch paid."""
    params, _, truths = worlds
    restart = np.asarray(params.problem.calibration.restart_s)
    rate, bandwidth = truths.table.rate[:, t], truths.views.bandwidth_gb_per_s[:, t]
    rows = []
    for w, start in enumerate(first_rows(params)):
        speed = np.maximum(0.9 * np.asarray(bandwidth[w]), 1e-12)
        # A first deployment restarts and moves nothing.
        load, inside = (x[start] * (start != IDLE) for x in moves)
        seconds = np.maximum(np.where(load > 0, load / speed, 0).max(axis=(1, 2)), inside)
        down = np.where(np.arange(ROWS) == start, 0.0, restart[w] + seconds)
        rows.append(int(np.argmax(np.asarray(rate[w]) * np.maximum(horizon * 60.0 - down, 0.0))))
    return np.array(rows)


@functools.partial(jax.jit, static_argnames="at_hand")
def decide_first(params, keys, truths, at_hand=False):
    """Rows that replan_oracle and hysteresis decide for at reset, with horizons of 3 intervals; with
    the table's rates `at_hand`, or scored by themselves."""

    def one(params, key, truth):
        _, timestep = reset(key, params)
        seen = timestep.observation.replace(rates=truth.rates[0] if at_hand else None)
        setup = setup_of(params)
        oracle, peer = ReplanOracle(3.0).bind(setup), Hysteresis(3.0).bind(setup)
        sees, _ = oracle.decide(key, seen, oracle.init(key), truth)
        guesses, _ = peer.decide(key, seen, peer.init(key))
        return [find_row(TABLE, take(p, 0))[0] for p in (sees, guesses)]

    return jax.vmap(one)(params, keys, truths)


@pytest.fixture(scope="module")
def first_decisions(worlds):
    """[WORLDS] rows each, of `decide_first`."""
    return [np.asarray(x) for x in decide_first(*worlds)]


def test_replan_oracle_is_the_argmax_under_the_true_coming_interval(worlds, moves, first_decisions):
    expected = row_by_hand(worlds, moves, 1, horizon=3)
    np.testing.assert_array_equal(first_decisions[0], expected)
    assert len(set(expected.tolist())) == ROWS


def test_hysteresis_is_the_argmax_under_the_measured_interval(worlds, moves, first_decisions):
    expected = row_by_hand(worlds, moves, 0, horizon=3)
    np.testing.assert_array_equal(first_decisions[1], expected)
    assert np.any(first_decisions[0] != first_decisions[1]), "the worlds must tell them apart"


def test_rates_at_hand_are_those_that_schedulers_find_themselves(worlds, first_decisions):
    for rows, others in zip(decide_first(*worlds, at_hand=True), first_decisions, strict=True):
        np.testing.assert_array_equal(rows, others)


def test_without_jitter_and_cost_hysteresis_is_the_replan_oracle(worlds, first_decisions):
    params, keys, _ = worlds
    still = ("white_amplitude", "latency_amplitude", "ou_sigma")
    still = {name: jnp.zeros_like(getattr(params.network, name)) for name in still}
    wide = params.problem.cluster.bandwidth_gb_per_s * 1e6  # what moves takes no time
    free = params.replace(
        network=params.network.replace(**still),
        load=params.load.replace(swing=jnp.zeros_like(params.load.swing)),
        problem=params.problem.replace(
            cluster=params.problem.cluster.replace(
                bandwidth_gb_per_s=wide,
                gpu=params.problem.cluster.gpu.replace(
                    nvlink_gb_per_s=params.problem.cluster.gpu.nvlink_gb_per_s * 1e6
                ),
            ),
            calibration=params.problem.calibration.replace(
                restart_s=jnp.zeros(WORLDS, jnp.float32)
            ),
        ),
    )
    truths = truth_of(free, keys, TABLE.mask)
    sees, guesses = (np.asarray(x) for x in decide_first(free, keys, truths))
    np.testing.assert_array_equal(sees, guesses)
    np.testing.assert_array_equal(sees, np.argmax(np.asarray(truths.table.rate)[:, 1], axis=1))
    assert np.any(first_decisions[0] != first_decisions[1]), "with jitter they differ"


def test_padding_rows_are_never_moved_to(worlds):
    params, keys, truths = worlds
    padded = truth_of(params, keys, jnp.array([True, True, False]))
    assert np.any(np.asarray(truths.best)[:, :, :2] == 2)
    assert np.all(np.asarray(padded.best)[:, :, :2] < 2)
    assert np.all(np.asarray(padded.table.rate)[:, :, 2] == 0)


def spread(two):
    """[2, ...] -> [WORLDS, ...], the last one repeated."""
    index = jnp.minimum(jnp.arange(WORLDS), 1)
    return take(two, index)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("best_static", 6), ("single_domain", 4), ("static_even_split", 3)],
)
def test_static_schedulers_take_the_best_row_of_their_kind(monkeypatch, name, expected):
    """Several rows of each kind, the best neither first nor last; row 2 is padding."""
    single, even = np.isin(np.arange(9), [1, 2, 4, 7]), np.isin(np.arange(9), [0, 3, 5])
    rate = jnp.array([1.0, 2.0, 99.0, 5.0, 6.0, 4.0, 9.0, 3.0, 8.0], jnp.float32)
    table = jax.tree.map(lambda x: jnp.concatenate([x, x, x]), TABLE).replace(
        mask=jnp.arange(9) != 2, single_domain=jnp.asarray(single), even_split=jnp.asarray(even)
    )

    def score(setup, candidates):
        del setup, candidates  # what is not of the kind is as fast as it is
        return rate

    monkeypatch.setattr(static, "expected_rates", score)
    scheduler = bound(name, make_setup(world(0), table))
    assert int(scheduler.choose(jax.random.key(0), None, ())[0]) == expected


# Two futures: the same links and local jobs up to interval CHANGE - 1, then others.
CHANGE = 3


@pytest.fixture(scope="module")
def two_futures():
    """Params [2], key and truths [2]: rows 0-2 of the traces alike, the rest not."""
    rng = np.random.default_rng(5)
    calm = np.exp(rng.normal(0, 0.3, (8, 3, 3))).astype(np.float32)
    wild = calm.copy()
    wild[CHANGE:] = np.exp(rng.normal(0, 1.5, (8 - CHANGE, 3, 3)))
    # Later on local jobs take a domain that the best static plan needs.
    free, taken = np.zeros((8, 3), np.float32), np.zeros((8, 3), np.float32)
    taken[CHANGE:, 1:] = 4
    traces = [
        (jnp.asarray(links), jnp.asarray(load)) for links, load in ((calm, free), (wild, taken))
    ]
    params = [world(6, *pair) for pair in traces]
    stacked = stack(params)
    keys = jax.vmap(jax.random.key)(jnp.array([11, 11], jnp.uint32))
    truth = truth_of(*spread((stacked, keys)), TABLE.mask)  # as many worlds: one compilation
    return stacked, keys, jax.tree.map(lambda x: x[:2], truth)


@jax.jit
@jax.vmap
def decisions(params, key, truth):
    """Views [T + 1] observed, {name: Plan [T]} decided while the first plan stays in force.

    The rates that the table has, under the views and at first, are scored once for all.
    """
    setup = setup_of(params)
    state, first = reset(key, params)

    def body(state, _):
        state, timestep = step(key, state, state.plan, params)
        return state, timestep.observation

    _, later = jax.lax.scan(body, state, length=STEPS)
    seen = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first.observation, later)
    views, seen = seen.view, jax.tree.map(lambda x: x[:-1], seen)
    seen = seen.replace(rates=table_rates(setup, seen.view))
    prior = table_rates(setup, one_view(setup.prior))[0]
    with pytest.MonkeyPatch.context() as patch:
        for module in (mast, static, replanning):
            patch.setattr(
                module, "expected_rates", lambda setup, some: best_choices(prior, some).rate
            )
        made = {name: one.bind(setup) for name, one in MADE.items()}

    def act(memory, observation):
        decided = {
            name: one.decide(key, observation, memory[name], *([truth] if one.oracle else []))
            for name, one in made.items()
        }
        memory = {name: after for name, (_, after) in decided.items()}
        return memory, {name: plan for name, (plan, _) in decided.items()}

    _, out = jax.lax.scan(act, {name: one.init(key) for name, one in made.items()}, seen)
    return views, out


@pytest.fixture(scope="module")
def decided(two_futures):
    return jax.tree.map(np.asarray, decisions(*two_futures))


def test_the_tape_is_what_the_environment_shows(two_futures, decided):
    seen, told = decided[0], two_futures[2].views
    for name in ("bandwidth_gb_per_s", "rtt_s", "gpus_available"):
        np.testing.assert_allclose(getattr(seen, name), getattr(told, name), rtol=1e-6)
    assert np.all(np.asarray(seen.bandwidth_gb_per_s)[:, :, 0, 1].std(axis=1) > 0)
    assert np.all(np.asarray(seen.gpus_available)[1, CHANGE:, 1] == 0)


@pytest.mark.parametrize("name", OTHERS)
def test_a_changed_future_changes_no_decision_before_it_is_measured(decided, name):
    # Decision t + 1 is taken before interval t + 1 is played: those for intervals 1..CHANGE agree.
    for field, value in vars(decided[1][name]).items():
        np.testing.assert_array_equal(value[0, :CHANGE], value[1, :CHANGE], err_msg=field)


@pytest.mark.parametrize("name", ORACLES)
def test_a_changed_future_changes_what_the_oracles_do(decided, name):
    before = vars(decided[1][name]).values()
    assert any(np.any(v[0, :CHANGE] != v[1, :CHANGE]) for v in before)


def test_what_is_measured_does_change_decisions(decided):
    # The guard of the test above: after the change the re-planners do differ.
    after = vars(decided[1]["hysteresis"]).values()
    assert any(np.any(v[0, CHANGE:] != v[1, CHANGE:]) for v in after)


@jax.jit
@jax.vmap
def whole_episodes(params, key, truth):
    """{name: Plan in force [T]} of episodes that draw their world and in which everybody scores the
    table; of episodes as they are evaluated, on the world's tape with the measured rates at hand; and
    of such with the rates of the coming interval."""
    setup = setup_of(params)
    taped = params.replace(tape=truth.views)
    early = jnp.concatenate([truth.rates[1:], truth.rates[-1:]])
    out = []
    for scenario, rates in ((params, None), (taped, truth.rates), (taped, early)):
        args = (scenario, setup, truth, key, key, STEPS, rates)
        names = ("hysteresis", "replan_oracle")
        out.append({name: play(MADE[name], *args).plan for name in names})
    return out


@pytest.mark.nightly
def test_an_evaluated_episode_is_the_one_that_draws_its_world(two_futures):
    drawn, evaluated, early = jax.tree.map(np.asarray, whole_episodes(*two_futures))
    jax.tree.map(np.testing.assert_array_equal, drawn, evaluated)
    # The guard: rates one interval early would be noticed.
    plans = (vars(x["hysteresis"]).values() for x in (evaluated, early))
    assert any(np.any(a != b) for a, b in zip(*plans, strict=True))


def test_schedulers_that_read_the_future_say_so():
    says = {name: one.oracle for name, one in MADE.items()}
    assert not HiPPO.oracle
    assert says == {**dict.fromkeys(ORACLES, True), **dict.fromkeys(OTHERS, False)}
