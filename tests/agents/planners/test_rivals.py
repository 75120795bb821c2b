"""Rivals that bring plans of their own: each does what its paper says, and every plan can be run."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plan_check import check_plan
from helpers.rival_worlds import EVERYONE, MENU, K, builder, complete_cost, groups, proposed, rates
from helpers.schedulers import bound
from helpers.toy_world import MODEL, base_view, cluster_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.baselines import Replanning, mast, static
from agents.planners import diloco, megatron, zero
from agents.planners.stage_costs import domain_orders, largest_dps, min_max_layers
from agents.protocol import Estimate, EvaluatedTable, Setup
from jaxsim.plan.modes import Recompute, Schedule
from jaxsim.plan.plan import default_lower_choices
from jaxsim.planning import candidates as proposals
from jaxsim.planning.builder import TableBuilder
from jaxsim.planning.candidates import add_candidates
from jaxsim.planning.family import make_plan, plan_key
from jaxsim.planning.scoring import one_view
from jaxsim.planning.table import build_table
from jaxsim.step_time import sync
from jaxsim.trees import take

pytestmark = pytest.mark.slow  # as a whole: its tests share what takes long to compile


@pytest.mark.parametrize("which", ["embedded", "random"])
def test_every_plan_that_anyone_proposes_can_be_run(which):
    b = builder(which)
    for name in EVERYONE:
        plans = proposed(which, name)
        assert plans, name
        done = b.complete_at_base(plans + [plans[0]] * (16 - len(plans)))
        args = (
            b.problem.work,
            b.problem.cluster,
            b.problem.calibration,
            base_view(b.problem.cluster),
        )
        cost = complete_cost(done, *args)
        assert np.all(cost.memory_gb <= b.problem.cluster.gpu.memory_gb), name
        for i in range(len(plans)):
            plan = jax.tree.map(lambda x, i=i: np.asarray(x[i]), done)
            check_plan(plan, b.problem.work, b.gpus, b.spec.domains)
        at_full = rates(which, name, plans[:1])
        assert np.all(at_full > 0), name


def test_every_rival_has_plans_on_a_cluster_of_one_domain():
    for name in EVERYONE:
        plans = proposed("one", name)
        assert plans and all(groups(p) == ((0,),) for p in plans), name
        assert np.all(rates("one", name, plans) > 0), name


@pytest.mark.nightly
def test_beyond_five_domains_what_is_proposed_can_be_run_too():
    b = builder("six")
    for name in EVERYONE:
        plans = proposed("six", name)
        assert rates("six", name, plans)[0] > 0, name
        for plan in plans:
            used = plan.group >= 0
            assert np.all(plan.gpus <= b.gpus) and np.all(plan.pp[used] <= plan.layers[used])
            for members in groups(plan):
                assert plan.layers[list(members)].sum() == MODEL.layers, name


# Shared search


@settings(deadline=None, max_examples=80)
@given(
    st.integers(1, 14),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.floats(0.2, 3.0), min_size=3, max_size=3),
    st.lists(st.floats(0.0, 6.0), min_size=3, max_size=3),
)
def test_layers_are_split_so_that_the_slowest_stage_is_fastest(n_layers, stages, layer_s, extra_s):
    n = len(stages)
    if sum(stages) > n_layers:
        return
    layer_s, extra_s = np.array(layer_s[:n]), np.array(extra_s[:n])

    def slowest(layers):
        each = -(-np.array(layers) // np.array(stages))
        return (each * layer_s + extra_s).max()

    layers = min_max_layers(n_layers, stages, layer_s, extra_s)
    assert sum(layers) == n_layers and all(x >= s for x, s in zip(layers, stages, strict=True))
    every = itertools.product(range(1, n_layers + 1), repeat=n)
    fits = (x for x in every if sum(x) == n_layers and np.all(np.array(x) >= stages))
    np.testing.assert_allclose(slowest(layers), min(map(slowest, fits)), rtol=1e-6)


@pytest.mark.parametrize(
    ("rooms", "batch", "expected"),
    [
        ([8, 8], 48, (8, 8)),
        ([8, 4, 6], 48, (8, 4, 4)),  # 6 does not divide 8; 6, 3, 6 uses one less
        ([6, 6], 48, (6, 6)),
        ([7], 48, (6,)),  # a divisor of the batch
        ([5, 1], 7, (1, 1)),
    ],
)
def test_replicas_use_the_most_gpus_that_divide(rooms, batch, expected):
    assert largest_dps(rooms, batch) == expected


def test_orders_are_all_there_are_or_chains_along_the_fastest_links():
    b = builder("random")
    assert len(domain_orders(b)) == 3 + 6 + 6 and len(domain_orders(b, 2)) == 12
    n = 7
    rate = np.ones((n, n))
    for i in range(n - 1):  # a road from 0 to 6, the only fast links
        rate[i, i + 1] = rate[i + 1, i] = 10.0
    big = dataclasses.replace(cluster_spec(n), bandwidth_gbps=rate)
    orders = domain_orders(TableBuilder(big, b.problem.work, b.problem.calibration, MENU), 2)
    assert tuple(range(n)) in orders and (0, 1) in orders and len(orders) == n * (n - 1)


# Megatron-LM


def test_megatron_widens_tensor_parallelism_before_it_adds_stages():
    tries = [
        (int(p.tp[0]), int(p.pp[0]), tuple(p.dp[:2].tolist()))
        for p in megatron.in_order(builder("random"), ((0,), (1,)))
    ]
    assert tries[:4] == [(1, 1, (8, 4)), (2, 1, (4, 2)), (4, 1, (2, 1)), (1, 2, (4, 2))]


@pytest.mark.parametrize(
    ("node", "share", "found"), [(8, 1, (1, 1)), (8, 4, (4, 1)), (2, 4, (2, 2)), (2, 8, (2, 4))]
)
def test_megatron_takes_the_least_that_fits(monkeypatch, node, share, found):
    b = builder("random")

    def fits(plans):
        held = np.array([int(p.tp[0] * p.pp[0]) >= share for p in plans], np.float32)
        return np.broadcast_to(held[:, None], (len(plans), MENU.size))

    monkeypatch.setattr(b, "base_rates", fits)
    monkeypatch.setattr(b, "per_node", np.full(K, node))
    plan = megatron.first_that_fit(b, [((0,),)], np.ones(MENU.size, bool))[0]
    assert (int(plan.tp[0]), int(plan.pp[0])) == found
    assert int(plan.dp[0]) == 8 // share, "the rest is data parallelism"


def test_megatron_offers_data_parallelism_over_the_wan_a_pipeline_over_it_and_one_region():
    replicas, pipeline, alone = proposed("embedded", "megatron")
    assert all(len(g) == 1 for g in groups(replicas)) and len(groups(replicas)) >= 2
    assert len(groups(pipeline)) == 1 and len(groups(pipeline)[0]) >= 2
    assert len(groups(alone)) == 1 and len(groups(alone)[0]) == 1
    # A 7B model fits an A100 with eight to share the optimizer: no tensor parallelism, one stage.
    for plan in (replicas, pipeline, alone):
        assert np.all(plan.tp == 1) and np.all(plan.pp == 1)
        assert np.all(plan.dp[: len(groups(plan))] == 8)
    others = [
        p
        for order in domain_orders(builder("embedded"), 2)
        for p in megatron.first_that_fit(
            builder("embedded"), [tuple((k,) for k in order)], np.ones(MENU.size, bool)
        )
    ]
    best = rates("embedded", "megatron", others).max()
    assert rates("embedded", "megatron", [replicas])[0] == pytest.approx(best, rel=1e-5)


def test_megatron_recomputes_selectively_before_fully():
    allowed = EVERYONE["megatron"].allowed(MENU)
    kinds = {(int(MENU.recompute[v]), int(MENU.schedule[v])) for v in np.flatnonzero(allowed)}
    modes = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    assert kinds == {(mode, Schedule.ONE_F_ONE_B) for mode in modes}
    # Where both fit at the same micro-batch, the selective one is faster, so it is what is run.
    b = builder("embedded")
    row = b.base_rates(proposed("embedded", "megatron"))
    for size in (1, 2):
        at = {
            m: np.flatnonzero(
                (MENU.micro_batch == size)
                & (MENU.recompute == m)
                & (MENU.schedule == Schedule.ONE_F_ONE_B)
            )[0]
            for m in modes
        }
        both = (row[:, at[Recompute.SELECTIVE]] > 0) & (row[:, at[Recompute.FULL]] > 0)
        assert both.any()
        assert np.all((row[:, at[Recompute.SELECTIVE]] > row[:, at[Recompute.FULL]])[both])


# ZeRO


@pytest.mark.parametrize(("least", "stages"), [(1, [1, 3]), (2, [2, 3]), (3, [3])])
def test_zero_takes_the_least_stage_that_fits_and_the_hybrid(monkeypatch, least, stages):
    b = builder("random")

    def fits(plans):
        held = np.array([int(p.zero_stage[0]) >= least for p in plans], np.float32)
        return np.broadcast_to(held[:, None], (len(plans), MENU.size))

    monkeypatch.setattr(b, "base_rates", fits)
    plans = zero.propose(b, np.ones(MENU.size, bool))
    assert [int(p.zero_stage[0]) for p in plans] == stages
    for plan in plans:
        used = plan.group >= 0
        assert all(len(g) == 1 for g in groups(plan)) and len(groups(plan)) >= 2
        assert np.all(plan.tp[used] == 1) and np.all(plan.pp[used] == 1)


# DiLoCo


def test_diloco_with_one_step_between_syncs_sends_the_bytes_of_data_parallelism():
    b = builder("embedded")
    every_step = diloco.workers(b, {k: [(1, 8)] for k in range(4)}, period=1, bits=16)
    plans = {groups(p): p for p in every_step}
    parallel = {groups(p): p for p in zero.sharded(b, 1)}
    ring = ((0,), (1,), (2,), (3,))
    args = (b.problem.work, b.problem.cluster, b.problem.calibration, base_view(b.problem.cluster))
    sent = []
    for plan in (plans[ring], parallel[ring], plans[ring].replace(sync_period=np.int32(50))):
        done = b.complete_at_base([plan] * 16)
        sent.append(np.asarray(complete_cost(done, *args).wan_gb[0]))
    np.testing.assert_array_equal(sent[0], sent[1])
    # 2 (n - 1) / n of the 16-bit gradients over every link of the ring, and nothing else.
    expected = np.zeros((K, K))
    expected[[0, 1, 2, 3], [1, 2, 3, 0]] = 2 * 3 / 4 * 2 * float(b.problem.work.gparams)
    np.testing.assert_allclose(sent[0], expected, rtol=1e-5)
    np.testing.assert_allclose(sent[2], expected / 50, rtol=1e-5)


def test_diloco_needs_a_whole_replica_in_every_domain_and_keeps_its_best_plan_there():
    b = builder("random")
    allowed = EVERYONE["diloco"].allowed(MENU)
    inside = diloco.inside_settings(b, allowed)
    for k, found in inside.items():
        alone = [make_plan(((k,),), (tp, (dp,)), b.gpus, 8, K) for tp, dp in found]
        speed = (b.base_rates(alone) * allowed).max(axis=1)
        assert np.all(speed > 0) and np.all(np.diff(speed) <= 1e-6)
    settings_ = {0: [(1, 8)], 2: [(2, 2)]}  # domain 1 holds no replica
    for plan in diloco.workers(b, settings_, 50, 32):
        assert plan.group[1] == -1 and int(plan.sync_period) == 50
        assert plan.tp[:3].tolist() == [1, 1, 2]
    plans = proposed("random", "diloco")
    assert [int(p.sync_period) for p in plans] == [50, 100, 500]
    # In 32 bits or 8, whichever is worth more.
    speed = {
        bits: rates("random", "diloco", [p.replace(wire_bits=np.int32(bits)) for p in plans])
        for bits in diloco.OUTER_BITS
    }
    best = [diloco.OUTER_BITS[i] for i in np.argmax([speed[b] for b in diloco.OUTER_BITS], axis=0)]
    assert [int(p.wire_bits) for p in plans] == best and 8 in best


def test_streaming_hides_what_diloco_waits_for_and_where_its_outer_state_would_go():
    """A fragment's sync is shorter than the step behind which it travels, so hardly anything is left to
    wait for; 8 bytes per parameter would fit the GPUs of every domain."""
    b = builder("embedded")
    args = (b.problem.work, b.problem.cluster, b.problem.calibration, base_view(b.problem.cluster))
    streaming = proposed("embedded", "streaming_diloco")
    assert all((int(p.fragments), int(p.overlap)) == diloco.STREAM for p in streaming)
    plans = streaming + proposed("embedded", "diloco")
    done = b.complete_at_base(plans + [plans[0]] * (16 - len(plans)))
    cost = complete_cost(done, *args)
    blocking = done.replace(fragments=jnp.ones_like(done.fragments), overlap=done.overlap * 0)
    waits = complete_cost(blocking, *args)
    never = complete_cost(blocking.replace(sync_period=done.sync_period * 10**6), *args)
    # [GB] in 4 bits over each of four links
    ring = 2 * 3 / 4 * 2 * float(b.problem.work.gparams) * 4 / 16
    np.testing.assert_allclose(waits.sync_gb[0].max(), ring, rtol=1e-5)
    rate = sync.ring_rate_gb_per_s(
        b.problem.cluster.bandwidth_gb_per_s, jnp.int32(30), b.problem.calibration
    )
    wire_s = ring / float(jnp.where(waits.sync_gb[0] > 0, rate, jnp.inf).min())
    exposed_s = float(waits.sync_s[0] - never.sync_s[0])
    assert 0.9 * wire_s / 30 < exposed_s < 1.1 * wire_s / 30
    assert 0.043 < exposed_s / float(waits.step_s[0]) < 0.044, "docs/rivals.md says how much"
    assert wire_s / diloco.STREAM[0] < float(never.step_s[0])
    waited, left = (float(c.step_s[0] - never.step_s[0]) for c in (waits, cost))
    assert 0.0 < left < 0.1 * waited
    outer_gb = 8.0 * float(b.problem.work.gparams) / 8  # of each of eight GPUs
    assert np.all(cost.memory_gb[: len(plans)] + outer_gb < b.problem.cluster.gpu.memory_gb)


# MAST


def test_mast_goes_where_the_job_would_be_done_first():
    steps = jnp.float32(100.0)
    speed = jnp.array([1.0, 2.0, 4.0, 0.0], jnp.float32)  # 100 s, 50 s, 25 s, never
    queue = jnp.array([0.0, 20.0, 90.0, 0.0], jnp.float32)
    np.testing.assert_allclose(mast.finish_s(queue, steps, speed), [100, 70, 115, np.inf])


def chosen_row(monkeypatch, setup, rate, make):
    """Row that a static scheduler keeps where the rows' rates [P, V] are as given."""

    def score(setup, candidates):
        found = jnp.where(candidates & setup.table.mask[:, None], rate, 0.0)
        return Estimate(found.max(axis=1), jnp.argmax(found, axis=1).astype(jnp.int32))

    for module in (mast, static):
        monkeypatch.setattr(module, "expected_rates", lambda setup, some: score(setup, some).rate)
    return int(make(setup).choose(jax.random.key(0), None, ())[0])


def setup_of(table):
    b = builder("embedded")
    view = base_view(b.problem.cluster)
    return Setup(b.problem.replace(choices=MENU), table, view, jnp.float32(60.0))


def test_for_one_job_mast_is_the_best_single_domain(monkeypatch, joined):
    setup, table = setup_of(joined[1]), joined[1]
    found = set()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        rate = jnp.asarray(rng.uniform(0, 1, (table.size, MENU.size)), jnp.float32)
        row = chosen_row(monkeypatch, setup, rate, lambda s: bound("mast", s))
        assert row == chosen_row(monkeypatch, setup, rate, lambda s: bound("single_domain", s))
        found.add(row)
    assert len(found) > 1


def test_a_rival_keeps_the_best_of_its_own_rows_and_choices(monkeypatch, joined):
    table = joined[1]
    setup, candidates = setup_of(table), np.asarray(table.candidates_of["megatron"])
    mine, other = (int(np.flatnonzero(x)[0]) for x in (candidates.any(1), ~candidates.any(1)))
    known, unknown = (int(np.flatnonzero(x)[0]) for x in (candidates.any(0), ~candidates.any(0)))
    second = int(np.flatnonzero(candidates.any(axis=1))[1])
    rate = np.full(candidates.shape, 0.1, np.float32)
    rate[mine, known], rate[second, unknown], rate[other, known] = 0.5, 0.9, 0.8
    rate = jnp.asarray(rate)
    assert chosen_row(monkeypatch, setup, rate, lambda s: bound("megatron", s)) == mine


def test_a_rival_whose_plans_were_not_added_is_refused(joined):
    setup = setup_of(joined[1].replace(candidates_of={}))
    with pytest.raises(ValueError, match=r"alpa.*not added"):
        bound("alpa", setup)


# Re-planning


def replanning(gpus_vary=True, **fields):
    """A planner of two plans on domains of four GPUs, of which nothing is known but `expected`."""
    view = base_view(builder("random").problem.cluster)
    view = view.replace(gpus_available=jnp.array([4, 4], jnp.int32))
    setup = type("Setup", (), {"prior": view, "interval_s": jnp.float32(60.0)})
    setup.gpus_vary, setup.table = gpus_vary, type("Table", (), {"mask": jnp.ones(2, bool)})
    return Replanning(10.0, candidates=jnp.ones((2, 1), bool), setup=setup, **fields)


def measured(planner, gpus, rate, idle=False):
    """What that planner sees in plan 0: the other is a minute away."""
    return EvaluatedTable(
        row=jnp.int32(0),
        idle=jnp.array(idle),
        may_switch=jnp.array(True),
        now=Estimate(jnp.asarray(rate, jnp.float32), jnp.zeros(2, jnp.int32)),
        switch_s=jnp.array([0.0, 60.0], jnp.float32),
        view=planner.setup.prior.replace(gpus_available=jnp.asarray(gpus, jnp.int32)),
        t=jnp.int32(3),
    )


FOUR = [4, 4]


def chosen(planner, seen, last=FOUR):
    """The plan that is chosen where the last planning was for `last` GPUs."""
    row, memory = planner.choose(jax.random.key(0), seen, jnp.array(last, jnp.int32))
    np.testing.assert_array_equal(memory, seen.view.gpus_available)
    return int(row)


@pytest.mark.parametrize(
    ("gpus", "rate", "row"),
    [
        ([4, 4], (1.0, 9.0), 0),  # nothing has changed since the last planning: it stays
        ([4, 2], (1.0, 9.0), 1),  # something has, and moving pays
        ([4, 2], (1.0, 1.01), 0),  # something has, and moving does not pay in 10 intervals
        ([4, 2], (0.0, 0.0), 0),  # nothing runs: it does not wander
    ],
)
def test_a_planner_plans_again_only_when_what_it_watches_has_changed(gpus, rate, row):
    expected = jnp.array([1.0, 1.0], jnp.float32)
    planner = replanning(expected=expected, expected_weight=0.0)
    assert chosen(planner, measured(planner, gpus, rate)) == row


@pytest.mark.parametrize(
    ("weight", "rate", "row"),
    [
        (1.0, (1.0, 9.0), 0),  # a happy moment is not what it plans for
        (1.0, (0.0, 0.1), 1),  # a plan that cannot run is left
        (0.0, (1.0, 9.0), 1),
        (0.5, (1.0, 9.0), 1),  # 1.5 and 5 are believed
        (0.5, (1.0, 2.0), 0),  # 1.5 and 1.5 are
    ],
)
def test_later_plans_go_by_what_is_expected_as_far_as_asked_for(weight, rate, row):
    expected = jnp.array([2.0, 1.0], jnp.float32)
    planner = replanning(expected=expected, expected_weight=weight)
    assert chosen(planner, measured(planner, [4, 2], rate)) == row


@pytest.mark.parametrize("gpus_vary", [True, False])
def test_the_first_plan_is_the_best_to_be_expected_of_those_that_run(gpus_vary):
    expected = jnp.array([1.0, 2.0], jnp.float32)
    planner = replanning(gpus_vary, expected=expected, expected_weight=0.0)
    for rate, row in (((2.0, 1.0), 1), ((2.0, 0.0), 0)):
        assert chosen(planner, measured(planner, FOUR, rate, idle=True)) == row


def test_where_gpus_are_fewer_than_anybody_expects_what_is_measured_counts():
    """A process that listens may be told of other GPUs than the file's."""
    expected = jnp.array([1.0, 2.0], jnp.float32)
    planner = replanning(gpus_vary=False, expected=expected)
    assert chosen(planner, measured(planner, [4, 0], (2.0, 1.0), idle=True)) == 0


# The table


@pytest.fixture(scope="module")
def joined():
    b = builder("embedded")
    table, info, family = build_table(b, one_view(base_view(b.problem.cluster)), 6)
    plans = {name: proposed("embedded", name) for name in EVERYONE}
    return table, *add_candidates(table, info, family, b, plans, EVERYONE)


def test_proposed_plans_join_the_table_once_and_the_family(joined):
    core, table, info, family = joined
    mask = np.asarray(table.mask)
    n_core = int(core.mask.sum())
    assert table.size % proposals.ROWS_STEP == 0 and table.size - mask.sum() < proposals.ROWS_STEP
    same = jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x[:n_core], y[:n_core]), core.plans, table.plans
    )
    del same
    keys = [plan_key(take(table.plans, i)) for i in np.flatnonzero(mask)]
    assert len(set(keys)) == len(keys) == info.plans_in_table
    known = {plan_key(take(family, i)) for i in range(family.group.shape[0])}
    assert set(keys) <= known and len(family.group) == info.plans_scored
    for name, candidates in table.candidates_of.items():
        candidates = np.asarray(candidates)
        assert not candidates[~mask].any()
        rows = {keys[i] for i in np.flatnonzero(candidates.any(axis=1))}
        assert rows == {plan_key(p) for p in proposed("embedded", name)}, name
        columns = EVERYONE[name].allowed(MENU)
        np.testing.assert_array_equal(candidates.any(axis=0), columns)


def padded(*args, **learning):
    return TableBuilder(*args, pad_to=K, **learning)


def test_plans_are_proposed_for_other_links_too_and_each_is_there_once(monkeypatch):
    b = builder("embedded")
    base = b.spec.bandwidth_gbps[0, 1]

    def by_link(builder, allowed):
        """One plan for every speed of a link, and one whatever it is."""
        domains = (1 + int(np.sign(builder.spec.bandwidth_gbps[0, 1] - base)), 3)
        return [make_plan(((k,),), (1, (8,)), builder.gpus, 32, K) for k in domains]

    rules = {"by_link": dataclasses.replace(EVERYONE["megatron"], propose=by_link)}
    monkeypatch.setattr(proposals, "TableBuilder", padded)
    factors = [np.full((4, 4), x) for x in (2.0, 0.5, 3.0)]
    args = (b.spec, b.problem.work, b.problem.calibration, rules)
    for links, expected in ((factors, [1, 3, 2, 0]), ((), [1, 3])):
        _, plans = proposals.propose_candidates(*args, links)
        assert [groups(p)[0][0] for p in plans["by_link"]] == expected


@pytest.mark.nightly
def test_the_menu_grows_only_by_what_somebody_wants(monkeypatch):
    ordered = dataclasses.replace(EVERYONE["crosspipe"], schedules=(Schedule.ZERO_BUBBLE,))
    rules = {"megatron": EVERYONE["megatron"], "ordered": ordered}
    monkeypatch.setattr(proposals, "TableBuilder", padded)
    b = builder("embedded")
    menu, plans = proposals.propose_candidates(b.spec, b.problem.work, b.problem.calibration, rules)
    default = default_lower_choices()
    assert proposals._triples(menu)[: default.size] == proposals._triples(default)
    more = {triple[2] for triple in proposals._triples(menu)[default.size :]}
    offered = proposals._demanded(default, rules)
    assert more == {Schedule.ZERO_BUBBLE} and menu.size < len(offered) and set(plans) == set(rules)
