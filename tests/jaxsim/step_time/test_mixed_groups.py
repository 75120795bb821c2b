"""Two small domains that hold a replica together beside one that holds a replica alone, by hand.

The first group is a pipeline over domains 0 and 1 (3 and 5 layers, two replicas, micro-batches of two
sequences); the second is domain 2 with all 8 layers, four replicas, micro-batches of one. They share
the batch unequally and sync every step around a ring of two: domain 0 with 2 over layers 0 to 2,
domain 1 with 2 over layers 3 to 7.
"""

import itertools

import numpy as np
import pytest
from helpers.step_time_by_hand import Hand
from helpers.toy_world import (
    JOB,
    base_view,
    calibration,
    cluster_spec,
    cost_of,
    default_lower_choices,
    make_plan,
)

from jaxsim.plan import Problem
from jaxsim.plan.modes import Recompute, Schedule
from jaxsim.planning import share_batch
from jaxsim.workload.workload import build_workload

HAND = Hand()
WORK = build_workload([JOB]).job(0)
PIPELINE, ALONE = HAND.layer(2), HAND.layer(1, recompute="full")
NODES = 2  # of four GPUs: 2 + 2 + 4 GPUs, who all wait for the slowest
SEQUENCES = 4  # of a micro-batch of all replicas: 2 x 2 in the pipeline, 4 x 1 in the domain alone
# Parameters that a domain holds, in the order of the domains.
HELD = [
    3 * HAND.layer_params + HAND.table_params,
    5 * HAND.layer_params + HAND.table_params,
    8 * HAND.layer_params + 2 * HAND.table_params,
]


def mixed(shares):
    return make_plan(
        [(0, 1), (2,)],
        [(3, 5), (8,)],
        shares,
        3,
        dp=[2, 4, 1],
        micro_batch=[2, 1, 1],
        recompute=[Recompute.NONE, Recompute.FULL, 0],
        schedule=[Schedule.GPIPE, Schedule.ONE_F_ONE_B, 0],
        zero_stage=[0, 0, 1],
    )


class Links:
    """The toy cluster's links in seconds: i -> j is 1 + 0.1 i + 0.05 j of the nominal rate, a round
    trip 1 + 0.1 (i + j)."""

    def __init__(self, gbps, rtt_ms):
        self.gbps, self.rtt_ms = gbps, rtt_ms
        self.spec = cluster_spec(3, gbps=gbps, rtt_ms=rtt_ms)

    def rate(self, i, j):
        """[B/s]"""
        return self.gbps / 8 * 1e9 * (1 + 0.1 * i + 0.05 * j)

    def latency(self, i, j):
        """[s] one way"""
        return 0.5 * self.rtt_ms * 1e-3 * (1 + 0.1 * (i + j))

    def hop(self, i, j):
        """[s] that a micro-batch of both replicas keeps the link i -> j busy."""
        return SEQUENCES * HAND.boundary / (self.rate(i, j) * HAND.e["wan_efficiency"])

    def pipeline(self, micro_batches):
        """[s] of the first group, GPipe: fill, then every further micro-batch costs the slowest stage,
        or both directions of the link, which never overlap."""
        first, last = stages()
        there, back = self.hop(0, 1), self.hop(1, 0)
        fill = first + last + there + back + 2 * self.latency(0, 1)
        return fill + (micro_batches - 1) * self.beat()

    def beat(self):
        """[s] between micro-batches of the first group."""
        return max(*stages(), self.hop(0, 1) + self.hop(1, 0))

    def ring(self):
        """[s] of the gradient ring of two: each way all that both ends hold, the slowest link, two
        latencies."""
        pairs = {(0, 2): HELD[0], (1, 2): HELD[1]}
        links = [(a, b) for pair in pairs for a, b in (pair, pair[::-1])]
        sent = max(2 * pairs[min(x), max(x)] / HAND.ring_rate(self.rate(*x)) for x in links)
        return sent + 2 * max(self.latency(*x) for x in links)


def stages():
    """[s] of one micro-batch on the two stages of the pipeline."""
    first = HAND.stage(PIPELINE, 3, NODES) + HAND.embedding(2)
    return first, HAND.stage(PIPELINE, 5, NODES) + HAND.head(2)


def alone(micro_batches):
    """[s] of the second group."""
    return micro_batches * (HAND.stage(ALONE, 8, NODES) + HAND.embedding(1) + HAND.head(1))


# Which group the step waits for: the pipeline over slow links, or who has more of the batch.
CASES = {
    "pipeline": (Links(1.0, 40.0), (3, 5)),
    "alone": (Links(80.0, 1.0), (2, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_mixed_groups_by_hand(name):
    links, (m, n) = CASES[name]
    cluster = links.spec.to_arrays()
    cost = cost_of(mixed([m, n]), WORK, cluster, calibration(), base_view(cluster))
    times = {"pipeline": links.pipeline(m), "alone": alone(n)}
    assert max(times, key=times.get) == name, "the case must wait for this group"
    first, last = stages()
    ideal = {"pipeline": first + last + (m - 1) * max(first, last), "alone": times["alone"]}
    busy = {"pipeline": m * max(first, last), "alone": times["alone"]}
    # Replicas inside a domain reduce first; the longest backward pass of any domain hides of it.
    inside = max(2 * HAND.sync_pass(HELD[1], 2), 2 * HAND.sync_pass(HELD[2], 4))
    hidden = HAND.e["dp_overlap"] * max(5 * PIPELINE.backward, 8 * ALONE.backward)
    sync = max(inside + links.ring() - hidden, 0.0)
    # ZeRO 1 in the domain alone: its update is a quarter of 8 layers', the pipeline's stages are whole.
    update = max(HAND.optimizer(HELD[1]), HAND.optimizer(HELD[2], shards=4))
    assert HAND.optimizer(HELD[1]) > HAND.optimizer(HELD[2], shards=4)
    activations = m * SEQUENCES * HAND.boundary / 1e9
    ring = [2 * HELD[0] / 1e9, 2 * HELD[1] / 1e9]
    wan_gb = np.array([[0, activations, ring[0]], [activations, 0, ring[1]], [ring[0], ring[1], 0]])
    egress = sum(
        0.01 * (1 + i + 2 * j) * wan_gb[i, j]
        for i, j in itertools.product(range(3), repeat=2)
        if i != j
    )
    stored = [
        HAND.state(HELD[0]) + m * 2 * 3 * HAND.stored(),
        HAND.state(HELD[1]) + m * 2 * 5 * HAND.stored() + HAND.logits(2),
    ]
    expected = {
        "compute_s": busy[name],
        "bubble_s": ideal[name] - busy[name],
        "exposed_wan_s": times[name] - ideal[name],
        "sync_s": sync,
        "optimizer_s": update,
        "step_s": times[name] + sync + update,
        "wan_gb": wan_gb,
        "egress_usd": egress,
        "gpus_used": [2, 2, 4],
        "efficiency": 1.0,
    }
    for field, value in expected.items():
        np.testing.assert_allclose(getattr(cost, field), value, rtol=2e-5, atol=2e-7, err_msg=field)
    found = np.asarray(cost.memory_gb)
    np.testing.assert_allclose(found[:2], [(x + HAND.fixed) / 1e9 for x in stored], rtol=2e-5)
    assert bool(cost.runs)


@pytest.mark.parametrize("name", CASES)
def test_the_batch_is_dealt_so_that_the_slower_of_the_groups_ends_early(name):
    """Both groups take four sequences at a time: eight of these go to who is done with them first."""
    links, _ = CASES[name]
    cluster = links.spec.to_arrays()
    problem = Problem(WORK, cluster, calibration(), default_lower_choices())
    done, legal = share_batch(mixed([1, 1]), problem, base_view(cluster))
    assert bool(legal)
    blocks = JOB.global_batch // SEQUENCES
    beats = links.beat(), alone(1)
    best = min(range(1, blocks), key=lambda m: max(m * beats[0], (blocks - m) * beats[1]))
    assert np.asarray(done.batch_share).tolist() == [best, blocks - best, 0]
    assert best < blocks - best or name == "alone", "slow links leave the pipeline the lesser part"
