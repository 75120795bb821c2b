"""Networks: sizes that do not matter, order that does not matter, and where they start."""

import functools

import jax
import jax.numpy as jnp
import jraph
import numpy as np
import pytest
from helpers.toy_world import JOB, cluster_spec, env_params, make_plan

from agents.hi_ppo.features import graph_inputs
from agents.hi_ppo.networks import (
    GraphEncoder,
    GraphInputs,
    LowerInputs,
    LowerNetwork,
    Trust,
    UpperInputs,
    UpperNetwork,
    attention,
    dense_sum,
)
from jaxsim.env.env import reset
from jaxsim.env.observation import EDGE_FEATURES, JOB_NODE_FEATURES, NODE_FEATURES

PLAN = make_plan([(2, 0), (3,)], [(5, 3), (8,)], [3, 2], 4, dp=2, micro_batch=2)
ROWS, FEATURES, MOVES, CHOICES, CHOICE_FEATURES = 7, 6, 3, 5, 4
first_observation = jax.jit(lambda key, params: reset(key, params)[1].observation)


@functools.cache
def wan(k=4):
    """The WAN of four unlike domains with a plan on it, padded to k."""
    params = env_params(cluster_spec(4), JOB, PLAN, k, network={"white": 0.5, "latency": 0.3})
    return graph_inputs(first_observation(jax.random.key(5), params))


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def upper_inputs(k=4):
    share = jax.nn.softmax(draw(ROWS, 4, seed=1), axis=1)
    return UpperInputs(
        wan=wan(k),
        rows=draw(ROWS, FEATURES, seed=2),
        domains=jnp.pad(share, ((0, 0), (0, k - 4))),
        moves=draw(ROWS, MOVES, seed=6),
        row=jnp.int32(3),
        mask=jnp.array([True, True, False, True, True, False, True]),
        prior=3.0 * draw(ROWS, seed=3),
    )


def lower_inputs(k=4):
    return LowerInputs(
        wan=wan(k),
        in_force=jnp.pad(jnp.array([True, False, True, True]), (0, k - 4)),
        choices=draw(CHOICES, CHOICE_FEATURES, seed=4),
        mask=jnp.array([True, False, True, True, True]),
        prior=2.0 * draw(CHOICES, seed=5),
    )


CASES = {
    "upper": (UpperNetwork(8), upper_inputs),
    "lower": (LowerNetwork(8), lower_inputs),
    "upper, attention": (UpperNetwork(8, "gat"), upper_inputs),
    "upper, no messages": (UpperNetwork(8, "none"), upper_inputs),
}
LEVELS = pytest.mark.parametrize("level", CASES)


@functools.cache
def parameters(level, trained=True):
    """As initialised, or with every weight moved away from zero."""
    network, inputs = CASES[level]
    params = jax.jit(network.init)(jax.random.key(1), inputs())
    rng = np.random.default_rng(9)

    def moved(x):
        return np.asarray(x) + 0.3 * rng.normal(size=x.shape).astype(np.float32)

    return jax.tree.map(moved, params) if trained else params


apply = {level: jax.jit(network.apply) for level, (network, _) in CASES.items()}


@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_dense_sum_is_the_segment_sum_over_receivers(k):
    messages, nodes = draw(k * k, 5), draw(k, 2)
    graph = jraph.GraphsTuple(
        nodes=nodes,
        edges=messages,
        senders=jnp.repeat(jnp.arange(k), k),
        receivers=jnp.tile(jnp.arange(k), k),
        globals=None,
        n_node=jnp.array([k]),
        n_edge=jnp.array([k * k]),
    )

    def received(**aggregate):
        network = jraph.InteractionNetwork(
            update_edge_fn=lambda edges, senders, receivers: edges * senders[:, :1],
            update_node_fn=lambda nodes, received: received,
            **aggregate,
        )
        return network(graph).nodes

    expected = received()  # jraph's own: a segment sum
    got = received(aggregate_edges_for_nodes_fn=dense_sum)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert got.shape == (k, 5) and np.any(np.asarray(got) != 0)


def test_the_encoder_is_the_same_with_jraphs_own_aggregation(monkeypatch):
    encoder, graph = GraphEncoder(8), wan()

    @jax.jit
    def embeddings(key):
        params = encoder.init(key, graph)
        dense = encoder.apply(params, graph)
        monkeypatch.setattr("agents.hi_ppo.networks.dense_sum", jraph.segment_sum)
        return dense, encoder.apply(params, graph)

    expected, got = embeddings(jax.random.key(0))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert np.asarray(expected).std() > 0.01


@LEVELS
def test_padding_the_domains_changes_nothing(level):
    inputs = CASES[level][1]
    small, large = (apply[level](parameters(level), inputs(k)) for k in (4, 8))
    for a, b in zip(small, large, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["sage", "gat"])
def test_neighbours_are_averaged_and_not_summed(kind):
    """Of two domains or of five that are all alike, each looks the same."""

    def alike(k):
        apart = 1.0 - jnp.eye(k, dtype=jnp.float32).reshape(-1, 1)
        index = jnp.arange(k, dtype=jnp.int32)
        nodes = jnp.full((k, wan().graph.nodes.shape[1]), 0.4, jnp.float32)
        edges = (0.3 * apart * jnp.ones((1, EDGE_FEATURES))).at[:, 0].set(apart[:, 0])
        ends = {"senders": jnp.repeat(index, k), "receivers": jnp.tile(index, k)}
        graph = wan().graph._replace(nodes=nodes, edges=edges, **ends)
        return GraphInputs(graph, jnp.ones((k,), bool))

    encoder = GraphEncoder(8, kind=kind)
    params = jax.tree.map(lambda x: x + 0.1, encoder.init(jax.random.key(2), alike(2)))
    two, five = (np.asarray(encoder.apply(params, alike(k))) for k in (2, 5))
    assert two.max() > 0.1
    np.testing.assert_allclose(five, np.repeat(two[:1], 5, axis=0), rtol=1e-5)


def test_attention_by_hand():
    """Domain 2 hears 0 and 1, whose scores are log 3 apart; 1 hears 0 alone; 0 hears nobody."""
    exists = jnp.array([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    score = jnp.array([[9.0, 7.0, jnp.log(3.0)], [9.0, 9.0, 0.0], [9.0, 9.0, 9.0]])
    got = attention(score.reshape(-1), exists)
    np.testing.assert_allclose(got, [[0, 1, 0.75], [0, 0, 0.25], [0, 0, 0]], rtol=1e-6)


def test_without_messages_a_domain_knows_itself_alone():
    """Another domain's link and node change what neighbours hear, but for without messages."""
    graph = wan().graph
    other = GraphInputs(
        graph._replace(nodes=graph.nodes.at[1].add(1.0), edges=graph.edges.at[1, 1:].add(1.0)),
        wan().mask,
    )
    for kind, told in (("none", False), ("sage", True), ("gat", True)):
        encoder = GraphEncoder(8, kind=kind)
        params = jax.tree.map(lambda x: x + 0.1, encoder.init(jax.random.key(3), wan()))
        before, after = (np.asarray(encoder.apply(params, g)) for g in (wan(), other))
        assert np.any(before[1] != after[1])
        assert np.any(before[[0, 2, 3]] != after[[0, 2, 3]]) == told


def test_attention_alone_weighs_messages():
    """A layer of it has one output more to learn: the score of a message."""
    sizes = {}
    for kind in ("sage", "gat"):
        shapes = jax.eval_shape(GraphEncoder(8, kind=kind).init, jax.random.key(0), wan(4))
        sizes[kind] = sum(x.shape == (1,) for x in jax.tree.leaves(shapes))
    assert sizes == {"sage": 0, "gat": GraphEncoder(8).layers}


@pytest.mark.parametrize("kind", ["sage", "gat", "none"])
def test_padded_domains_have_no_embedding(kind):
    encoder, graph = GraphEncoder(8, kind=kind), wan(8)

    @jax.jit
    def embeddings(key):
        params = jax.tree.map(lambda x: x + 0.5, encoder.init(key, graph))
        return encoder.apply(params, graph)

    out = np.asarray(embeddings(jax.random.key(0)))
    assert np.all(out[4:] == 0) and np.all(out[:4].sum(axis=1) > 0)


def test_upper_logits_follow_their_rows_and_the_value_stays():
    inputs = upper_inputs()
    logits, value = apply["upper"](parameters("upper"), inputs)
    assert np.unique(np.asarray(logits)[np.asarray(inputs.mask)]).size == 5
    order = jnp.array([0, 4, 2, 6, 1, 5, 3])
    fields = ("rows", "domains", "moves", "mask", "prior")
    moved = inputs.replace(**{name: getattr(inputs, name)[order] for name in fields})
    moved = moved.replace(row=jnp.int32(6))  # where row 3, which is in force, has gone
    again, same_value = apply["upper"](parameters("upper"), moved)
    np.testing.assert_allclose(again, logits[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(same_value, value, rtol=1e-5)


def test_trust_is_a_product_of_what_is_known_and_what_is_promised():
    """By hand: weights of each row's promises are a linear map of what is known of it."""
    rows, moves = draw(3, 2, seed=7), draw(3, 4, seed=8)
    kernel, bias = draw(2, 4, seed=9), draw(4, seed=10)
    params = {"params": {"Dense_0": {"kernel": kernel, "bias": bias}}}
    got = Trust().apply(params, rows, moves)
    expected = np.sum(
        (np.asarray(rows) @ np.asarray(kernel) + np.asarray(bias)) * np.asarray(moves), axis=1
    )
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_lower_logits_follow_their_choices():
    inputs = lower_inputs()
    logits, value = apply["lower"](parameters("lower"), inputs)
    order = jnp.array([3, 1, 4, 0, 2])
    fields = ("choices", "mask", "prior")
    moved = inputs.replace(**{name: getattr(inputs, name)[order] for name in fields})
    again, same_value = apply["lower"](parameters("lower"), moved)
    np.testing.assert_allclose(again, logits[order], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(same_value, value, rtol=1e-5)


def test_domains_may_be_listed_in_any_order():
    order = np.array([2, 0, 3, 1])
    graph = wan().graph
    edges = graph.edges.reshape(4, 4, -1)[order][:, order].reshape(16, -1)
    turned = GraphInputs(graph._replace(nodes=graph.nodes[order], edges=edges), wan().mask[order])
    upper, lower = upper_inputs(), lower_inputs()
    for level, inputs, other in (
        ("upper", upper, upper.replace(wan=turned, domains=upper.domains[:, order])),
        ("lower", lower, lower.replace(wan=turned, in_force=lower.in_force[order])),
    ):
        for a, b in zip(
            apply[level](parameters(level), inputs),
            apply[level](parameters(level), other),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@LEVELS
def test_at_the_start_the_logits_are_the_prior(level):
    inputs = CASES[level][1]()
    logits, _ = apply[level](parameters(level, trained=False), inputs)
    mask = np.asarray(inputs.mask)
    np.testing.assert_allclose(np.asarray(logits)[mask], np.asarray(inputs.prior)[mask], rtol=1e-6)
    assert np.all(np.asarray(logits)[~mask] == np.finfo(np.float32).min)


@LEVELS
def test_the_network_looks_at_the_links(level):
    inputs = CASES[level][1]()
    graph = inputs.wan.graph
    faster = graph._replace(edges=graph.edges.at[:, 2].add(graph.edges[:, 0]))
    other = inputs.replace(wan=inputs.wan.replace(graph=faster))
    logits, value = apply[level](parameters(level), inputs)
    again, other_value = apply[level](parameters(level), other)
    # Without messages links count by what rows bring alone.
    assert (np.any(logits != again) and value != other_value) == ("no messages" not in level)


def sized(level, k, n, v):
    """Inputs of any size, as shapes alone."""
    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    flags = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bool_)
    index = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
    graph = jraph.GraphsTuple(
        nodes=shape((k, NODE_FEATURES + JOB_NODE_FEATURES)),
        edges=shape((k * k, EDGE_FEATURES)),
        senders=index((k * k,)),
        receivers=index((k * k,)),
        globals=None,
        n_node=index((1,)),
        n_edge=index((1,)),
    )
    world = GraphInputs(graph, flags((k,)))
    if level.startswith("upper"):
        rows, moves = shape((n, FEATURES)), shape((n, MOVES))
        return UpperInputs(world, rows, shape((n, k)), moves, index(()), flags((n,)), shape((n,)))
    return LowerInputs(world, flags((k,)), shape((v, CHOICE_FEATURES)), flags((v,)), shape((v,)))


@LEVELS
def test_parameters_do_not_depend_on_domains_rows_or_choices(level):
    network = CASES[level][0]
    key = jax.eval_shape(lambda: jax.random.key(0))
    sizes = [(4, 7, 5), (2, 7, 5), (64, 7, 5), (4, 30, 5), (4, 7, 12), (1, 1, 1)]
    shapes = [jax.eval_shape(network.init, key, sized(level, *size)) for size in sizes]
    assert all(s == shapes[0] for s in shapes)
    real = jax.tree.map(lambda x: x.shape, parameters(level))
    assert jax.tree.map(lambda x: x.shape, shapes[0]) == real
    for size in sizes:  # and they can be used at every size
        logits, value = jax.eval_shape(network.apply, shapes[0], sized(level, *size))
        assert (
            logits.shape == (size[1] if level.startswith("upper") else size[2],)
            and value.shape == ()
        )
