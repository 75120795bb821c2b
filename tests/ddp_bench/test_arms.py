"""Arms against the global stream: nothing lost, nothing repeated, in lockstep without processes."""

import numpy as np
import pytest

from ddp_bench.arms import ARM_TYPES
from ddp_bench.config import Settings, parse_arm
from ddp_bench.data.stream import GlobalStream, PrefixDigest, digest
from ddp_bench.replay import advance_one, make_team

RANKS, BATCH, ROWS = 4, 16, 203


def team(name, cost="tokens", ranks=RANKS, caps=None, lengths=None, **settings):
    if name == "hf_batch_rebalance":
        pytest.importorskip("transformers")
    if lengths is None:
        lengths = np.random.default_rng(5).integers(3, 60, ROWS)
    chosen = Settings(mode=name, cost=cost, global_batch=BATCH, **settings)
    return make_team(parse_arm(name, chosen), chosen, lengths, ranks, caps)


def advance(arms, steps, measure=None):
    """Run all ranks for some steps; the ids used at every step, by rank."""
    used = []
    for _ in range(steps):
        used.append([share.ids for share in advance_one(arms)])
        if measure is not None:
            pairs = zip(arms, used[-1], strict=True)
            features = np.array([arm.features([ids]) for arm, ids in pairs])
            for arm in arms:
                arm.observe(features, measure(features))
    return used


def stream_is_intact(arms):
    total = np.sum([arm.account().view(np.uint64) for arm in arms], axis=0)
    prefix = PrefixDigest(arms[0].stream)
    cursor = arms[0].cursor
    assert {arm.cursor for arm in arms} == {cursor}
    used, used_digest, held, held_digest = (int(value) for value in total)
    return used + held == cursor and (used_digest + held_digest) % 2**64 == prefix.at(cursor)


@pytest.mark.parametrize("name", ARM_TYPES)
@pytest.mark.parametrize("cost", ["tokens", "fitted"])
def test_used_plus_held_is_a_prefix_of_the_stream_over_several_epochs(name, cost):
    arms = team(name, cost, max_age_steps=6)
    used = advance(arms, 60, lambda f: 2 + 0.1 * f[:, 0] + 0.001 * f[:, 1])
    assert all(sum(len(ids) for ids in step) == BATCH for step in used)
    assert stream_is_intact(arms)
    cursor, stream = arms[0].cursor, arms[0].stream
    everything = np.concatenate([ids for step in used for ids in step])
    held = np.concatenate([stream.ids(arm.held()) for arm in arms])
    found = np.sort(np.concatenate([everything, held]))
    assert found.tolist() == np.sort(stream.ids(np.arange(cursor))).tolist()


@pytest.mark.parametrize("name", ARM_TYPES)
def test_resuming_continues_with_the_same_samples(name):
    whole, first = team(name, max_age_steps=6), team(name, max_age_steps=6)
    wanted = advance(whole, 20)
    advance(first, 9)
    for arm in first:
        arm.post()
    for arm in first:
        arm.overlap()
    second = team(name, max_age_steps=6)
    for old, new in zip(first, second, strict=True):
        new.load_state_dict(old.state_dict())
    found = advance(second, 11)
    for one, other in zip(wanted[9:], found, strict=True):
        assert [ids.tolist() for ids in one] == [ids.tolist() for ids in other]
    assert stream_is_intact(second)


def test_a_lost_a_repeated_and_an_altered_sample_change_the_checksum():
    stream = GlobalStream(50, 3)
    positions = np.arange(120)
    whole = digest(positions, stream.ids(positions))
    assert whole == PrefixDigest(stream).at(120)
    swapped = stream.ids(positions)
    swapped[[4, 5]] = swapped[[5, 4]]
    assert digest(positions[1:], stream.ids(positions[1:])) != whole
    assert digest(np.append(positions, 7), stream.ids(np.append(positions, 7))) != whole
    assert digest(positions, swapped) != whole


def test_every_epoch_is_a_permutation_and_epochs_differ():
    stream = GlobalStream(40, 0)
    epochs = stream.ids(np.arange(120)).reshape(3, 40)
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()


@pytest.mark.parametrize("name", ["dynamic", "pooled", "group_by_length_pooled"])
def test_memory_caps_are_respected(name):
    caps = [3, 6, 5, 4]
    arms = team(name, caps=caps, max_age_steps=6)
    for step in advance(arms, 40):
        assert all(1 <= len(ids) <= cap for ids, cap in zip(step, caps, strict=True))


@pytest.mark.parametrize("name", ARM_TYPES)
def test_no_sample_waits_longer_than_the_age_bound(name):
    arms = team(name, max_age_steps=6, prefetch=32)
    waits = []
    for _ in range(60):
        waits += [share.oldest for share in advance_one(arms)]
    bound = 6 if name.startswith("group_by_length") else 32  # FIFO: at least one leaves each step
    assert max(waits) < bound if name != "dynamic" else max(waits) <= bound


def slowest(name, cost="tokens", steps=80):
    arms = team(name, cost, lengths=np.random.default_rng(1).geometric(0.1, 4000) + 2)
    return np.mean(
        [
            max(arm.features([ids])[0] for arm, ids in zip(arms, step, strict=True))
            for step in advance(arms, steps)
        ]
    )


def test_arms_order_as_their_rules_promise():
    times = {name: slowest(name) for name in ("static", "dynamic", "pooled")}
    assert times["pooled"] < 0.75 * times["dynamic"] < 0.75 * times["static"]
    pytest.importorskip("transformers")
    assert times["pooled"] <= slowest("hf_batch_rebalance")


def test_solvers_of_the_dynamic_arm_agree_on_the_slowest_rank():
    rows = {
        solver: team("dynamic", solver=solver, prefetch=8)
        for solver in ("order_statistic", "greedy", "enumeration")
    }
    worst = {}
    for solver, arms in rows.items():
        step = advance(arms, 1)[0]
        worst[solver] = max(a.features([ids])[0] for a, ids in zip(arms, step, strict=True))
    assert len(set(worst.values())) == 1
