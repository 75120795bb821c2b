"""The exact gradient: values by hand, against finite differences, against sampled returns, and against
the environment playing the same actions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_table import ROWS, TABLE, restless_world

from agents.hi_ppo.exact import record
from agents.hi_ppo.exact.value import Outcomes, policy_values, start_value
from agents.hi_ppo.settings import Networks
from agents.protocol import carry_out, make_setup, measured_rates
from jaxsim.env import reset, step
from jaxsim.planning import Objective

pytestmark = pytest.mark.slow  # as a whole: its tests share what takes long to compile

LENGTH, STEPS = 6, 8


def random_outcomes(seed, dtype=np.float32):
    """What decisions gain and where they lead, drawn: moves last one to three intervals."""
    rng = np.random.default_rng(seed)
    moves = (LENGTH, ROWS, ROWS)
    after = np.arange(LENGTH)[:, None, None] + rng.integers(1, 4, moves)
    return Outcomes(
        stayed=rng.uniform(0, 1, (LENGTH, ROWS)).astype(dtype),
        moved=rng.uniform(0, 2, moves).astype(dtype),
        after=np.minimum(after, LENGTH).astype(np.int16),
        started=rng.uniform(0, 1, ROWS).astype(dtype),
        after_start=np.int32(1),
    )


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def by_occupancy(first, policy, outcomes):
    """The expected gain forward in time, in NumPy: what is gained, times how often one is there."""
    r, total = outcomes, float(first @ outcomes.started)
    mass = np.zeros((LENGTH + 1, ROWS))
    mass[r.after_start] = first
    for t in range(LENGTH):
        for p in range(ROWS):
            for q in range(ROWS):
                often = mass[t, p] * policy[t, p, q]
                total += often * (r.stayed[t, p] if p == q else r.moved[t, p, q])
                mass[t + 1 if p == q else r.after[t, p, q], q] += often
    return total


def by_programme(logits, first, outcomes):
    values = policy_values(jax.nn.softmax(logits, axis=-1), outcomes)
    return start_value(jax.nn.softmax(first), values, outcomes)


def test_a_world_of_two_decisions_by_hand():
    """From row 0: stay (1) or move to row 1 (0.5, lands for good); then the last interval."""
    outcomes = Outcomes(
        stayed=jnp.array([[1.0, 0.0], [2.0, 4.0]]),
        moved=jnp.array([[[0, 0.5], [0, 0]], [[0, 3.0], [0, 0]]]),
        after=jnp.full((2, 2, 2), 2, jnp.int16),
        started=jnp.array([5.0, 6.0]),
        after_start=jnp.int32(1),
    )
    policy = jnp.array([[[0.75, 0.25], [0, 1]], [[0.5, 0.5], [0, 1]]])
    values = policy_values(policy, outcomes)
    # The last: 0.5 x 2 + 0.5 x 3 = 2.5 from row 0, 4 from row 1.
    # Before it: 0.75 x (1 + 2.5) + 0.25 x 0.5.
    np.testing.assert_allclose(values, [[2.75, 4.0], [2.5, 4.0], [0.0, 0.0]], rtol=1e-6)
    begun = start_value(jnp.array([0.5, 0.5]), values, outcomes)
    assert float(begun) == pytest.approx(0.5 * (5 + 2.5) + 0.5 * (6 + 4))


@pytest.mark.parametrize("seed", range(4))
def test_the_gradient_is_that_of_finite_differences(seed):
    """In float64, against the expected gain computed the other way round."""
    rng = np.random.default_rng(100 + seed)
    outcomes = random_outcomes(seed, np.float64)
    logits, first = rng.normal(size=(LENGTH, ROWS, ROWS)), rng.normal(size=ROWS)

    def expected(logits, first):
        return by_occupancy(softmax(first), softmax(logits), outcomes)

    with jax.enable_x64(True):
        value, (of_policy, of_first) = jax.value_and_grad(by_programme, (0, 1))(
            jnp.asarray(logits), jnp.asarray(first), jax.tree.map(jnp.asarray, outcomes)
        )
    np.testing.assert_allclose(value, expected(logits, first), rtol=1e-12)
    step_size = 1e-5
    for which, exact in ((logits, np.asarray(of_policy)), (first, np.asarray(of_first))):
        for index in np.ndindex(which.shape):
            kept, sides = which[index], []
            for sign in (1, -1):
                which[index] = kept + sign * step_size
                sides.append(expected(logits, first))
            which[index] = kept
            slope = (sides[0] - sides[1]) / (2 * step_size)
            assert abs(slope - exact[index]) < 1e-6, index


def test_sampled_returns_times_scores_have_the_gradient_as_their_mean():
    """The score-function estimate (Williams 1992) over 40,000 episodes, within four standard errors."""
    rng = np.random.default_rng(5)
    r = random_outcomes(5)
    logits = rng.normal(size=(LENGTH, ROWS, ROWS)).astype(np.float32)
    first, n = np.zeros(ROWS, np.float32), 40_000
    known = jax.tree.map(jnp.asarray, r)
    exact = np.asarray(jax.grad(by_programme)(jnp.asarray(logits), jnp.asarray(first), known))
    policy = softmax(logits.astype(float))
    row = rng.integers(0, ROWS, n)
    gained, due = r.started[row].astype(float), np.full(n, int(r.after_start))
    scores = np.zeros((n, *logits.shape), np.float32)
    for t in range(LENGTH):
        now = np.flatnonzero(due == t)
        at = row[now]
        to = (
            (rng.random((now.size, 1)) > policy[t, at].cumsum(axis=1))
            .sum(axis=1)
            .clip(max=ROWS - 1)
        )
        scores[now, t, at] -= policy[t, at]
        scores[now, t, at, to] += 1
        gained[now] += np.where(at == to, r.stayed[t, at], r.moved[t, at, to])
        due[now] = np.where(at == to, t + 1, r.after[t, at, to])
        row[now] = to
    sampled = scores * gained[:, None, None, None]
    error = sampled.std(axis=0) / np.sqrt(n)
    assert np.all(np.abs(sampled.mean(axis=0) - exact) <= 4 * error + 1e-6)
    assert np.abs(exact).max() > 0.05


WEIGHTS = (0.5, 0.2, 0.3, 0.0)


@functools.cache
def toy(weighed):
    """A world of three domains whose links move a lot, its recording, and functions to play it."""
    params = restless_world(STEPS, restart_s=70.0)
    if weighed:
        objective = Objective.of(WEIGHTS)
        params = params.replace(weights=objective.weights, objective=objective)
    key, setup = jax.random.key(4), make_setup(params, TABLE)

    @jax.jit
    def play(state, observation, row):
        choice = jnp.argmax(measured_rates(setup, observation)[row]).astype(jnp.int32)
        plan = carry_out(setup, row, choice, observation.view)
        state, timestep = step(key, state, plan, params)
        # Of the reward's first part the constant does not count.
        gained = timestep.reward + params.weights[0]
        gained = gained if weighed else timestep.record.progress[0] / params.progress_ref[0]
        return state, timestep.observation, gained

    recording = jax.jit(lambda params: record(params, TABLE, key, STEPS, Networks()))(params)
    return jax.jit(reset)(key, params), play, recording


@pytest.mark.parametrize(
    "weighed",
    [
        pytest.param(False, id="progress"),
        pytest.param(True, id="objective", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_values_are_what_the_environment_plays(seed, weighed):
    """A random schedule of rows, played; V of the policy that always does the same is its progress, or
    its return: egress of the steps and of the moves, and what GPUs are used for, included."""
    (state, timestep), play, recording = toy(weighed)
    wanted = np.random.default_rng(seed).integers(0, ROWS, (STEPS, ROWS))
    wanted[0] = (1, 2, 0)  # the first decision moves
    policy = np.eye(ROWS, dtype=np.float32)[wanted]
    values = policy_values(jnp.asarray(policy), Outcomes.of(recording))
    observation, row, total, moved = timestep.observation, 0, 0.0, 0
    for t in range(STEPS):
        if not bool(observation.moving[0]):
            moved += row != wanted[t, row]
            row = int(wanted[t, row])
        state, observation, gained = play(state, observation, jnp.int32(row))
        total += float(gained)
    assert moved >= 2
    assert float(values[0, 0]) == pytest.approx(total, rel=1e-4)
