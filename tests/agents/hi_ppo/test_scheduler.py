"""Hi-PPO as a scheduler: it sees live what it was trained on, decides feasibly, and knows no future."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plan_check import check_plan
from helpers.toy_table import PLANS, TABLE
from helpers.toy_world import JOB, calibration, cluster_spec, env_params

from agents.hi_ppo.features import (
    init_statistics,
    lower_inputs,
    make_reference,
    update_statistics,
    upper_inputs,
)
from agents.hi_ppo.networks import LowerNetwork, UpperNetwork
from agents.hi_ppo.scheduler import HiPPO, PolicyParams, measure, policy_shapes
from agents.hi_ppo.settings import Networks, TrainSettings
from agents.hi_ppo.training import Trainer, make_tape
from agents.protocol import find_row, make_setup
from agents.staying import expected_losses, first_layouts, reference_rates
from jaxsim.env.env import reset, step
from jaxsim.trees import stack, take

pytestmark = pytest.mark.slow  # as a whole: its tests share what takes long to compile

STEPS, CHANGE, HIDDEN, EVERY = 8, 4, 8, 2
KEY = jax.random.key(4)


def worlds():
    """Params [2] of two futures: the same links before interval CHANGE, others after."""
    rng = np.random.default_rng(6)
    calm = np.exp(rng.normal(0, 0.5, (STEPS + 2, 3, 3))).astype(np.float32)
    wild = calm.copy()
    wild[CHANGE:] = np.exp(rng.normal(0, 1.5, wild[CHANGE:].shape))
    both = [
        env_params(
            cluster_spec(3, gpus=4, gbps=2.0),
            JOB,
            PLANS[0],
            network={"trace": jnp.asarray(trace), "white": 0.1, "latency": 0.2},
            load={"share": 0.2, "swing": 0.3},
            efficiency=calibration(restart_s=70.0),
            horizon=jnp.int32(STEPS),
        )
        for trace in (calm, wild)
    ]
    return stack(both)


def policy_of(setup, observation):
    """Both policies with every weight moved away from its start: nothing hides behind a zero."""
    reference = make_reference(reference_rates(setup), expected_losses(setup))
    measured, _ = measure(setup, observation, reference, first_layouts(setup))
    stats = init_statistics(reference)
    high = upper_inputs(setup, observation, stats, stats.last, reference, measured)
    low = lower_inputs(setup, observation, measured.rates, measured.row)
    params = PolicyParams(
        UpperNetwork(HIDDEN).init(jax.random.key(0), high),
        LowerNetwork(HIDDEN).init(jax.random.key(1), low),
    )
    leaves, structure = jax.tree.flatten_with_path(params)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    # What moves promise is trusted a little: else the policy would hardly ever stay.
    moved = [
        x + (0.04 if "trust" in jax.tree_util.keystr(path) else 0.3) * jax.random.normal(k, x.shape)
        for (path, x), k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)


@functools.cache
def played():
    """One episode in each world, interval by interval from the host: what was seen and decided.

    That `decide` compiles once is asserted on the way.
    """
    both = worlds()
    tapes = jax.jit(jax.vmap(lambda p: make_tape(p, TABLE, KEY, STEPS, Networks(HIDDEN))))(both)
    settings = TrainSettings(envs=4, rollout=4, hidden=HIDDEN, every=EVERY)
    trainer = Trainer(settings, TABLE, tapes, STEPS, 1)

    @jax.jit
    @chex.assert_max_traces(n=1)
    def decide(params, policy, observation, memory):
        scheduler = HiPPO(policy, EVERY, Networks(HIDDEN)).bind(make_setup(params, TABLE))
        return scheduler.decide(KEY, observation, memory)

    @jax.jit
    def start(params):
        state, timestep = reset(KEY, params)
        setup = make_setup(params, TABLE)
        policy = policy_of(setup, timestep.observation)
        memory = HiPPO(policy, EVERY, Networks(HIDDEN)).bind(setup).init(KEY)
        return state, timestep.observation, policy, memory

    @jax.jit
    def advance(params, state, plan):
        state, timestep = step(KEY, state, plan, params)
        return state, timestep.observation

    @jax.jit
    def both_inputs(params, tape, state, observation, memory):
        """What the scheduler computes from the observation, and what training looks up."""
        setup = make_setup(params, TABLE)
        live_reference = make_reference(reference_rates(setup), expected_losses(setup))
        taped_reference = tape.reference
        out = []
        for measured, reference in (
            (measure(setup, observation, live_reference, memory.layouts)[0], live_reference),
            (trainer._measured(observation, tape), taped_reference),
        ):
            now = update_statistics(memory.stats, measured.rates.max(axis=-1), measured.lost)
            before = memory.stats.last
            high = upper_inputs(setup, observation, now, before, reference, measured)
            low = lower_inputs(setup, observation, measured.rates, measured.row)
            out.append((measured, now, high, low))
        return out

    episodes = []
    for which in range(2):
        params, tape = take((both, tapes), which)
        state, observation, policy, memory = start(params)
        if which == 1:
            policy = episodes[0][0]["policy"]
        rows = []
        for _ in range(STEPS):
            inputs = both_inputs(params, tape, state, observation, memory)
            plan, after = decide(params, policy, observation, memory)
            rows.append(
                {
                    "policy": policy,
                    "plan": plan,
                    "inputs": inputs,
                    "observation": observation,
                    "clock": int(memory.clock),
                    "stats": after.stats,
                }
            )
            memory = after
            state, observation = advance(params, state, plan)
        episodes.append(rows)
    return episodes, both


def test_fresh_parameters_fit_the_inputs_of_a_world():
    policy = played()[0][0][0]["policy"]
    assert shapes(policy) == shapes(policy_shapes(Networks(HIDDEN)))


def shapes(tree):
    return jax.tree.map(lambda x: (x.shape, str(x.dtype)), tree)


def close(live, taped, **tolerance):
    assert jax.tree.structure(live) == jax.tree.structure(taped)
    for a, b in zip(jax.tree.leaves(live), jax.tree.leaves(taped), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.nightly
def test_what_is_measured_live_is_what_training_looks_up():
    rows = set()
    for episode in played()[0]:
        for interval in episode:
            (live, _, _, _), (taped, _, _, _) = interval["inputs"]
            observation = interval["observation"]
            np.testing.assert_allclose(live.rates, taped.rates, rtol=1e-4)
            np.testing.assert_allclose(live.lost, taped.lost, rtol=1e-4, atol=1e-9)
            assert int(live.row) == int(taped.row)
            rows.add(int(live.row))
            if bool(observation.moving[0]):
                continue  # nobody asks for it then: decisions wait for the move to end
            np.testing.assert_allclose(live.switch_s, taped.switch_s, rtol=1e-4, atol=1e-2)
            assert float(live.switch_s[int(live.row)]) == 0.0
    assert len(rows) > 1, "the policy must have moved"


def test_the_networks_are_given_live_what_they_were_trained_on():
    compared = 0
    for episode in played()[0]:
        for interval in episode:
            (_, *live), (_, *taped) = interval["inputs"]
            for name, a, b in zip(("statistics", "upper", "lower"), live, taped, strict=True):
                if name != "upper" or not bool(interval["observation"].moving[0]):
                    close(a, b, rtol=1e-3, atol=1e-3)
                    compared += name == "upper"
    assert STEPS // 2 < compared < 2 * STEPS, "some intervals are spent moving, many are not"


def test_every_decision_can_be_carried_out():
    episodes, both = played()
    for which, episode in enumerate(episodes):
        params = take(both, which)
        for interval in episode:
            plan = jax.tree.map(lambda x: np.asarray(x[0]), interval["plan"])
            check_plan(
                plan,
                params.problem.work.job(0),
                np.asarray(params.problem.cluster.gpus),
                ("a", "b", "c"),
            )


def test_the_upper_level_decides_every_other_interval_and_waits_while_moving():
    for episode in played()[0]:
        targets = [int(find_row(TABLE, take(i["plan"], 0))[0]) for i in episode]
        assert [i["clock"] for i in episode] == [t % EVERY for t in range(STEPS)]
        for t, interval in enumerate(episode):
            held = interval["clock"] != 0 or bool(interval["observation"].moving[0])
            if held and t > 0:
                assert targets[t] == targets[t - 1], t


def test_a_changed_future_changes_no_decision_before_it_is_measured():
    calm, wild = played()[0]

    def same(t, field):
        a, b = (jax.tree.leaves(e[t][field]) for e in (calm, wild))
        return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

    # Decision t + 1 has measured intervals 0..t; the links differ from interval CHANGE on.
    assert all(same(t, "plan") and same(t, "stats") for t in range(CHANGE))
    assert not any(same(t, "stats") for t in range(CHANGE, STEPS))
    assert not all(same(t, "plan") for t in range(CHANGE, STEPS)), "it does look at the links"
