"""Scenarios: a seed and the name of a split are one world."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import make_plan, one_job_world

from jaxsim.scenario import Draw, ScenarioSettings, drawn_bank, scenario_bank
from jaxsim.scenario.scenario import best_static_row
from jaxsim.trees import take

ALONE = make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2)
SELDOM = make_plan([(0,), (1,)], [(8,), (8,)], [16, 16], dp=1, sync_period=30)


@pytest.mark.parametrize(
    "settings",
    [{}, {"token_worth": "drawn"}, {"load_share": 0.5, "load_swing": 0.2}],
    ids=["links", "worth", "load"],
)
def test_progress_counts_against_the_best_row_of_each_scenario(settings):
    """What scenarios share is computed once, and each has what it would have alone."""
    world = one_job_world(ALONE, SELDOM)
    settings = ScenarioSettings(base_spread=0.25, horizon=4, **settings)
    params, keys = scenario_bank(world, settings, range(3), "a")
    alone = [best_static_row(take(params, s), world.table)[0] for s in range(3)]
    expected = jnp.stack(alone)[:, None] * params.interval_s[:, None]
    np.testing.assert_allclose(params.progress_ref, expected, rtol=1e-6)
    assert bool((expected > 0).all())
    drawn = [Draw(settings, seed) for seed in range(3)]
    other, other_keys = drawn_bank(world, drawn, "a", references=False)
    np.testing.assert_array_equal(other.progress_ref, 1.0)
    chex.assert_trees_all_equal(other.replace(progress_ref=params.progress_ref), params)
    np.testing.assert_array_equal(*(jax.random.key_data(k) for k in (keys, other_keys)))


def test_splits_whose_names_are_anagrams_are_different_worlds():
    world = one_job_world(ALONE)
    settings = ScenarioSettings(base_spread=0.25, horizon=4)

    def links(split):
        return np.asarray(
            scenario_bank(world, settings, range(3), split)[0].problem.cluster.bandwidth_gb_per_s
        )

    listen, silent = links("listen"), links("silent")
    off_diagonal = ~np.eye(listen.shape[-1], dtype=bool)
    assert (listen != silent)[:, off_diagonal].all()
    np.testing.assert_array_equal(listen, links("listen"))  # drawn alike in every process
    assert not np.array_equal(links("a"), links("b"))


def test_movement_is_drawn_in_its_range_and_moves_nothing_else():
    world = one_job_world(ALONE)
    settings = ScenarioSettings(jitter="uniform", base_spread=0.25, horizon=4)
    still, _ = scenario_bank(world, settings, range(64), "a")
    wide, _ = scenario_bank(
        world, dataclasses.replace(settings, movement=(0.5, 2.0)), range(64), "a"
    )
    by = wide.network.white_amplitude / still.network.white_amplitude
    assert 0.5 <= by.min() < 0.7 and 1.5 < by.max() <= 2.0
    assert 0.3 < np.mean(np.asarray(by) < 1.0) < 0.7  # as often halved as doubled
    network = wide.network.replace(white_amplitude=still.network.white_amplitude)
    same = network.replace(ou_sigma=still.network.ou_sigma)
    chex.assert_trees_all_equal(wide.replace(network=same), still)
    once, _ = scenario_bank(
        world, dataclasses.replace(settings, movement=(1.0, 1.0)), range(64), "a"
    )
    chex.assert_trees_all_equal(once, still)
