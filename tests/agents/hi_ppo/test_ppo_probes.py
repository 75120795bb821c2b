"""Probe environments: each fails for one reason, so that a fault is found where it is.

Five of them, for both policies, with the trainer's own sampling, advantages and update: constant
reward (values), reward one decision later (discounts, traces), reward for one action (gradient),
reward for the action that the observation names (inputs), a tempting action that is not allowed
(masks). Episodes have two decisions; all five are learned in one compiled program.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from flax import struct

from agents.hi_ppo.networks import GraphInputs, LowerInputs, LowerNetwork, UpperInputs, UpperNetwork
from agents.hi_ppo.ppo import Decisions, PPOSettings, make_optimizer, ppo_loss, ppo_update
from agents.hi_ppo.training import _decisions, _sample
from jaxsim.env.observation import EDGE_FEATURES
from jaxsim.trees import stack, take

ACTIONS, OBSERVATIONS, STEPS, BATCH, UPDATES = 3, 2, 2, 64, 160
# The upper network's last layer counts for many logits.
RATES = {"upper": 0.002, "lower": 0.02}
SETTINGS = PPOSettings(epochs=2, minibatches=2)
INTERVALS = 3  # between the two decisions of the upper policy
DISCOUNTS = {"upper": 0.95**INTERVALS, "lower": 0.5}
NAMES = ("constant", "two_step", "action", "observation", "masked")


@struct.dataclass
class Probe:
    """A world of two decisions."""

    reward: jax.Array  # [STEPS, OBSERVATIONS, ACTIONS before, ACTIONS]
    ends: jax.Array  # [] bool, an episode ends after every decision
    mask: jax.Array  # [ACTIONS] bool


def probes():
    """Leaves [5, ...], in the order of NAMES."""
    shape = (STEPS, OBSERVATIONS, ACTIONS, ACTIONS)
    t, seen, before, now = np.indices(shape)
    rewards = [
        np.ones(shape),
        (t == 1) & (before == 1),
        now == 2,
        now == seen,
        np.where(now == 0, 10.0, now == 2),
    ]
    mask = np.ones((len(NAMES), ACTIONS), bool)
    mask[4, 0] = False
    return Probe(
        jnp.asarray(np.stack(rewards), jnp.float32),
        jnp.array([True, False, True, True, True]),
        jnp.asarray(mask),
    )


def inputs_of(level, t, seen, before, mask):
    """What a policy is shown: two domains whose features say where the episode stands."""
    state = jnp.stack([t == 1, seen == 1, seen == 0, *(before == a for a in range(ACTIONS))])
    nodes = jnp.broadcast_to(state.astype(jnp.float32), (2, state.size))
    link = jnp.array([0.0, 1.0, 1.0, 0.0], jnp.float32)
    graph = jraph.GraphsTuple(
        nodes=nodes,
        edges=jnp.broadcast_to(link[:, None], (4, EDGE_FEATURES)),
        senders=jnp.array([0, 0, 1, 1]),
        receivers=jnp.array([0, 1, 0, 1]),
        globals=None,
        n_node=jnp.array([2]),
        n_edge=jnp.array([4]),
    )
    wan = GraphInputs(graph, jnp.ones(2, bool))
    names, prior = jnp.eye(ACTIONS, dtype=jnp.float32), jnp.zeros(ACTIONS, jnp.float32)
    if level == "upper":
        held = jnp.full((ACTIONS, 2), 0.5, jnp.float32)
        return UpperInputs(wan, names, held, jnp.zeros((ACTIONS, 1)), before, mask, prior)
    return LowerInputs(wan, jnp.ones(2, bool), names, mask, prior)


NETWORKS = {"upper": UpperNetwork(16), "lower": LowerNetwork(16)}


@functools.cache
def learned(level):
    """[5] parameters learned, and how often each action was taken [5, ACTIONS]."""
    network = NETWORKS[level]
    optimizer = make_optimizer(dataclasses.replace(SETTINGS, learning_rate=RATES[level]), UPDATES)
    show = functools.partial(inputs_of, level)

    def episode(key, params, probe):
        """One episode, leaves [STEPS]."""
        before, choices, rewards = jnp.int32(0), [], []
        for t in range(STEPS):
            world_key, act_key = jax.random.split(jax.random.fold_in(key, t))
            seen = jax.random.randint(world_key, (), 0, OBSERVATIONS)
            inputs = show(jnp.int32(t), seen, before, probe.mask)
            choice = _sample(act_key, network.apply(params, inputs), inputs)
            rewards.append(probe.reward[t, seen, before, choice.action])
            choices.append(choice)
            before = choice.action
        return stack(choices), jnp.stack(rewards)

    def update(probe, carry, key):
        params, opt_state = carry
        play_key, update_key = jax.random.split(key)
        keys = jax.random.split(play_key, BATCH)
        played = jax.vmap(episode, (0, None, None), out_axes=1)(keys, params, probe)
        choice, rewards = played
        follows = jnp.where(probe.ends, 0.0, DISCOUNTS[level])
        discount = jnp.stack([follows, jnp.float32(0.0)])[:, None]
        discount = jnp.broadcast_to(discount, rewards.shape)
        batch = _decisions(choice, rewards, jnp.zeros(BATCH), discount, SETTINGS.trace_decay)
        args = (network.apply, optimizer, SETTINGS)
        params, opt_state, _ = ppo_update(update_key, params, opt_state, batch, *args)
        return (params, opt_state), jnp.bincount(choice.action.reshape(-1), length=ACTIONS)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, None))
    def learn(probe, key):
        start = show(jnp.int32(0), jnp.int32(0), jnp.int32(0), probe.mask)
        params = network.init(key, start)
        carry = (params, optimizer.init(params))
        keys = jax.random.split(jax.random.fold_in(key, 1), UPDATES)
        (params, _), taken = jax.lax.scan(functools.partial(update, probe), carry, keys)
        return params, taken.sum(axis=0)

    return learn(probes(), jax.random.key(3))


@functools.cache
def judged(level):
    """Probabilities [5, STEPS, OBSERVATIONS, ACTIONS before, ACTIONS] and values, one axis less."""
    params, _ = learned(level)
    states = jnp.meshgrid(*map(jnp.arange, (STEPS, OBSERVATIONS, ACTIONS)), indexing="ij")

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(0, 0))
    def all_states(params, mask):
        def one(t, seen, before):
            inputs = inputs_of(level, t, seen, before, mask)
            logits, value = NETWORKS[level].apply(params, inputs)
            return jax.nn.softmax(logits), value

        out = jax.vmap(one)(*(s.reshape(-1) for s in states))
        return jax.tree.map(lambda x: x.reshape(*states[0].shape, *x.shape[1:]), out)

    return [np.asarray(x) for x in all_states(params, probes().mask)]


def of(level, name):
    probability, value = judged(level)
    return probability[NAMES.index(name)], value[NAMES.index(name)]


LEVELS = pytest.mark.parametrize("level", ["upper", "lower"])


@LEVELS
def test_a_constant_reward_is_the_value(level):
    _, value = of(level, "constant")
    np.testing.assert_allclose(value[1], 1.0, atol=0.05)
    np.testing.assert_allclose(value[0, :, 0], 1.0, atol=0.05)


@LEVELS
def test_a_reward_one_decision_later_is_credited_and_discounted(level):
    probability, value = of(level, "two_step")
    assert np.all(probability[0, :, 0, 1] > 0.9), "the first action brings it"
    np.testing.assert_allclose(value[1, :, 1], 1.0, atol=0.1)
    np.testing.assert_allclose(value[0, :, 0], DISCOUNTS[level], atol=0.1)


@LEVELS
def test_the_action_that_is_rewarded_is_learned(level):
    probability, value = of(level, "action")
    assert np.all(probability[1, ..., 2] > 0.9) and np.all(probability[0, :, 0, 2] > 0.9)
    np.testing.assert_allclose(value[1, :, 2], 1.0, atol=0.1)


@LEVELS
def test_the_action_that_the_observation_names_is_learned(level):
    probability, _ = of(level, "observation")
    for seen in range(OBSERVATIONS):
        assert np.all(probability[0, seen, 0, seen] > 0.85)
        assert np.all(probability[1, seen, :2, seen] > 0.85)


@LEVELS
def test_a_masked_action_is_never_taken_however_tempting(level):
    probability, _ = of(level, "masked")
    taken = np.asarray(learned(level)[1])[NAMES.index("masked")]
    assert taken[0] == 0 and taken.sum() == UPDATES * BATCH * STEPS
    assert np.all(probability[..., 0] == 0.0)
    assert np.all(probability[0, :, 0, 2] > 0.9)


@LEVELS
def test_masked_actions_are_never_drawn_in_ten_thousand_draws(level):
    network = NETWORKS[level]
    mask = jnp.array([False, True, True])
    inputs = inputs_of(level, jnp.int32(0), jnp.int32(0), jnp.int32(0), mask)
    inputs = inputs.replace(prior=jnp.array([50.0, 0.0, -2.0], jnp.float32))

    @jax.jit
    def draw(key):
        output = network.apply(network.init(key, inputs), inputs)
        keys = jax.random.split(key, 10_000)
        return jax.vmap(lambda key: _sample(key, output, inputs))(keys)

    drawn = draw(jax.random.key(1))
    counts = np.bincount(drawn.action, minlength=ACTIONS)
    assert counts[0] == 0 and np.all(counts[1:] > 500)
    assert np.all(np.isfinite(drawn.log_prob)) and np.all(drawn.weight == 1)


@LEVELS
def test_rows_with_one_or_no_legal_action_leave_loss_and_gradient_finite(level):
    network = NETWORKS[level]
    masks = jnp.array([[True, True, True], [False, True, False], [False, False, False]])
    zero = jnp.int32(0)

    @jax.jit
    def start(key):
        rows = jax.vmap(lambda mask: inputs_of(level, zero, zero, zero, mask))(masks)
        params = network.init(key, take(rows, 0))
        output = jax.vmap(network.apply, (None, 0))(params, rows)
        return params, jax.vmap(_sample)(jax.random.split(key, 3), output, rows)

    params, choice = start(jax.random.key(0))
    assert choice.weight.tolist() == [1.0, 0.0, 0.0] and int(choice.action[1]) == 1
    advantage = jnp.array([1.0, -2.0, 3.0], jnp.float32)
    batch = Decisions(
        choice.inputs, choice.action, choice.log_prob, advantage, advantage, choice.weight
    )

    @jax.jit
    def loss_and_gradient(batch):
        grad, losses = jax.grad(ppo_loss, has_aux=True)(params, network.apply, batch, SETTINGS)
        return grad, losses

    for weight in (batch.weight, jnp.zeros(3, jnp.float32)):
        out = loss_and_gradient(batch.replace(weight=weight))
        assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(out))
    grad, losses = loss_and_gradient(batch)
    # The rows without a choice teach the value alone.
    np.testing.assert_allclose(losses.policy, -1.0, rtol=1e-5)
    np.testing.assert_allclose(losses.entropy, np.log(3), rtol=1e-5)
    assert any(np.any(x != 0) for x in jax.tree.leaves(grad))
