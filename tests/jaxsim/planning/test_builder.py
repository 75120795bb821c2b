"""Layouts counted, layers and batches shared optimally, tables of plans that can be carried out."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.plan_check import check_plan
from helpers.toy_world import JOB, base_view, calibration, cluster_spec, cost_of
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.files.errors import InputError
from jaxsim.plan.layouts import count_layouts, enumerate_layouts, extensions, split_layers
from jaxsim.plan.plan import default_lower_choices
from jaxsim.planning import PARTS, TableBuilder
from jaxsim.planning import builder as building
from jaxsim.planning.balance import balanced_blocks, complete
from jaxsim.planning.family import make_plan, plan_blocks, stack_plans
from jaxsim.planning.scoring import one_view
from jaxsim.planning.table import build_table
from jaxsim.scenario import sample_views
from jaxsim.trees import take
from jaxsim.workload.workload import MODEL_PRESETS, JobSpec, build_workload

few = settings(deadline=None, max_examples=60)


def all_layouts(n):
    """Every ordered partition of every subset, as rotation classes, found the slow way."""
    found = set()
    for labels in itertools.product(range(n + 1), repeat=n):
        members = [[k for k in range(n) if labels[k] == g] for g in range(1, n + 1)]
        groups = [g for g in members if g]
        for ring in itertools.permutations(groups):
            for orders in itertools.product(*(itertools.permutations(g) for g in ring)):
                turns = [orders[i:] + orders[:i] for i in range(len(orders))]
                if orders:
                    found.add(min(turns))
    return found


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_enumeration_yields_every_layout_once(n):
    listed = list(enumerate_layouts(tuple(range(n)), n))
    turned = {min(x[i:] + x[:i] for i in range(len(x))) for x in listed}
    assert len(listed) == len(turned) == count_layouts(n)
    assert turned == all_layouts(n)


def test_layouts_of_few_domains_only():
    listed = list(enumerate_layouts((0, 1, 2, 3), 2))
    assert len(listed) == 4 + 6 * 3  # alone; a pair as a pipeline in two orders or as replicas
    assert count_layouts(5) == len(list(enumerate_layouts(tuple(range(5)), 5)))


def test_growing_layouts_domain_by_domain_reaches_each_once():
    level = [((k,),) for k in range(4)]
    found = list(level)
    for _ in range(3):
        grown = [list(extensions(layout, 4)) for layout in level]
        assert all(len(new) == len(set(new)) for new in grown)
        level = sorted({layout for new in grown for layout in new})
        found += level
    assert sorted(found) == sorted(enumerate_layouts((0, 1, 2, 3), 4))


@few
@given(st.integers(1, 12), st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_layers_are_split_min_max_optimally(n_layers, stages):
    if len(stages) > n_layers:
        return
    layers, kept = split_layers(n_layers, stages)
    assert sum(layers) == n_layers
    assert all(1 <= k <= s for k, s in zip(kept, stages, strict=True))
    assert all(k <= n for k, n in zip(kept, layers, strict=True)), "a stage without a layer"
    slowest = max(math.ceil(n / k) for n, k in zip(layers, kept, strict=True))
    best = min(
        max(math.ceil(n / s) for n, s in zip(split, stages, strict=True))
        for split in itertools.product(range(1, n_layers + 1), repeat=len(stages))
        if sum(split) == n_layers
    )
    assert slowest == best


balance = jax.jit(balanced_blocks)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(1, 24),
    st.lists(st.floats(0.05, 10.0), min_size=4, max_size=4),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_balanced_blocks_sum_exactly_and_end_early(total, block_s, active):
    active = np.array(active)
    if active.sum() == 0 or total < active.sum():
        return
    block_s = np.asarray(block_s, np.float32)
    args = jnp.int32(total), jnp.asarray(block_s), jnp.asarray(active)
    blocks = np.asarray(balance(*args))
    assert blocks.sum() == total
    assert np.all(blocks[active] >= 1) and np.all(blocks[~active] == 0)
    # The best makespan with one block each at least: always give to the group that ends first.
    best = active.astype(int)
    for _ in range(total - int(active.sum())):
        best[np.argmin(np.where(active, (best + 1) * block_s, np.inf))] += 1
    last = np.argmax(blocks * block_s)
    assert blocks[last] * block_s[last] <= (best * block_s).max() + block_s[last] * 1.001


def test_equal_groups_share_equally_and_fast_ones_get_more():
    def share(total, block_s):
        active = jnp.arange(4) < len(block_s)
        block_s = jnp.array(block_s + [1.0] * (4 - len(block_s)), jnp.float32)
        return balance(jnp.int32(total), block_s, active).tolist()

    assert share(16, [1.0, 1.0, 1.0, 1.0]) == [4, 4, 4, 4]
    assert share(12, [1.0, 2.0]) == [8, 4, 0, 0]
    assert share(16, [0.01, 9.0, 9.0, 9.0]) == [13, 1, 1, 1]


SPEC = dataclasses.replace(cluster_spec(3, gpus=8), gpus=(8, 4, 6))
JOB48 = JobSpec(JOB.model, global_batch=48, seq=1024)
CHOICES = default_lower_choices()


@pytest.fixture(scope="module")
def built():
    work = build_workload([JOB48]).job(0)
    builder = TableBuilder(SPEC, work, calibration(), CHOICES)
    rng = np.random.default_rng(0)
    factor = jnp.asarray(np.exp(rng.normal(0, 0.7, (8, 3, 3))), jnp.float32)
    view = base_view(builder.problem.cluster)
    views = jax.tree.map(lambda x: jnp.broadcast_to(x, (8, *x.shape)), view)
    views = views.replace(bandwidth_gb_per_s=views.bandwidth_gb_per_s * factor)
    return builder, views, *build_table(builder, views, 12)


def rows(table):
    return [take(table.plans, i) for i in np.flatnonzero(table.mask)]


def test_every_row_can_be_carried_out_and_fits(built):
    builder, _, table, info, _ = built
    view = base_view(builder.problem.cluster)
    assert info.plans_in_table == len(rows(table)) > 3
    for i, plan in enumerate(rows(table)):
        check_plan(plan, builder.problem.work, np.array(SPEC.gpus), SPEC.domains)
        cost = cost_of(plan, builder.problem.work, builder.problem.cluster, calibration(), view)
        assert bool(cost.runs)
        np.testing.assert_allclose(1 / cost.step_s, table.base_rate[i], rtol=1e-4)


def test_the_table_holds_the_best_of_the_family_and_of_each_kind(built):
    builder, _, table, info, family = built
    assert info.exhaustive and info.layouts == count_layouts(3)
    assert info.plans_scored == family.group.shape[0] == info.plans_in_family
    family = jax.tree.map(np.asarray, family)
    plans = [take(family, i) for i in range(len(family.group))]
    view = jax.tree.map(lambda x: x[None], base_view(builder.problem.cluster))
    base = builder.rates(plans, view)[0]
    np.testing.assert_allclose(np.max(table.base_rate), base.max(), rtol=1e-5)
    alone = np.array([(p.group >= 0).sum() == 1 for p in plans])
    single = np.asarray(table.base_rate)[np.asarray(table.single_domain & table.mask)]
    np.testing.assert_allclose(single.max(), base[alone].max(), rtol=1e-5)
    used = np.asarray(table.plans.group)[np.asarray(table.single_domain)] >= 0
    assert np.all(used.sum(axis=1) == 1)
    assert bool(jnp.any(table.even_split & table.mask))


def test_the_even_splits_are_there_where_a_beam_does_not_find_their_layouts(built):
    builder, views, *_ = built
    table, info, _ = build_table(builder, views, 12, limit=4)
    assert not info.exhaustive
    even = rows(table.replace(mask=table.mask & table.even_split))
    assert even
    for plan in even:
        used = np.asarray(plan.dp)[: int(plan.group.max()) + 1]
        assert np.all(plan.group >= 0) and np.all(plan.tp == plan.tp[0]) and len(set(used)) == 1


def test_fallback_plans_are_in_a_table_however_small(built):
    """The best of all, inside one domain and even, and every domain alone for when links fail."""
    builder, views, whole, *_ = built
    table, info, _ = build_table(builder, views, 2)
    assert info.plans_in_table == table.size > 2
    used = np.asarray(table.plans.group) >= 0
    alone = used[np.asarray(table.mask & table.single_domain)]
    np.testing.assert_array_equal(np.unique(alone.argmax(axis=1)), np.arange(SPEC.n_domains))
    for kind in ("mask", "single_domain", "even_split"):
        best, here = (
            np.asarray(t.base_rate)[np.asarray(getattr(t, kind) & t.mask)].max()
            for t in (whole, table)
        )
        np.testing.assert_allclose(here, best, rtol=1e-5, err_msg=kind)


def test_a_loaded_cluster_has_plans_for_parts_of_its_gpus(built):
    """With half of every domain's GPUs held a table of plans for all of them runs few of its rows; one
    with plans for parts has a row of each kind, as fast as if the cluster were that small."""
    builder = built[0]
    views = sample_views(builder.problem.cluster, 8, 0, loaded=True)
    held = np.array(SPEC.gpus)[None] - np.asarray(views.gpus_available)
    assert np.all(held[::2] == 0) and held[1::2].any(axis=1).all() and held.min() == 0
    work, menu = builder.problem.work, CHOICES
    loaded = TableBuilder(SPEC, work, calibration(), menu, parts=PARTS)
    table, info, _ = build_table(loaded, views, 16)
    assert info.plans_scored > built[3].plans_scored
    halved = dataclasses.replace(SPEC, gpus=tuple(n // 2 for n in SPEC.gpus))
    small = TableBuilder(halved, work, calibration(), menu)
    view = one_view(
        base_view(loaded.problem.cluster).replace(gpus_available=small.problem.cluster.gpus)
    )
    alone, *_ = build_table(small, view, 16)
    best = np.asarray(loaded.rates(rows(table), view))[0]
    here = np.asarray(small.rates(rows(alone), view))[0]
    for kind in ("mask", "single_domain", "even_split"):
        mine, theirs = (np.asarray(getattr(t, kind))[np.asarray(t.mask)] for t in (table, alone))
        assert best[mine].max() >= here[theirs].max() * (1 - 1e-4) > 0


def test_a_beam_looks_for_layouts_of_every_part_of_the_gpus(monkeypatch):
    """Plans for all GPUs are fastest in the first domains, plans for parts of them in the last."""
    work = build_workload([JOB48]).job(0)
    spec = cluster_spec(5, gpus=8)
    loaded = TableBuilder(spec, work, calibration(), CHOICES, parts=PARTS)
    weight = 2.0 ** np.arange(5)

    def rates(self, plans):
        used = [np.asarray(p.gpus) for p in plans]
        whole = [u.max() > 4 for u in used]
        speed = [
            1e3 * np.sum((u > 0) / weight) if w else np.sum((u > 0) * weight)
            for u, w in zip(used, whole, strict=True)
        ]
        return np.tile(np.array(speed)[:, None], CHOICES.size)

    monkeypatch.setattr(TableBuilder, "base_rates", rates)
    building._beam.cache_clear()
    layouts, exhaustive = loaded.layouts(limit=14)
    building._beam.cache_clear()
    assert not exhaustive
    pairs = [{k for group in layout for k in group} for layout in layouts]
    assert {0, 1} in pairs and {3, 4} in pairs


def test_combinations_of_many_groups_stay_few():
    work = build_workload([JOB48]).job(0)
    builder = TableBuilder(cluster_spec(8), work, calibration(), CHOICES)
    layout = tuple((k,) for k in (0, *range(7, 0, -1)))
    found = [(2.0, 1, 4), (1.5, 1, 2), (1.0, 2, 1)]
    builder._group_settings = {(0, group): found for group in layout}
    plans, _ = builder.plans_of([layout])
    assert 8 < len(plans) < 2**8
    assert plans[0].dp.tolist() == [4] * 8, "the best of each group first"
    assert plans[-1].tp.tolist() == [2] * 8


def test_completion_shares_exactly_the_global_batch(built):
    builder, views, _, _, family = built
    done, legal = jax.jit(
        jax.vmap(
            jax.vmap(complete, in_axes=(None, 0, None, None)),
            in_axes=(0, None, None, None),
        )
    )(
        family,
        jnp.arange(CHOICES.size, dtype=jnp.int32),
        builder.problem,
        take(views, 3),
    )
    sequences = np.asarray(done.batch_share * done.micro_batch * done.dp)
    groups = np.asarray(done.group).max(axis=-1)[..., None] >= np.arange(3)
    legal = np.asarray(legal)
    assert 0.3 < legal.mean() < 1
    assert np.all(np.where(groups, sequences, 0).sum(axis=-1)[legal] == 48)
    assert np.all((np.asarray(done.batch_share) >= groups)[legal]), "a group without work"
    assert np.all(np.asarray(done.batch_share)[~groups] == 0)
    # What is called illegal cannot be split into blocks: micro-batch x the largest dp.
    dp = np.where(groups, np.asarray(done.dp), 1)
    block = np.asarray(done.micro_batch)[..., 0] * dp.max(axis=-1)
    splits = (48 % block == 0) & (48 // block >= groups.sum(axis=-1))
    splits &= np.all(dp.max(axis=-1, keepdims=True) % dp == 0, axis=-1)
    np.testing.assert_array_equal(legal, splits)


@pytest.mark.parametrize("count", [1, 4, 5])
def test_plans_are_cut_into_blocks_of_one_size(count):
    """All of them, in their order; the last block is filled up with the first plan."""
    layouts = list(enumerate_layouts((0, 1, 2), 3))[:count]
    plans = [make_plan(x, (1, (1,) * len(x)), np.full(3, 4), 8, 3) for x in layouts]
    of_each = jax.tree.map(lambda *xs: np.stack(xs), *plans)
    for given_as in (plans, stack_plans(plans)):
        blocks, found = plan_blocks(given_as, block=4)
        cut = list(blocks)
        assert found == count and [len(block.group) for block in cut] == [4] * -(-count // 4)
        whole = jax.tree.map(lambda *xs: np.concatenate(xs), *cut)
        expected = take(of_each, [*range(count), *[0] * (len(whole.group) - count)])
        jax.tree.map(np.testing.assert_array_equal, whole, expected)


def test_the_table_covers_views_nearly_as_well_as_the_family(built):
    builder, views, table, _, family = built
    stacks = (jax.tree.map(np.asarray, p) for p in (family, table.plans))
    everything, chosen = (
        builder.rates([take(s, i) for i in range(len(s.group))], views) for s in stacks
    )
    assert np.all(chosen.max(axis=1) <= everything.max(axis=1) * (1 + 1e-5))
    # Greedy cover of a submodular mean: at least 1 - 1/e of what there is.
    assert chosen.max(axis=1).mean() >= (1 - 1 / np.e) * everything.max(axis=1).mean()


def test_a_plan_that_cannot_fit_says_what_is_missing():
    work = build_workload([JobSpec(MODEL_PRESETS["llama-70b"], 4, 1024)]).job(0)
    builder = TableBuilder(SPEC, work, calibration(), CHOICES)
    builder.choice_rates = lambda plans, views: np.zeros((1, len(plans.group), CHOICES.size))
    views = jax.tree.map(lambda x: x[None], base_view(builder.problem.cluster))
    with pytest.raises(InputError) as error:
        build_table(builder, views, 8)
    text = str(error.value)
    assert "\n" not in text
    for word in ("toy", "no plan fits", "GB per GPU", "more than the 80.0 GB there are"):
        assert word in text
    need = float(text.split("needs ")[1].split(" GB")[0])
    # 69e9 parameters on 18 GPUs, ZeRO-1 at dp 1: at least 18 bytes each.
    assert need > 69 * 18 / 18
    # And hardly more: the least demanding plan recomputes everything and takes one micro-batch.
    assert need < 1.5 * 69 * 18 / 18, need
