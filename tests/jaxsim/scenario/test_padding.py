"""Domains that are not there change nothing: not what is drawn, not how the world moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import cluster_spec, make_plan, one_job_world

from jaxsim.files import InputError
from jaxsim.scenario import Draw, ScenarioSettings, drawn_bank, padded_world, tapes
from jaxsim.scenario.padding import PAIRS_STEP, ROWS_STEP, filled_table, padded_plans
from jaxsim.trees import stack

MORE = 7
ALONE = make_plan([(0,)], [(8,)], [8], dp=2, micro_batch=2)
SELDOM = make_plan([(0,), (1,)], [(8,), (8,)], [16, 16], dp=1, sync_period=30)
RNG = np.random.default_rng(0)
TRACES = {
    "network_trace": RNG.uniform(0.1, 1.0, (9, 2, 2)).astype(np.float32),
    "load_trace": RNG.integers(0, 3, (9, 2)).astype(np.float32),
}


def real(x, k):
    """The part of an array that belongs to domains that are there: axes of MORE are cut to `k`."""
    return np.asarray(x)[tuple(slice(k) if n == MORE else slice(None) for n in np.shape(x))]


@pytest.mark.parametrize(
    ("settings", "traces"),
    [
        ({"jitter": "regime", "load_share": 0.4, "load_job_share": 0.1}, {}),
        ({"jitter": "uniform", "uniform": 0.3, "load_share": 0.5, "load_swing": 0.2}, TRACES),
    ],
    ids=["drawn", "traces"],
)
def test_worlds_are_drawn_and_move_as_without_padding(settings, traces):
    world, spec = one_job_world(ALONE, SELDOM), cluster_spec()
    settings = ScenarioSettings(base_spread=0.25, horizon=5, **settings)
    draws, seen = [Draw(settings, seed) for seed in range(3)], []
    for one in (world, padded_world(world, spec, MORE)):
        params, keys = drawn_bank(one, draws, "a", references=False, **traces)
        moved = tapes(params, keys, 5)
        params = params.replace(problem=params.problem.replace(choices=None))  # some twice, padded
        seen.append((params, jax.random.key_data(keys), moved))
    k = spec.n_domains
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, real(y, k), rtol=1e-6), *seen)
    course = seen[1][2]
    assert not np.asarray(course.bandwidth_gb_per_s)[..., k:].any()
    assert not np.asarray(course.gpus_available)[..., k:].any()


def test_padded_plans_use_nothing_more():
    plans = stack([ALONE, make_plan([(0, 1)], [(4, 4)], [8], dp=2)])
    more = padded_plans(plans, MORE)
    np.testing.assert_array_equal(more.used, np.pad(np.asarray(plans.used), [(0, 0), (0, 5)]))
    np.testing.assert_array_equal(jax.vmap(lambda plan: plan.gpus)(more)[:, 2:], 0)
    np.testing.assert_array_equal(more.sync_period, plans.sync_period)


def test_rows_beyond_those_of_a_table_are_nobodys():
    table = one_job_world(ALONE, SELDOM).table
    everyone = {"zero": jnp.ones((2, 4), bool)}
    more = filled_table(table.replace(pairs=jnp.array([1, 5]), candidates_of=everyone), 4, 6)
    assert more.size == ROWS_STEP and len(more.pairs) == PAIRS_STEP
    np.testing.assert_array_equal(np.unique(more.pairs), [1, 7])  # row 0 choice 1, row 1 choice 1
    own = more.candidates_of["zero"]
    for rows in (more.mask, more.single_domain, more.base_rate, own[:, :4]):
        assert np.asarray(rows)[:2].all() and not np.asarray(rows)[2:].any()
    assert own.shape == (ROWS_STEP, 6) and not own[:, 4:].any()


def test_a_cluster_of_more_domains_is_refused():
    with pytest.raises(InputError, match="cannot pad 2 domains to 1"):
        padded_world(one_job_world(ALONE), cluster_spec(), 1)
