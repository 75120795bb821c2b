"""Few lower choices of a row are weighed, and one of them is as good as the best."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxsim.load import SubmittedJob
from jaxsim.plan import default_lower_choices
from jaxsim.planning import (
    NEVER,
    Objective,
    choice_rates,
    choice_worths,
    pairs,
    worthwhile_pairs,
)
from jaxsim.scenario import build_jobs_world, build_world, sample_views
from jaxsim.trees import take

CHOICES = default_lower_choices()


def test_one_choice_a_row_where_one_is_always_the_best_two_where_they_take_turns():
    always, turns, never = [[3, 2, 1]] * 2, [[3, 2, 1], [1, 2, 3]], [[0, 0, 0]] * 2
    rates = np.array([always, turns, never], float).swapaxes(0, 1)  # [W, P, V]
    found = worthwhile_pairs(rates, [])
    assert sorted(set(found.tolist())) == [0, 3, 5] and len(found) == pairs.STEP
    # A scheduler that may not use the first choice has the second of the first row, and of the second
    # row the last alone where it is the best; where it is not, the middle one.
    mask = np.array([[False, True, True]] * 3)
    assert sorted(set(worthwhile_pairs(rates, [mask]).tolist())) == [0, 1, 3, 4, 5]


def test_what_is_as_good_is_not_weighed_twice():
    rates = np.array([[[1.0, 1.0 - 0.5 * pairs.WITHIN], [1.0, 1.0 - 2.0 * pairs.WITHIN]]])
    assert sorted(set(worthwhile_pairs(rates, []).tolist())) == [0, 2]
    # The second choice is near enough in one state and the best in another: it serves both alone.
    both = np.array([[[1.0, 1.0 - 0.5 * pairs.WITHIN]], [[0.5, 1.0]]])
    assert set(worthwhile_pairs(both, []).tolist()) == {1}
    assert worthwhile_pairs(np.zeros((2, 1, 2)), []).size == 0  # nothing ever runs


@settings(deadline=None, max_examples=60)
@given(
    hnp.arrays(float, (4, 2, 5), elements=st.sampled_from([0.0, 0.5, 0.9995, 1.0, 2.0])),
    hnp.arrays(bool, (2, 5)),
)
def test_in_every_state_one_of_the_pairs_is_as_good_as_the_best(rates, mask):
    found = worthwhile_pairs(rates, [mask])
    chosen = np.zeros((2, 5), bool)
    chosen.reshape(-1)[found] = True
    for allowed in (np.ones_like(mask), mask):
        best = (rates * allowed).max(axis=2)
        ours = (rates * (allowed & chosen)).max(axis=2)
        assert (ours >= (1 - pairs.WITHIN) * best).all()
    # Greedy covers are at most H(W) times the smallest: Chvatal 1979. One for each of two masks.
    for row in range(2):
        least = smallest_cover(rates[:, row])
        harmonic = sum(1 / n for n in range(1, 5))
        alone = worthwhile_pairs(rates[:, row : row + 1], [])
        assert len(set(alone.tolist())) <= harmonic * least


def smallest_cover(rates):
    """Of all sets of choices the size of the smallest that serves every state; [W, V]."""
    best = rates.max(axis=1, keepdims=True)
    good = (rates >= (1 - pairs.WITHIN) * best)[best[:, 0] > 0]
    return next(
        size
        for size in range(6)
        for some in itertools.combinations(range(5), size)
        if good[:, list(some)].any(axis=1).all()
    )


@pytest.mark.nightly
def test_a_world_weighs_few_pairs_and_loses_nothing_by_it():
    spec = cluster_spec(2, gpus=8, gbps=10.0)
    world, _ = build_world(spec, JOB, 8, 20, calibration())
    whole, _ = build_world(spec, JOB, 8, 20, calibration(), every_choice=True)
    assert whole.table.pairs is None
    table, problem = world.table, world.problem.job(0)
    views = sample_views(problem.cluster, 24, seed=5)
    rate = jax.jit(choice_rates)
    some = np.asarray(rate(table.plans, views, problem, table.pairs))
    every = np.asarray(rate(table.plans, views, problem))
    picked = np.zeros(table.mask.size * CHOICES.size, bool)
    picked[np.asarray(table.pairs)] = True
    picked = picked.reshape(-1, CHOICES.size)
    np.testing.assert_array_equal(some, np.where(picked, every, 0.0))
    used = np.asarray(table.mask)
    assert picked[used].sum() < 0.5 * picked[used].size
    best = every[:, used].max(axis=2)
    assert (best > 0).any() and not picked[~used].any()
    lost = 1.0 - some[:, used].max(axis=2) / np.where(best > 0, best, np.nan)
    assert np.nanmean(lost) < pairs.WITHIN and np.nanmax(lost) < 0.05


@pytest.mark.nightly
def test_many_jobs_weigh_few_pairs_of_what_others_leave():
    """Two kinds of jobs, tables of whole domains and of parts, GPUs left to a job at random."""
    spec = cluster_spec(2, gpus=8, gbps=10.0)
    other = dataclasses.replace(JOB, global_batch=2 * JOB.global_batch)
    submitted = [SubmittedJob(f"line {i}", "toy", job) for i, job in enumerate((JOB, other))]
    world = build_jobs_world(spec, submitted, 12, 20)
    views = sample_views(world.problem.cluster, 24, seed=5)
    left = np.random.default_rng(0).integers(0, 9, views.gpus_available.shape)
    views = views.replace(gpus_available=jnp.asarray(left, jnp.int32))
    rate = jax.jit(choice_rates)
    for kind in range(2):
        table, problem = take(world.tables, kind), world.problem.job(kind)
        used = np.asarray(table.mask)
        some = np.asarray(rate(table.plans, views, problem, table.pairs))[:, used].max(axis=2)
        best = np.asarray(rate(table.plans, views, problem))[:, used].max(axis=2)
        assert len(set(table.pairs.tolist())) < 0.5 * used.sum() * problem.choices.size
        lost = 1.0 - some / np.where(best > 0, best, np.nan)
        assert np.nanmean(lost) < 0.005, np.nanmean(lost)


def test_padding_and_order_of_pairs_change_nothing():
    spec = cluster_spec(2, gpus=8, gbps=10.0)
    world, _ = build_world(spec, JOB, 8, 20, calibration())
    table, problem = world.table, world.problem.job(0)
    views = sample_views(problem.cluster, 24, seed=5)
    rate = jax.jit(choice_rates)
    usual = rate(table.plans, views, problem, table.pairs)
    np.testing.assert_array_equal(usual, rate(table.plans, views, problem, jnp.flip(table.pairs)))


@pytest.mark.nightly
def test_what_is_not_weighed_is_never_chosen_under_weights():
    spec = cluster_spec(2, gpus=8, gbps=10.0)
    world, _ = build_world(spec, JOB, 8, 20, calibration())
    table, problem = world.table, world.problem.job(0)
    views = sample_views(problem.cluster, 24, seed=5)
    worth = jax.jit(choice_worths)
    used = np.asarray(table.mask)
    for weights in ((1.0, 0.5, 0.2, 0.0), (0.5, 0.0, 1.0, 0.5)):
        scale = (Objective.of(weights), jnp.float32(5.0), jnp.float32(60.0))
        every = np.asarray(worth(table.plans, views, problem, *scale))[:, used]
        some = np.asarray(worth(table.plans, views, problem, *scale, table.pairs))[:, used]
        weighed = some > NEVER
        np.testing.assert_array_equal(some[weighed], every[weighed])
        assert 0 < weighed.sum() < 0.5 * weighed.size
        # The best of all rows is found; a row that is worth less than nothing may be worth less still.
        best, ours = every.max(axis=(1, 2)), some.max(axis=(1, 2))
        np.testing.assert_allclose(ours, best, atol=2 * pairs.WITHIN * np.abs(every[weighed]).max())
