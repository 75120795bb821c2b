"""Networks of Hi-PPO: a graph encoder, a scorer over the rows of a table, a lower policy shared across
domains. None of their shapes depends on the number of domains, plans or choices."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp
import jraph
from jax import Array
from jaxtyping import Bool, Float

from agents.hi_ppo.settings import Networks
from jaxsim.env import EDGE_FEATURES
from jaxsim.pytree import Pytree

CORRECTION = 30.0


class GraphInputs(Pytree):
    """The WAN with the plan in force, of one scenario and one job."""

    graph: jraph.GraphsTuple  # K nodes, K * K edges
    mask: Array  # [K] bool


class UpperInputs(Pytree):
    """A decision between the rows of a plan table."""

    wan: GraphInputs  # without a plan
    rows: Array  # [P, F] features of the rows, whatever is in force
    domains: Array  # [P, K] share of the layers each domain would hold
    moves: Array  # [P, M] features of the moves from the row in force
    row: Array  # [] int32 in force
    mask: Array  # [P] bool, False for what is not allowed
    prior: Array  # [P] logits of the rule where the scorer starts


class LowerInputs(Pytree):
    """A decision between settings of the plan in force."""

    wan: GraphInputs
    in_force: Array  # [K] bool, domains of the plan
    choices: Array  # [V, F'] features of the lower choices
    mask: Array  # [V] bool
    prior: Array  # [V]


def dense_sum(edges: Array, receivers: Array, n_nodes: int) -> Array:
    """Sum the messages of a fully connected graph's edges at their receivers, [K * K, H] -> [K, H].

    Edge k * K + k' leads from k to k', so the sum over senders is a sum over the first axis: on CPU
    4 to 16 times faster than a segment sum over `receivers`, which is not read.
    """
    del receivers
    return edges.reshape(n_nodes, n_nodes, edges.shape[-1]).sum(axis=0)


class GraphEncoder(nn.Module):
    """An encoder of the WAN, by `kind`:

    sage: GraphSAGE (Hamilton et al. 2017) with edge features: mean of messages, then a dense layer.
    gat: the same with the messages weighed by attention (Velickovic et al. 2018) in place of the mean.
    none: every domain for itself, no messages.
    """

    hidden: int = 32
    layers: int = 2
    kind: str = "sage"

    @nn.compact
    def __call__(self, wan: GraphInputs) -> Array:
        """Return node embeddings [K, hidden], zero for padded domains."""
        graph, mask = wan.graph, wan.mask
        n_nodes = graph.nodes.shape[0]
        real = mask.astype(jnp.float32)
        # The first edge feature says whether both ends are real and distinct.
        exists = graph.edges.reshape(n_nodes, n_nodes, EDGE_FEATURES)[:, :, 0]
        degree = jnp.maximum(exists.sum(axis=0), 1.0)
        edge_features = graph.edges
        graph = graph._replace(nodes=nn.relu(nn.Dense(self.hidden)(graph.nodes)))
        if self.kind == "none":
            return graph.nodes * real[:, None]
        for _ in range(self.layers):
            message = nn.Dense(self.hidden)
            update = nn.Dense(self.hidden)
            weigh = nn.Dense(1) if self.kind == "gat" else None

            def send(edges, senders, receivers, message=message, weigh=weigh):
                del edges
                sent = nn.relu(message(jnp.concatenate([edge_features, senders], axis=-1)))
                if weigh is None:
                    return sent * edge_features[:, :1]
                score = nn.leaky_relu(weigh(jnp.concatenate([sent, receivers], axis=-1)), 0.2)
                return sent * attention(score[:, 0], exists).reshape(-1, 1)

            def receive(nodes, received, update=update, weigh=weigh):
                mean = received / degree[:, None] if weigh is None else received
                return nn.relu(update(jnp.concatenate([nodes, mean], axis=-1))) * real[:, None]

            network = jraph.InteractionNetwork(
                update_edge_fn=send,
                update_node_fn=receive,
                aggregate_edges_for_nodes_fn=dense_sum,
            )
            graph = network(graph)
        return graph.nodes


def attention(score: Float[Array, " KK"], exists: Float[Array, "K K"]) -> Float[Array, "K K"]:
    """[K, K] weights of the messages from k to k', which sum to 1 over the senders k that exist; 0
    where no sender does."""
    score = _masked(score.reshape(exists.shape), exists > 0)
    return nn.softmax(score, axis=0) * exists


class Trust(nn.Module):
    """Weighs what moves promise by what is known of their rows, of how far averages foretell rates
    above all. A product, which a layer over the sum of both would have to learn first; starts at
    nothing."""

    @nn.compact
    def __call__(self, rows: Float[Array, "P H"], moves: Float[Array, "P M"]) -> Float[Array, " P"]:
        """Return [P]."""
        weights = nn.Dense(moves.shape[-1], kernel_init=nn.initializers.zeros)(rows)
        return jnp.sum(weights * moves, axis=-1)


class UpperNetwork(nn.Module):
    """Scorer over the rows of a table and its value; starts at the prior, whose scale is learned.

    Rows are encoded whatever is in force, so that one encoding serves a decision from every row; what
    tells origins apart is one layer over both ends of a move and its features, and how far what a move
    promises is trusted.
    """

    hidden: int = 32
    kind: str = "sage"  # of the encoder

    def setup(self):
        self.encoder = GraphEncoder(self.hidden, kind=self.kind)
        self.row_layers = [nn.Dense(2 * self.hidden), nn.Dense(self.hidden)]
        self.to, self.origin, self.way = (nn.Dense(self.hidden) for _ in range(3))
        self.score = nn.Dense(1, kernel_init=nn.initializers.zeros)
        self.trust = Trust()
        self.value_layers = [nn.Dense(2 * self.hidden), nn.Dense(1)]
        self.prior_scale = self.param("prior_scale", nn.initializers.zeros, ())

    def __call__(self, inputs: UpperInputs) -> tuple[Array, Array]:
        """Return logits [P] and value []."""
        rows, wan = self.encode(inputs.wan, inputs.rows, inputs.domains)
        origin = jnp.take(rows, inputs.row, axis=0)
        logits = self.logits(rows, origin, inputs.moves, inputs.prior, inputs.mask)
        seen = inputs.mask.astype(jnp.float32)[:, None]
        mean = (rows * seen).sum(axis=0) / jnp.maximum(seen.sum(), 1.0)
        summary = jnp.concatenate([origin, mean, wan])
        first, last = self.value_layers
        return logits, last(nn.tanh(first(summary)))[0]

    def encode(
        self, wan: GraphInputs, rows: Float[Array, "P F"], domains: Float[Array, "P K"]
    ) -> tuple[Float[Array, "P H"], Float[Array, " H"]]:
        """Return [P, hidden] of the rows and [hidden] of the WAN as a whole."""
        nodes = self.encoder(wan)
        real = wan.mask.astype(jnp.float32)
        pooled = (nodes * real[:, None]).sum(axis=0) / jnp.maximum(real.sum(), 1.0)
        everywhere = jnp.broadcast_to(pooled[None, :], (rows.shape[0], pooled.size))
        x = jnp.concatenate([rows, domains @ nodes, everywhere], axis=-1)
        for layer in self.row_layers:
            x = nn.tanh(layer(x))
        return x, pooled

    def logits(
        self,
        rows: Float[Array, "P H"],
        origin: Float[Array, " H"],
        moves: Float[Array, "P M"],
        prior: Float[Array, " P"],
        mask: Bool[Array, " P"],
    ) -> Float[Array, " P"]:
        """Return [P] of the moves from a row, whose encoding is `origin` [hidden]."""
        x = nn.relu(self.to(rows) + self.origin(origin)[None, :] + self.way(moves))
        correction = CORRECTION * (self.score(x)[:, 0] + self.trust(rows, moves))
        return _masked(jnp.exp(self.prior_scale) * (prior + correction), mask)


class LowerNetwork(nn.Module):
    """Scorer over lower choices: every domain of the plan scores them with the same weights, the
    scores average; starts at the prior."""

    hidden: int = 32
    kind: str = "sage"  # of the encoder

    @nn.compact
    def __call__(self, inputs: LowerInputs) -> tuple[Array, Array]:
        """Return logits [V] and value []."""
        nodes = GraphEncoder(self.hidden, layers=1, kind=self.kind)(inputs.wan)
        member = inputs.in_force.astype(jnp.float32)
        weight = member / jnp.maximum(member.sum(), 1.0)
        of_domain = nn.Dense(self.hidden)(nodes)  # [K, H]
        of_choice = nn.Dense(self.hidden)(inputs.choices)  # [V, H]
        x = nn.tanh(of_domain[:, None, :] + of_choice[None, :, :])
        score = nn.Dense(1, kernel_init=nn.initializers.zeros)(x)[:, :, 0]  # [K, V]
        scale = self.param("prior_scale", nn.initializers.constant(1.0), ())
        logits = _masked(scale * inputs.prior + weight @ score, inputs.mask)
        value = nn.Dense(1)(nn.tanh(nn.Dense(self.hidden)(weight @ nodes)))[0]
        return logits, value


def upper_network(of: Networks) -> UpperNetwork:
    """The network of the upper level."""
    return UpperNetwork(of.hidden, of.encoder)


def lower_network(of: Networks) -> LowerNetwork:
    """The network of the lower level."""
    return LowerNetwork(of.hidden, of.encoder)


def _masked(logits: Array, mask: Array) -> Array:
    # finfo.min, not -inf: an all-false row would be NaN. Where nothing is legal, all is equal.
    return jnp.where(mask, logits, jnp.finfo(jnp.float32).min)
