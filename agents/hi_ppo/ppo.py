"""Clipped policy optimisation of one policy: loss and update, the same for both levels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from agents.hi_ppo.settings import PPOSettings
from jaxsim.pytree import Pytree
from jaxsim.trees import take


class Decisions(Pytree):
    """A batch of decisions of one policy, [N, ...]."""

    inputs: Any
    action: Int[Array, "*batch N"]
    log_prob: Float[Array, "*batch N"]  # under the policy that acted
    advantage: Float[Array, "*batch N"]
    target: Float[Array, "*batch N"]  # value target
    weight: Float[Array, "*batch N"]  # 0 where there was no choice


class Losses(Pytree):
    """[] each, for the records."""

    policy: Float[Array, "*batch"]
    value: Float[Array, "*batch"]
    entropy: Float[Array, "*batch"]
    kl: Float[Array, "*batch"]
    explained: Float[Array, "*batch"]  # share of the targets' variance that the value explains


def ppo_loss(
    params: Any, apply: Callable, batch: Decisions, settings: PPOSettings
) -> tuple[Array, Losses]:
    """Clipped surrogate, squared value error, entropy bonus; decisions without a choice teach the
    value alone. `apply(params, inputs) -> (logits [A], value [])` for one decision."""
    logits, value = jax.vmap(apply, (None, 0))(params, batch.inputs)
    log_probs = jax.nn.log_softmax(logits)
    log_prob = jnp.take_along_axis(log_probs, batch.action[:, None], axis=1)[:, 0]
    n_choices = jnp.maximum(jnp.sum(batch.weight), 1.0)
    ratio = jnp.exp(log_prob - batch.log_prob)
    clipped = jnp.clip(ratio, 1.0 - settings.clip, 1.0 + settings.clip)
    gain = jnp.minimum(ratio * batch.advantage, clipped * batch.advantage)
    policy = -jnp.sum(gain * batch.weight) / n_choices
    error = jnp.mean((value - batch.target) ** 2)
    explained = 1.0 - jnp.var(batch.target - value) / jnp.maximum(jnp.var(batch.target), 1e-12)
    probs = jnp.exp(log_probs)
    # p log p of a masked action is 0 times a huge number: keep it out.
    surprise = jnp.where(probs > 1e-8, -probs * log_probs, 0.0).sum(axis=1)
    entropy = jnp.sum(surprise * batch.weight) / n_choices
    total = policy + settings.value_weight * error - settings.entropy_weight * entropy
    # Never negative and of little variance (Schulman, "Approximating KL divergence", 2020).
    kl = jnp.sum((ratio - 1.0 - jnp.log(ratio)) * batch.weight) / n_choices
    return total, Losses(policy, error, entropy, kl, explained)


def make_optimizer(settings: PPOSettings, total_updates: int) -> optax.GradientTransformation:
    """Adam behind a global-norm clip, with a linearly decaying rate."""
    steps = max(1, total_updates * settings.epochs * settings.minibatches)
    schedule = optax.linear_schedule(settings.learning_rate, 0.0, steps)
    return optax.chain(
        optax.clip_by_global_norm(settings.max_grad_norm), optax.adam(schedule, eps=1e-5)
    )


def ppo_update(
    key: Array,
    params: Any,
    opt_state: Any,
    batch: Decisions,
    apply: Callable,
    optimizer: optax.GradientTransformation,
    settings: PPOSettings,
) -> tuple[Any, Any, Losses]:
    """Several passes of shuffled minibatches over a batch [N, ...]; returns mean losses.

    From the first minibatch on in which the new policy is further than `target_kl` from the one that
    acted, nothing changes any more.
    """
    size = batch.action.shape[0]
    weight = batch.weight
    mean = jnp.sum(batch.advantage * weight) / jnp.maximum(jnp.sum(weight), 1.0)
    var = jnp.sum((batch.advantage - mean) ** 2 * weight) / jnp.maximum(jnp.sum(weight), 1.0)
    batch = batch.replace(advantage=(batch.advantage - mean) / (jnp.sqrt(var) + 1e-6))

    def one_minibatch(carry, index):
        params, opt_state, far = carry
        part = take(batch, index)
        grads, losses = jax.grad(ppo_loss, has_aux=True)(params, apply, part, settings)
        # optax raises a float to an int power, which strict promotion refuses.
        with jax.numpy_dtype_promotion("standard"):
            updates, new_state = optimizer.update(grads, opt_state, params)
        new = optax.apply_updates(params, updates), new_state
        if settings.target_kl:
            far = far | (losses.kl > settings.target_kl)
            new = jax.tree.map(lambda x, y: jnp.where(far, x, y), (params, opt_state), new)
        return (*new, far), losses

    def one_epoch(carry, epoch_key):
        order = jax.random.permutation(epoch_key, size)
        index = order.reshape(settings.minibatches, size // settings.minibatches)
        return jax.lax.scan(one_minibatch, carry, index)

    keys = jax.random.split(key, settings.epochs)
    (params, opt_state, _), losses = jax.lax.scan(
        one_epoch, (params, opt_state, jnp.bool_(False)), keys
    )
    return params, opt_state, jax.tree.map(jnp.mean, losses)
