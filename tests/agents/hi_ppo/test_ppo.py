"""The loss of one batch and the step it leads to, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agents.hi_ppo.ppo import Decisions, PPOSettings, make_optimizer, ppo_loss, ppo_update

SETTINGS = PPOSettings(clip=0.2, value_weight=0.5, entropy_weight=0.01, epochs=1, minibatches=1)


def table(params, row):
    """A policy that looks its logits and its value up."""
    return params["logits"][row], params["value"][row]


def batch_of(params, ratios, advantages, weights=None, actions=None):
    """Decisions on rows 0.. that the acting policy took with probability now / ratio."""
    n = len(ratios)
    actions = jnp.zeros(n, jnp.int32) if actions is None else jnp.asarray(actions, jnp.int32)
    now = jax.nn.log_softmax(params["logits"])[jnp.arange(n), actions]
    return Decisions(
        inputs=jnp.arange(n),
        action=actions,
        log_prob=now - jnp.log(jnp.asarray(ratios, jnp.float32)),
        advantage=jnp.asarray(advantages, jnp.float32),
        target=jnp.zeros(n, jnp.float32),
        weight=jnp.ones(n, jnp.float32) if weights is None else jnp.asarray(weights, jnp.float32),
    )


def parameters(n, seed=0):
    rng = np.random.default_rng(seed)
    draw = {"logits": rng.normal(size=(n, 3)), "value": rng.normal(size=n)}
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), draw)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"),
    [
        (1.0, 2.0, 2.0),
        (1.5, 2.0, 1.2 * 2.0),  # beyond the range nothing more is promised
        (0.5, 2.0, 0.5 * 2.0),  # but a loss counts in full
        (1.5, -2.0, 1.5 * -2.0),
        (0.5, -2.0, 0.8 * -2.0),
    ],
)
def test_the_surrogate_is_the_pessimistic_one(ratio, advantage, gain):
    """Schulman et al. 2017, eq. 7: the smaller of the clipped and the plain."""
    params = parameters(1)
    _, losses = ppo_loss(params, table, batch_of(params, [ratio], [advantage]), SETTINGS)
    np.testing.assert_allclose(losses.policy, -gain, rtol=1e-5)


def test_the_parts_of_the_loss_by_hand():
    params = parameters(4)
    ratios, gains = np.array([0.9, 1.0, 1.1, 1.15]), np.array([1.0, -2.0, 0.5, 7.0])
    weights = np.array([1.0, 1.0, 1.0, 0.0])  # the last one had no choice
    batch = batch_of(params, ratios, gains, weights, actions=[0, 1, 2, 0])
    total, losses = ppo_loss(params, table, batch, SETTINGS)
    probs = np.asarray(jax.nn.softmax(params["logits"]), float)
    entropy = -(probs * np.log(probs)).sum(axis=1)
    policy = -(ratios * gains * weights).sum() / 3
    error = (np.asarray(params["value"], float) ** 2).mean()
    np.testing.assert_allclose(losses.policy, policy, rtol=1e-5)
    np.testing.assert_allclose(losses.value, error, rtol=1e-5)
    np.testing.assert_allclose(losses.entropy, entropy[:3].mean(), rtol=1e-5)
    kl = (ratios[:3] - 1 - np.log(ratios[:3])).mean()
    np.testing.assert_allclose(losses.kl, kl, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(total, policy + 0.5 * error - 0.01 * entropy[:3].mean(), rtol=1e-5)


def test_a_masked_action_has_no_entropy():
    params = {"logits": jnp.array([[0.0, 0.0, -1e9]], jnp.float32), "value": jnp.zeros(1)}
    _, losses = ppo_loss(params, table, batch_of(params, [1.0], [0.0]), SETTINGS)
    np.testing.assert_allclose(losses.entropy, np.log(2), rtol=1e-6)


def test_advantages_are_normalised_over_the_decisions_that_had_a_choice():
    """Plain gradient steps on one batch: whatever the scale of the advantages, the same step."""
    settings = PPOSettings(entropy_weight=0.0, value_weight=0.0, epochs=1, minibatches=1)
    params, weights = parameters(4), np.array([1.0, 1.0, 1.0, 0.0])
    raw = np.array([3.0, -1.0, 1.0, 50.0])
    sgd = optax.sgd(1.0)
    steps = []
    for scale, shift in ((1.0, 0.0), (10.0, 4.0)):
        batch = batch_of(params, np.ones(4), scale * raw + shift, weights)
        new, _, _ = ppo_update(
            jax.random.key(0), params, sgd.init(params), batch, table, sgd, settings
        )
        steps.append(np.asarray(new["logits"] - params["logits"]))
    chosen = raw[:3]
    normal = (chosen - chosen.mean()) / chosen.std()
    probs = np.asarray(jax.nn.softmax(params["logits"]), float)
    # d log p(0) / d logits = e_0 - p, averaged over the three decisions with a choice.
    expected = normal[:, None] * (np.eye(3)[0] - probs[:3]) / 3
    for step in steps:
        np.testing.assert_allclose(step[:3], expected, rtol=1e-3, atol=1e-5)
        assert np.all(step[3] == 0)


@pytest.mark.parametrize(("target_kl", "steps"), [(0.0, 3), (1e9, 3), (1e-6, 1)])
def test_beyond_the_target_divergence_nothing_changes(target_kl, steps):
    """The first pass starts at the policy that acted; its step already leads further than 1e-6."""
    params, sgd = parameters(4), optax.sgd(0.1)
    batch = batch_of(params, np.ones(4), np.array([3.0, -1.0, 1.0, 2.0]))
    after = []
    for epochs, limit in ((3, target_kl), (steps, 0.0)):
        settings = PPOSettings(epochs=epochs, minibatches=1, target_kl=limit)
        args = (batch, table, sgd, settings)
        after.append(ppo_update(jax.random.key(0), params, sgd.init(params), *args)[0])
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), *after)


def test_the_explained_share_of_the_targets_by_hand():
    params = {"logits": jnp.zeros((3, 3)), "value": jnp.asarray([1.0, 2.0, 3.0])}
    batch = batch_of(params, np.ones(3), np.zeros(3)).replace(target=jnp.asarray([2.0, 4.0, 6.0]))
    # Errors 1, 2, 3 vary by 2/3, targets by 8/3.
    np.testing.assert_allclose(
        ppo_loss(params, table, batch, SETTINGS)[1].explained, 0.75, rtol=1e-6
    )


def test_the_rate_decays_to_nothing_over_the_run():
    settings = PPOSettings(learning_rate=0.1, epochs=2, minibatches=3, max_grad_norm=1e9)
    optimizer = make_optimizer(settings, total_updates=5)
    weights = jnp.zeros(1)
    state, rates = optimizer.init(weights), []
    with jax.numpy_dtype_promotion("standard"):
        for _ in range(5 * 2 * 3 + 1):
            change, state = optimizer.update(jnp.ones(1), state, weights)
            rates.append(-float(change[0]))
    # Of a constant gradient Adam takes steps of the rate.
    np.testing.assert_allclose(rates, 0.1 * (1 - np.arange(31) / 30), rtol=1e-3, atol=1e-6)
