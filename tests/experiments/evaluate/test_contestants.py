"""Who plays: one class and one compiled program for all static schedulers, and for all tuned values."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.baselines import StaticPlan
from agents.hi_ppo import GuidedSearch
from agents.registry import find
from experiments.evaluate.contestants import contestants, named, requested
from jaxsim.files.errors import InputError

P, V = 4, 3


@pytest.fixture
def world():
    """A table to which the plans of alpa, zero, sailor and hyperion were added."""
    candidates_of = {
        "zero": jnp.zeros((P, V), bool).at[2, 1].set(True),
        "alpa": jnp.zeros((P, V), bool).at[1, :2].set(True),
        "sailor": jnp.zeros((P, V), bool).at[1, :2].set(True),
        "hyperion": jnp.zeros((P, V), bool).at[0, :2].set(True),
    }
    table = types.SimpleNamespace(
        mask=jnp.array([True, True, True, False]),
        single_domain=jnp.array([True, False, False, True]),
        even_split=jnp.array([False, True, False, False]),
        candidates_of=candidates_of,
    )
    return types.SimpleNamespace(
        table=table, problem=types.SimpleNamespace(choices=types.SimpleNamespace(size=V))
    )


def test_static_schedulers_differ_in_a_leaf_alone(world):
    names = ("static_even_split", "single_domain", "best_static", "zero", "alpa")
    seen, look = [], jax.jit(lambda scheduler: scheduler.candidates)
    for name in names:
        scheduler = named(name, world, {})
        assert type(scheduler) is StaticPlan
        seen.append(np.asarray(look(scheduler)))
    assert look._cache_size() == 1
    assert len(np.unique(np.stack(seen), axis=0)) == len(names)
    table = world.table
    np.testing.assert_array_equal(seen[0].any(axis=1), table.even_split)
    np.testing.assert_array_equal(seen[1].any(axis=1), table.single_domain)
    assert seen[2].all()
    for name, candidates in zip(names[3:], seen[3:], strict=True):
        np.testing.assert_array_equal(candidates, table.candidates_of[name])


def test_planners_that_plan_again_share_a_program(world):
    look = jax.jit(lambda scheduler: scheduler.horizon)
    assert [float(look(named(name, world, {}))) for name in ("sailor", "hyperion")] == [10.0, 1e6]
    assert look._cache_size() == 1


def test_a_scheduler_whose_plans_are_not_in_the_table_is_refused(world):
    with pytest.raises(ValueError, match=r"megatron.*not added"):
        named("megatron", world, {})


def test_a_tuned_value_is_a_leaf(world):
    look = jax.jit(lambda scheduler: scheduler.horizon)
    few, many = (named("hysteresis", world, {"hysteresis_horizon": h}) for h in (2.0, 9.0))
    assert (float(look(few)), float(look(many))) == (2.0, 9.0)
    assert look._cache_size() == 1
    # Settings of others are not its own.
    assert float(named("hysteresis", world, {"sailor_horizon": 3.0}).horizon) == 10.0


def test_an_unknown_setting_is_refused(world):
    with pytest.raises(ValueError, match=r"'horizn'.*did you mean 'horizon'"):
        find("hysteresis").make(world.table, V, horizn=3.0)
    with pytest.raises(ValueError, match=r"best_static.*'horizon'.*known: none"):
        find("best_static").make(world.table, V, horizon=3.0)


def test_a_misspelt_name_is_refused_with_the_one_that_may_be_meant():
    with pytest.raises(InputError, match=r"schedulers: .*'megatro'.*did you mean 'megatron'"):
        requested("hysteresis,megatro")


def test_a_policy_may_search_before_it_acts(world):
    """The same policy behind both names; what is no policy cannot search."""
    names, checkpoints = requested("hi_ppo,hi_ppo+search,hysteresis")
    assert names == ["hi_ppo", "hi_ppo+search", "hysteresis"] and len(checkpoints) == 2
    (bare,), (guided,) = (contestants(name, checkpoints, {}, world) for name in names[:2])
    assert isinstance(guided.scheduler, GuidedSearch)
    for a, b in zip(*map(jax.tree.leaves, (bare.scheduler, guided.scheduler.policy)), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(InputError, match=r"hysteresis\+search"):
        requested("hysteresis+search")
