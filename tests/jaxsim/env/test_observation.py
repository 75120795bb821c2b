"""What a scheduler sees, feature by feature, from what was measured."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, cluster_spec, env_params, make_plan, play

from jaxsim.env.env import reset
from jaxsim.env.observation import EDGE_FEATURES, JOB_NODE_FEATURES, NODE_FEATURES, job_nodes

SPEC = dataclasses.replace(cluster_spec(4, gpus=8, gbps=0.1), gpus=(8, 4, 16, 6))
PLANS = [
    make_plan([(0, 1), (3, 2)], [(3, 5), (4, 4)], [4, 2], 4, dp=[2, 2, 1, 1], micro_batch=2),
    make_plan([(2, 0, 3)], [(4, 3, 1)], [16], 4, dp=2, micro_batch=1),
]
MOVES = (0, 1, 1, 1, 1, 1, 0, 0)
PAIRS = (4, 4)


@pytest.fixture(scope="module")
def seen():
    """Params, and the observations [8, ...] of an episode that moves and loses domains."""
    jitter = {"white": 0.3, "latency": 0.2, "ou_sigma": 0.3, "ou_tau": 5.0}
    load = {"share": 0.8, "swing": 0.6}
    params = env_params(SPEC, JOB, PLANS[0], network=jitter, load=load)
    actions = jax.tree.map(lambda *x: jnp.stack(x)[:, None], *(PLANS[i] for i in MOVES))
    _, steps = play(params, jax.random.key(5), actions)
    return params, jax.tree.map(np.asarray, steps.observation)


def test_nodes_say_how_large_dear_and_free_a_domain_is(seen):
    _, observation = seen
    gpus = np.array(SPEC.gpus, float)
    free = observation.view.gpus_available
    assert len(np.unique(free[:, 0])) > 2
    for t, nodes in enumerate(observation.graph.nodes):
        usd = np.array([1.0, 1.5, 2.0, 2.5]) / 2.5
        expected = [np.ones(4), gpus / 34, free[t] / gpus, usd, 0.2 * np.log(1 + gpus)]
        np.testing.assert_allclose(nodes, np.stack(expected, axis=1), rtol=1e-5, err_msg=str(t))


def test_edges_say_what_a_link_is_and_what_was_measured_of_it(seen):
    """Its usual bandwidth, the measured one against it, the round trip, what is still to move."""
    _, observation = seen
    apart = ~np.eye(4, dtype=bool)
    usual = np.where(apart, SPEC.bandwidth_gbps / 8, 1.0)
    view, pending = observation.view, observation.transition.bytes_gb[:, 0]
    measured = np.where(apart, view.bandwidth_gb_per_s, 1.0)
    assert np.all(np.abs(np.log(measured / usual)[:, apart]).max(axis=0) > 0.1), "the links move"
    assert np.any(pending > 0) and np.any(pending.sum(axis=(1, 2)) == 0)
    expected = [
        np.ones_like(measured),
        0.5 * np.log(np.broadcast_to(usual, measured.shape)),
        np.log(measured / usual),
        10 * view.rtt_s,
        np.log(1 + pending / (60 * measured)),
    ]
    edges = observation.graph.edges.reshape(-1, *PAIRS, len(expected))
    assert not np.any(edges[:, ~apart])
    for column, values in enumerate(expected):
        got = edges[..., column][:, apart]
        np.testing.assert_allclose(got, values[:, apart], rtol=1e-4, atol=1e-6, err_msg=str(column))
    # Edge k * K + k' leads from k to k'.
    senders, receivers = (x.reshape(-1, *PAIRS) for x in observation.graph[3:1:-1])
    assert np.all(senders == np.indices(PAIRS)[0]) and np.all(receivers == np.indices(PAIRS)[1])


def test_job_nodes_say_what_each_domain_does_for_the_job(seen):
    _, observation = seen
    plans, share = observation.plan, np.zeros(4)
    assert len({tuple(g) for g in plans.group[:, 0]}) == 2, "both plans have been in force"
    for t, nodes in enumerate(observation.job_nodes[:, 0]):
        group = plans.group[t, 0]
        used = group >= 0
        share, micro_batch, dp = (
            np.where(used, values[t, 0][group], 0)
            for values in (plans.batch_share, plans.micro_batch, plans.dp)
        )
        expected = [
            np.ones(4),
            plans.layers[t, 0] / 8,
            plans.position[t, 0] / 4,
            share * micro_batch * dp / 32,
            np.full(4, 1 / (group.max() + 1)),
            np.log2(np.maximum(micro_batch, 1)) / 3,
            dp / 8,
        ]
        wanted = np.where(used[:, None], np.stack(expected, axis=1), 0.0)
        np.testing.assert_allclose(nodes, wanted, rtol=1e-5, err_msg=str(t))


def test_a_job_that_is_not_there_has_no_features(seen):
    problem = seen[0].problem.job(0)
    nodes = job_nodes(PLANS[0], problem.work, jnp.array(False), problem.cluster.mask)
    np.testing.assert_array_equal(nodes, np.zeros((4, JOB_NODE_FEATURES)))


def test_the_numbers_of_features_are_those_of_the_arrays(seen):
    _, observation = seen
    assert observation.graph.nodes.shape[-1] == NODE_FEATURES
    assert observation.graph.edges.shape[-1] == EDGE_FEATURES
    assert observation.job_nodes.shape[-1] == JOB_NODE_FEATURES


def test_a_padded_domain_has_no_features():
    params = env_params(SPEC, JOB, PLANS[0], 6)
    _, timestep = jax.jit(reset)(jax.random.key(1), params)
    graph = timestep.observation.graph
    edges = np.asarray(graph.edges).reshape(6, 6, -1)
    assert np.all(np.asarray(graph.nodes)[:4, 0] == 1.0)
    assert not np.any(np.asarray(graph.nodes)[4:])
    assert not np.any(edges[4:]) and not np.any(edges[:, 4:])


def test_only_domains_with_a_free_gpu_may_be_asked_for(seen):
    _, observation = seen
    free = observation.view.gpus_available > 0
    assert not np.all(free), "some domain is full at some time"
    np.testing.assert_array_equal(observation.mask.domains, free)


def test_a_new_plan_may_be_asked_for_unless_one_is_on_its_way(seen):
    """Or the target has lost a domain: then waiting for it is no good."""
    _, observation = seen
    moving, target = observation.moving[:, 0], observation.target.group[:, 0]
    full = observation.view.gpus_available == 0
    lost = np.any((target >= 0) & full, axis=1)
    assert np.any(moving & ~lost) and np.any(~moving)
    np.testing.assert_array_equal(observation.mask.retarget[:, 0], ~moving | lost)
