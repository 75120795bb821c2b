"""The expected progress of a policy on a recorded scenario, exact and differentiable."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jraph
from jax import Array
from jaxtyping import Float, Int

from agents.hi_ppo import GraphInputs, Statistics, UpperNetwork, move_features
from agents.hi_ppo.exact.recording import Recording
from jaxsim.trees import take


class Outcomes(NamedTuple):
    """What the T decisions of a scenario bring, see `Recording`."""

    stayed: Float[Array, "T P"]
    moved: Float[Array, "T P P"]
    after: Int[Array, "T P P"]
    started: Float[Array, " P"]
    after_start: Int[Array, ""]

    @staticmethod
    def of(recording: Recording) -> Outcomes:
        return Outcomes(*(getattr(recording, name) for name in Outcomes._fields))


def policy_values(policy: Float[Array, "T P P"], outcomes: Outcomes) -> Float[Array, "_ P"]:
    """[T + 1, P] what a policy still gains from each decision on, from each row in force.

    `policy` [T, P, P] is the probability of being in, or moving to, each row, by the row in force.
    V[t, p] = sum_q policy[t, p, q] Q[t, p, q]: Q of staying is what the row brings in the interval and
    V[t + 1, p], Q of a move what it gains until it has landed and V[after, q].
    """
    n_rows = policy.shape[-1]
    column = jnp.broadcast_to(jnp.arange(n_rows)[None, :], (n_rows, n_rows))
    stays = jnp.eye(n_rows, dtype=bool)
    length = policy.shape[0]

    def backward(values, x):
        t, probability, stayed, moved, after = x
        move = moved + values[after.astype(jnp.int32), column]
        stay = stayed + values[t + 1]
        value = jnp.sum(probability * jnp.where(stays, stay[None, :], move), axis=1)
        return values.at[t].set(value), None

    steps = jnp.arange(length), policy, outcomes.stayed, outcomes.moved, outcomes.after
    empty = jnp.zeros((length + 1, n_rows), policy.dtype)
    return jax.lax.scan(backward, empty, steps, reverse=True)[0]


def start_value(
    policy: Float[Array, " P"], values: Float[Array, "_ P"], outcomes: Outcomes
) -> Float[Array, ""]:
    """[] what is gained from idle domains on, where row q is deployed with probability `policy` [P]."""
    return jnp.sum(policy * (outcomes.started + values[outcomes.after_start]))


def policy_of(
    network: UpperNetwork, params: Any, recording: Recording, temperature: float = 1.0
) -> tuple[Float[Array, "T P P"], Float[Array, " P"]]:
    """[T, P, P] the probabilities of every decision from every row in force, and [P] those of the
    deployment on idle domains, for which the best static row stands as the one in force. Logits are
    divided by the temperature."""
    r, n_rows = recording, recording.mask.size

    def score(
        encoded: Array, stats: Statistics, switch_s: Array, price: Array, row: Array
    ) -> Array:
        """[P] probabilities of one decision."""
        way = switch_s, price, row, r.interval_s
        moves, prior = move_features(stats, r.reference, *way)
        mask = r.mask | (jnp.arange(n_rows) == row)
        args = (encoded, jnp.take(encoded, row, axis=0), moves, prior, mask)
        logits: Any = network.apply(params, *args, method="logits")
        return jax.nn.softmax(logits / temperature)

    def encode(nodes, edges, rows):
        wan = GraphInputs(wan_of(nodes, edges), r.wan_mask)
        return network.apply(params, wan, rows, r.domains, method="encode")[0]

    encoded = jax.vmap(encode)(r.nodes, r.edges, r.rows)  # [T, P, hidden]
    of_rows = jax.vmap(score, (None, None, 0, 0, 0))
    every = jnp.arange(n_rows, dtype=jnp.int32)
    price = r.usd[None] * r.usd_worth[:, None, :]
    policy = jax.vmap(of_rows, (0, 0, 0, 0, None))(encoded, r.stats, r.switch_s, price, every)
    begin_s = jnp.broadcast_to(r.start_s, (n_rows,))
    first, nothing = take(r.stats, 0), jnp.zeros_like(begin_s)
    return policy, score(encoded[0], first, begin_s, nothing, r.reference.static_row)


def wan_of(nodes: Array, edges: Array) -> jraph.GraphsTuple:
    """The graph as `jaxsim.env.wan_graph` builds it, from its features."""
    n = nodes.shape[0]
    index = jnp.arange(n, dtype=jnp.int32)
    sizes = (jnp.array([n], jnp.int32), jnp.array([n * n], jnp.int32))
    ends = jnp.repeat(index, n), jnp.tile(index, n)
    return jraph.GraphsTuple(nodes, edges, *ends, None, *sizes)


def expected_progress(
    network: UpperNetwork, params: Any, recording: Recording, temperature: float = 1.0
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """[] progress per interval that the policy makes from idle domains in expectation, and [] the mean
    over the rows in which it might begin; both relative to the best static plan at base."""
    policy, first = policy_of(network, params, recording, temperature)
    outcomes = Outcomes.of(recording)
    values = policy_values(policy, outcomes)
    somewhere = recording.mask.astype(jnp.float32)
    anywhere = jnp.sum(values[0] * somewhere) / jnp.maximum(jnp.sum(somewhere), 1.0)
    length = policy.shape[0]
    return start_value(first, values, outcomes) / length, anywhere / length
