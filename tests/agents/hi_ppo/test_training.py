"""Training: exact resume, what an epoch changes, what a Trainer refuses."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.tiny_training import SEEDS, shared_run

from agents.hi_ppo.checkpoint import load_checkpoint, restore, save_checkpoint
from agents.hi_ppo.settings import TrainSettings
from agents.hi_ppo.training import Trainer

pytestmark = pytest.mark.nightly  # as a whole: its tests share what takes long to compile

META = {"hidden": 8, "every": 2, "seeds": list(SEEDS), "epoch": 0, "config": {}}


@pytest.fixture(scope="module")
def run():
    return shared_run()


def train(trainer, state, epochs):
    """State after `epochs` more, and the metrics of each."""
    metrics = []
    for _ in range(epochs):
        state, one = trainer.run_epoch(state)
        metrics.append(one)
    return state, metrics


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def five_epochs(run):
    return train(run.trainer, run.trainer.init(jnp.asarray(SEEDS, jnp.uint32)), 5)


def test_interrupted_and_resumed_equals_never_interrupted(run, five_epochs, tmp_path):
    """Bit for bit, with a process's memory replaced by the file in between, twice."""
    trainer = run.trainer
    state, metrics = trainer.init(jnp.asarray(SEEDS, jnp.uint32)), []
    for part, epochs in enumerate((2, 1, 2)):
        state, more = train(trainer, state, epochs)
        metrics += more
        path = tmp_path / f"{part}.msgpack"
        save_checkpoint(path, state, META)
        other = trainer.init(jnp.asarray([7, 9], jnp.uint32))  # nothing of it may survive
        state = restore(load_checkpoint(path), other)
    same(state, five_epochs[0])
    same(metrics, five_epochs[1])


def test_an_epoch_changes_both_policies_and_nothing_but_the_seed_tells_them_apart(run, five_epochs):
    fresh = run.trainer.init(jnp.asarray(SEEDS, jnp.uint32))
    chex.assert_tree_all_finite(five_epochs)
    for before, after in (
        (fresh.policy.upper, five_epochs[0].policy.upper),
        (fresh.policy.lower, five_epochs[0].policy.lower),
    ):
        moved = jax.tree.map(
            lambda a, b: np.any(a != b, axis=tuple(range(1, a.ndim))), before, after
        )
        assert np.any(jax.tree.leaves(moved), axis=0).all(), "every seed's policy learns"
    for leaf in jax.tree.leaves(five_epochs[0].policy):
        assert leaf.shape[0] == len(SEEDS)
    again = run.trainer.init(jnp.asarray([SEEDS[1], SEEDS[0]], jnp.uint32))
    same(jax.tree.map(lambda x: x[::-1], again), fresh)
    assert np.asarray(five_epochs[0].epoch).tolist() == [5, 5]


def test_a_tape_holds_the_measured_intervals_and_what_is_left_after_each(run):
    """Interval 0 is measured at reset, 8 are played; after the last nothing is to be had."""
    tapes = run.trainer.tapes
    rates, value = np.asarray(tapes.rates), np.asarray(tapes.value)
    assert rates.shape[1] == 8 + 1 and value.shape[1] == 8 + 2
    assert np.all(value[:, -1] == 0) and np.all(value[:, 1].max(axis=-1) > 0)
    # Without moving, a row gets at least what it trains itself.
    alone = rates.max(axis=-1) * float(tapes.params.interval_s[0])  # [S, T + 1, P]
    rest = alone[:, ::-1].cumsum(axis=1)[:, ::-1]
    assert np.all(value[:, :-1] >= rest * (1 - 1e-4))


def test_every_epoch_plays_other_episodes(five_epochs):
    progress = np.array([m.progress_rel for m in five_epochs[1]])  # [5, seeds]
    assert len(np.unique(progress)) == progress.size
    assert np.all(progress > 0.2) and np.all(progress < 3.0)


def test_an_epoch_compiles_once(run, five_epochs):
    del five_epochs
    assert run.trainer.run_epoch._cache_size() == 1


def test_the_upper_policy_makes_up_its_mind(run):
    """What it learns is the probes' business; here, that a whole run moves it steadily."""
    state = run.trainer.init(jnp.asarray(SEEDS, jnp.uint32))
    _, metrics = train(run.trainer, state, 100)
    entropy = np.array([m.upper.entropy for m in metrics])
    # Of both policies together: four environments leave little to decide to one of them alone.
    assert entropy[-30:].mean() < 0.9 * entropy[:30].mean()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"rollout": 3}, "rollout"),
        ({"rollout": 16}, "rollout"),
        ({"every": 3}, "every"),
        ({"envs": 3, "upper.minibatches": 4}, "upper.minibatches"),
        ({"lower.minibatches": 5}, "lower.minibatches"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(run, changes, names):
    settings = {"envs": 4, "rollout": 4}
    levels = {}
    for key, value in changes.items():
        level, _, field = key.rpartition(".")
        if level:
            changed = dataclasses.replace(getattr(TrainSettings(), level), **{field: value})
            levels[level] = changed
        else:
            settings[field] = value
    with pytest.raises(ValueError, match=names):
        Trainer(TrainSettings(**settings, **levels), run.trainer.table, run.trainer.tapes, 8, 10)
