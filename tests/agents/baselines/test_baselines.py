"""Each rival does what its docstring says, on cases small enough to check by hand.

Rules are asked directly with made-up tables; then all play in one small world.
"""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.schedulers import bound
from helpers.toy_world import JOB, calibration, cluster_spec, env_params, make_plan

from agents.baselines import (
    BacePipe,
    Hysteresis,
    Random,
    Ray,
    SelfTuningHysteresis,
    SmoothedHysteresis,
    bace_pipe,
    good_paths,
)
from agents.baselines import self_tuning as self_tuning_hysteresis
from agents.baselines.self_tuning import HORIZONS
from agents.paying import amortised_gain
from agents.protocol import Estimate, EvaluatedTable, find_row, make_setup
from agents.registry import ENTRIES, find, names
from jaxsim.env.env import reset, step
from jaxsim.files.errors import InputError
from jaxsim.plan.plan import empty_plan
from jaxsim.planning.table import PlanTable
from jaxsim.trees import stack, take

pytestmark = pytest.mark.slow  # as a whole: its tests share what takes long to compile

ROWS, STEPS = 3, 6
PLANS = [
    make_plan([(0, 1)], [(4, 4)], [8], dp=2, micro_batch=2),
    make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2),
    make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], dp=2, micro_batch=2),
]
TABLE = PlanTable(
    plans=stack(PLANS),
    mask=jnp.ones(ROWS, bool),
    base_rate=jnp.ones(ROWS, jnp.float32),
    single_domain=jnp.array([False, True, False]),
    even_split=jnp.array([False, False, True]),
    candidates_of={e.name: jnp.ones((ROWS, 12), bool) for e in ENTRIES if e.rules},
)


@functools.cache
def params():
    """Slow links that jump about, restarts of more than an interval; a pipeline is in force."""
    spec = cluster_spec(2, gpus=4, gbps=0.5)
    return env_params(
        spec,
        JOB,
        PLANS[0],
        network={"white": 0.9},
        efficiency=calibration(restart_s=70.0),
        horizon=jnp.int32(STEPS),
    )


@functools.cache
def setup():
    return make_setup(params(), TABLE)


def evaluated(rates, row=0, switch_s=(0.0, 30.0, 30.0), idle=False):
    """Intervals last 60 s."""
    return EvaluatedTable(
        row=jnp.int32(row),
        idle=jnp.array(idle),
        may_switch=jnp.array(True),
        now=Estimate(jnp.asarray(rates, jnp.float32), jnp.zeros(len(rates), jnp.int32)),
        switch_s=jnp.asarray(switch_s, jnp.float32),
        view=setup().prior,
        t=jnp.int32(3),
    )


def rule(scheduler):
    """`choose(key, evaluated, memory)` and the first memory of a table-based scheduler."""
    scheduler = scheduler.bind(setup())
    return scheduler.choose, scheduler.init(jax.random.key(0))


@pytest.mark.parametrize(
    ("horizon", "rates", "switch_s", "expected"),
    [
        (1e6, (1.0, 1.01, 1.02), (0, 30, 30), 2),  # a switch costs nothing in the long run
        (0.4, (1.0, 9.0, 9.0), (0, 30, 30), 0),  # over before the switch is: stay
        (1.0, (1.0, 1.9, 1.0), (0, 30, 30), 0),  # 60 x 1.0 against 30 x 1.9
        (1.0, (1.0, 2.1, 1.0), (0, 30, 30), 1),  # 60 x 1.0 against 30 x 2.1
        (2.0, (1.0, 1.5, 2.0), (0, 30, 90), 1),  # 120, 90 x 1.5 = 135, 30 x 2.0
        (10.0, (1.0, 1.5, 2.0), (0, 30, 90), 2),  # 600, 855, 1020
        (10.0, (1.0, 1.0, 1.0), (0, 0, 0), 0),  # nothing to gain
    ],
)
def test_hysteresis_by_hand(horizon, rates, switch_s, expected):
    choose, memory = rule(Hysteresis(horizon))
    assert (
        int(choose(jax.random.key(0), evaluated(rates, switch_s=switch_s), memory)[0]) == expected
    )


def followed(scheduler, rates, base):
    """Rows chosen over rates [T, P] from row 0 on, any switch taking 30 s of an interval's 60."""
    bound = scheduler.bind(setup()).replace(expected=jnp.asarray(base, jnp.float32))
    memory, row, rows = bound.init(jax.random.key(0)), 0, []
    for rate in rates:
        switch_s = np.where(np.arange(ROWS) == row, 0.0, 30.0)
        seen = evaluated(rate, row=row, switch_s=switch_s)
        choice, memory = bound.choose(jax.random.key(0), seen, memory)
        rows.append(row := int(choice))
    return rows


def test_smoothed_hysteresis_by_hand():
    """Averages start at what is to be expected, (1, 1, 0). With alpha 0.5 row 1 is believed at 1.5,
    2.25, 3.625 steps/s while row 0 stays at 1; over one interval a switch must more than double the
    rate."""
    rates = [(1.0, 2.0, 0.0), (1.0, 3.0, 0.0), (1.0, 5.0, 0.0)]
    base = (1.0, 1.0, 0.0)
    assert followed(SmoothedHysteresis(1.0, alpha=0.5), rates, base) == [0, 1, 1]
    # Half of what is believed is that: 1.25, 1.625, 2.3125.
    halved = SmoothedHysteresis(1.0, alpha=0.5, expected_weight=0.5)
    assert followed(halved, rates, base) == [0, 0, 1]
    deaf = SmoothedHysteresis(1.0, alpha=0.5, expected_weight=1.0)
    assert followed(deaf, rates, base) == [0, 0, 0]
    # A row that cannot run now is left at once, and not gone to, however good it was.
    gone = [(9.0, 1.0, 0.0), (0.0, 1.0, 0.0), (0.0, 1.0, 0.0)]
    assert followed(SmoothedHysteresis(1.0, alpha=0.1), gone, (9.0, 1.0, 0.0)) == [0, 1, 1]


def test_smoothed_hysteresis_without_memory_is_hysteresis():
    rng = np.random.default_rng(3)
    rates = np.exp(rng.normal(0, 0.5, (40, ROWS)))
    plain, memory, row, expected = Hysteresis(3.0).bind(setup()), (), 0, []
    for rate in rates:
        switch_s = np.where(np.arange(ROWS) == row, 0.0, 30.0)
        seen = evaluated(rate, row=row, switch_s=switch_s)
        expected.append(row := int(plain.choose(jax.random.key(0), seen, memory)[0]))
    same = SmoothedHysteresis(3.0, alpha=1.0, expected_weight=0.0)
    assert followed(same, rates, (5.0, 1.0, 0.1)) == expected
    assert len(set(expected)) == ROWS
    slow = SmoothedHysteresis(3.0, alpha=0.1)
    assert followed(slow, rates, (1.0, 1.0, 1.0)) != expected


def test_shrinkage_hysteresis_learns_how_far_averages_are_to_be_believed():
    """Row 1 is one and a half times as good as row 0 in every second interval, and half as good in the
    others: whoever believes the last measurement moves to and fro; who has seen a few stays where it is
    best in the mean. Where row 1 stays better it moves."""
    follow = SmoothedHysteresis(3.0, alpha=1.0)
    learn = SmoothedHysteresis(3.0, alpha=1.0, expected_weight=None)
    base = (1.0, 1.0, 0.0)
    forgets = [(1.0, 2.5, 0.0), (1.0, 0.4, 0.0)] * 40
    assert len(set(followed(follow, forgets, base)[-20:])) == 2
    assert len(set(followed(learn, forgets, base)[-20:])) == 1
    keeps = [(1.0, 2.5, 0.0)] * 40
    assert followed(learn, keeps, base)[-1] == 1


def draws(seen, mean_stay, count=4000):
    choose, memory = rule(Random(mean_stay))
    keys = jax.random.split(jax.random.key(5), count)
    return np.asarray(jax.vmap(lambda key: choose(key, seen, memory)[0])(keys))


def test_random_moves_now_and_then_and_never_to_what_cannot_run():
    rows = draws(evaluated((1.0, 0.0, 3.0), row=0), mean_stay=4.0)
    # Every fourth draw moves, to either of the two that run.
    share = np.bincount(rows, minlength=ROWS) / len(rows)
    assert share[1] == 0
    np.testing.assert_allclose(share[2], 0.25 / 2, atol=0.02)


def test_random_deploys_at_once_and_uniformly_where_nothing_runs_yet():
    rows = draws(evaluated((1.0, 5.0, 0.0), idle=True), mean_stay=1e9)
    share = np.bincount(rows, minlength=ROWS) / len(rows)
    np.testing.assert_allclose(share, [0.5, 0.5, 0.0], atol=0.03)


def test_random_is_reproduced_by_its_key():
    seen = evaluated((1.0, 2.0, 3.0))
    first = draws(seen, 2.0, 50)
    np.testing.assert_array_equal(first, draws(seen, 2.0, 50))
    assert len(set(first.tolist())) == ROWS


def imagined(rates, switch_s, decay):
    """Rows followed over rates [T, P]: every horizon's replay, written as a loop."""
    row = [int(np.argmax(rates[0]))] * len(HORIZONS)
    wait, score, followed = np.zeros(len(HORIZONS)), np.zeros(len(HORIZONS)), []
    for rate in rates:
        for h, horizon in enumerate(HORIZONS):
            score[h] = decay * score[h] + rate[row[h]] * max(60.0 - wait[h], 0.0)
            wait[h] = max(wait[h] - 60.0, 0.0)
            cost = np.where(np.arange(ROWS) == row[h], 0.0, switch_s)
            if np.isfinite(horizon) and wait[h] <= 0:
                wanted = int(np.argmax(rate * np.maximum(60.0 * horizon - cost, 0.0)))
                if wanted != row[h]:
                    row[h], wait[h] = wanted, cost[wanted]
        followed.append(row[int(np.argmax(score))])
    return followed


def follow(monkeypatch, rates, switch_s, decay):
    """Rows that self-tuning hysteresis chooses over rates [T, P], any switch taking `switch_s`."""

    def times(setup, row, view):
        del setup, view
        return jnp.where(jnp.arange(ROWS) == row, 0.0, jnp.float32(switch_s))

    module = self_tuning_hysteresis
    monkeypatch.setattr(module, "switch_times", times)
    monkeypatch.setattr(module, "pick_row", lambda table, row: row)
    choose, memory = rule(SelfTuningHysteresis(decay))
    idle = evaluated(rates[0], idle=True)

    def body(memory, rate):
        estimate = Estimate(rate, jnp.zeros(ROWS, jnp.int32))
        row, memory = choose(jax.random.key(0), idle.replace(now=estimate), memory)
        return memory, row

    _, rows = jax.jit(lambda m, r: jax.lax.scan(body, m, r))(memory, jnp.asarray(rates))
    return np.asarray(rows).tolist()


@pytest.mark.parametrize("decay", [0.8, 0.99])
def test_self_tuning_follows_the_leader_of_its_replays(monkeypatch, decay):
    rng = np.random.default_rng(1)
    slow = np.cumsum(rng.normal(0, 0.15, (60, ROWS)), axis=0)
    rates = np.exp(slow + rng.normal(0, 0.2, (60, ROWS))).astype(np.float32)
    followed = follow(monkeypatch, rates, 100.0, decay)
    assert followed == imagined(rates.astype(np.float64), 100.0, decay)
    assert len(set(followed)) > 1


def test_self_tuning_learns_to_sit_still_and_to_move(monkeypatch):
    # The best row alternates faster than a switch pays: the replay that never moves leads. Then
    # another row is better for good: those that move lead.
    restless = np.tile(np.array([[1.0, 1.3, 0.1], [1.3, 1.0, 0.1]], np.float32), (30, 1))
    settled = np.tile(np.array([[1.0, 1.0, 4.0]], np.float32), (30, 1))
    rows = follow(monkeypatch, np.concatenate([restless, settled]), 70.0, 0.97)
    assert len(set(rows[10:60])) == 1, "no hopping between rows that are as good"
    assert set(rows[-15:]) == {2}


# The other static rivals differ in the row they start with: see the oracles' tests.
CASES = {"single_domain": 0, "random": 1, "patient": 2, "hasty": 2}  # which scheduler plays
HORIZON = {"patient": 1e6, "hasty": 0.01}


@functools.cache
def played():
    """{case: rows aimed at [3 worlds, T], whether a move was allowed [3, T]}."""
    world, told = params(), setup()  # made here, for later tests read them as well

    @jax.jit
    @jax.vmap
    def one(which, horizon, key):
        options = [
            bound("single_domain", told),
            Random(2.0).bind(told),
            Hysteresis(horizon).bind(told),
        ]
        decide = [functools.partial(_plan_of, s.decide) for s in options]
        state, timestep = reset(key, world)

        def body(carry, t):
            state, observation = carry
            plan = jax.lax.switch(which, decide, jax.random.fold_in(key, t), observation)
            row, found = find_row(TABLE, take(plan, 0))
            allowed = observation.mask.retarget[0] & ~observation.moving[0]
            state, timestep = step(key, state, plan, world)
            return (state, timestep.observation), (jnp.where(found, row, -1), allowed)

        carry = (state, timestep.observation)
        return jax.lax.scan(body, carry, jnp.arange(STEPS, dtype=jnp.int32))[1]

    which = jnp.asarray(np.repeat([*CASES.values()], 3), jnp.int32)
    horizon = jnp.asarray(np.repeat([HORIZON.get(name, 1.0) for name in CASES], 3), jnp.float32)
    keys = jnp.tile(jax.random.split(jax.random.key(2), 3), len(CASES))
    out = jax.tree.map(np.asarray, one(which, horizon, keys))
    return {name: [x[3 * i : 3 * i + 3] for x in out] for i, name in enumerate(CASES)}


def _plan_of(decide, key, observation):
    return decide(key, observation, ())[0]


def test_a_static_plan_never_changes():
    assert set(played()["single_domain"][0].ravel().tolist()) == {1}


@pytest.mark.parametrize("name", ["single_domain", "static_even_split"])
def test_static_plans_deploy_nothing_where_the_table_has_no_row_of_their_kind(name):
    """Row 1 is of neither kind but for padding: it must not be played instead."""
    kinds = {
        "mask": jnp.array([True, False, True]),
        "single_domain": jnp.array([False, True, False]),
        "even_split": jnp.array([False, True, False]),
    }
    empty = jax.tree.map(lambda x: jnp.asarray(x)[None], empty_plan(2))
    start = params().replace(initial_plan=empty)

    @jax.jit
    def played_alone(table):
        scheduler = bound(name, make_setup(start, table))
        key = jax.random.key(0)
        state, timestep = reset(key, start)
        plan, _ = scheduler.decide(key, timestep.observation, scheduler.init(key))
        state, timestep = step(key, state, plan, start)
        return plan, timestep.record

    plan, record = played_alone(TABLE.replace(**kinds))
    np.testing.assert_array_equal(plan.group, empty.group)
    assert float(record.progress[0]) == 0 and not bool(record.switched[0])
    assert float(record.gpu_usd) == 0
    plan, record = played_alone(TABLE.replace(**{**kinds, "mask": jnp.ones(ROWS, bool)}))
    np.testing.assert_array_equal(plan.group[0], PLANS[1].group)
    assert bool(record.switched[0])


def test_everybody_stays_with_the_target_while_it_moves():
    for name, (rows, allowed) in played().items():
        assert np.all(rows >= 0), name
        held = ~allowed[:, 1:]
        assert np.all(rows[:, 1:][held] == rows[:, :-1][held]), name
    assert any(np.any(~allowed) for _, allowed in played().values()), "moves must take time"


def test_the_hasty_never_move_and_the_patient_and_the_random_do():
    assert set(played()["hasty"][0].ravel().tolist()) == {0}, "the plan in force at the start"
    assert set(played()["patient"][0][:, -1].tolist()) != {0}
    assert len(set(played()["random"][0].ravel().tolist())) > 1


def test_every_scheduler_has_a_name_and_takes_its_tuned_value():
    made = {}

    def ask(params):
        for name in names(learned=False):
            value = {tunable.leaf: 3.0 for tunable in find(name).tunables}
            made[name] = bound(name, make_setup(params, TABLE), **value)
            assert all(getattr(made[name], leaf) is not None for leaf in value)
        return params.horizon

    jax.eval_shape(ask, params())
    assert set(made) == set(names()) - {"hi_ppo"}
    with pytest.raises(InputError, match=r"hysterisis.*did you mean 'hysteresis'"):
        find("hysterisis")


def test_a_job_whose_plan_cannot_run_moves_even_where_every_move_outlasts_the_horizon():
    """Else all gains are zero, and the first of them is taken: it may be the plan that stands still."""

    def gain(rate, switch_s):
        seen = SimpleNamespace(switch_s=jnp.array(switch_s), switch_worth=None)
        return np.asarray(amortised_gain(seen, jnp.array(rate), jnp.float32(60.0), jnp.float32(10)))

    stuck = gain([0.0, 5.0, 1.0, 9.0], [0.0, 900.0, 700.0, jnp.inf])
    assert stuck.argmax() == 2  # trains first
    # Otherwise nothing changes: the plan in force runs, or a move pays within the horizon.
    assert gain([1.0, 5.0], [0.0, 900.0]).tolist() == [600.0, 0.0]
    assert gain([0.0, 5.0], [0.0, 500.0]).tolist() == [0.0, 500.0]
    assert gain([0.0, 0.0], [0.0, 900.0]).tolist() == [0.0, 0.0]


def test_ray_places_the_whole_gang_by_free_gpus_and_sees_no_link():
    """Rows ask for both domains, the first alone, both; 4 GPUs a domain."""
    ray = Ray().bind(setup()).replace(blind=jnp.array([2.0, 1.0, 3.0], jnp.float32))
    asked = [np.asarray(plan.gpus) for plan in PLANS]
    assert all(a[0] > 0 for a in asked) and asked[1][1] == 0 < asked[0][1]

    def placed(free, rates=(9.0, 1.0, 0.1), row=0, idle=True):
        view = setup().prior.replace(gpus_available=jnp.asarray(free, jnp.int32))
        seen = evaluated(rates, row=row, idle=idle).replace(view=view)
        return int(ray.choose(jax.random.key(0), seen, ())[0])

    assert placed((4, 4)) == 2  # fastest without links, whatever is measured
    assert placed((4, 0)) == 1  # the gang that finds all its GPUs
    assert placed((4, 4), row=1, idle=False) == 1  # it stays
    assert placed((4, 4), rates=(9.0, 0.0, 0.1), row=1, idle=False) == 2  # until it cannot run
    slow = params().replace(
        problem=params().problem.replace(
            cluster=params().problem.cluster.replace(
                bandwidth_gb_per_s=0.01 * params().problem.cluster.bandwidth_gb_per_s
            )
        )
    )
    same = Ray().bind(make_setup(slow, TABLE)).blind
    np.testing.assert_array_equal(same, Ray().bind(setup()).blind)


def test_bace_pipe_keeps_to_paths_that_flow_and_are_near_the_fastest():
    everything = jnp.ones(5, bool)
    rate = jnp.array([1.0, 0.95, 0.5, 2.0, 0.0])
    stalled = jnp.array([0.04, 0.0, 0.0, 0.3, 0.0])
    # Row 3 is fastest and stalls, row 2 is slow, row 4 does not run.
    assert good_paths(rate, stalled, everything).tolist() == [True, True, False, False, False]
    # Where every path stalls, those that stall least count.
    all_stall = good_paths(rate, stalled + 0.2, everything).tolist()
    assert all_stall == [False, True, False, False, False]
    without = good_paths(rate, stalled, jnp.array([False, True, True, True, True])).tolist()
    assert without == [False, True, False, False, False]


def test_bace_pipe_takes_the_cheapest_good_path_and_keeps_one_that_is_still_good(monkeypatch):
    cost = SimpleNamespace(
        runs=jnp.ones(ROWS, bool),
        exposed_wan_s=jnp.zeros(ROWS, jnp.float32),
        step_s=jnp.ones(ROWS, jnp.float32),
        gpus_used=jnp.array([[4, 4], [4, 0], [4, 4]]),
        egress_usd=jnp.array([0.0, 0.0, 1.0], jnp.float32),
        efficiency=jnp.ones(ROWS, jnp.float32),
    )
    monkeypatch.setattr(bace_pipe, "row_costs", lambda setup, choice, view: cost)
    choose, memory = rule(BacePipe())

    def chosen(rates, row, idle=False, memory=memory):
        seen = evaluated(rates, row=row, idle=idle)
        return int(choose(jax.random.key(0), seen, memory)[0])

    assert chosen((1.0, 0.95, 1.0), 0, idle=True) == 1  # half the GPUs for nearly all the speed
    assert chosen((1.0, 0.5, 1.0), 2, idle=True) == 0  # no egress
    assert chosen((1.0, 0.95, 1.0), 2) == 2  # still good
    assert chosen((1.0, 0.5, 0.4), 2) == 0
    known = setup().prior.gpus_available
    assert chosen((1.0, 0.5, 0.4), 2, memory=known) == 2  # nothing came or went
