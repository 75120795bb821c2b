"""Schedulers that keep one plan share a compiled program: by number, as by name."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agents.registry import KEPT, SchedulerSettings, kept_plans
from experiments.evaluate.contestants import named

P, V = 4, 3


@pytest.fixture
def setup():
    """A table into which alpa and zero brought plans."""
    table = types.SimpleNamespace(
        mask=jnp.array([True, True, True, False]),
        single_domain=jnp.array([True, False, False, True]),
        even_split=jnp.array([False, True, False, False]),
        admitted={
            "zero": jnp.zeros((P, V), bool).at[2, 1].set(True),
            "alpa": jnp.zeros((P, V), bool).at[1, :2].set(True),
        },
    )
    return types.SimpleNamespace(
        table=table, problem=types.SimpleNamespace(choices=types.SimpleNamespace(size=V))
    )


def test_a_keeper_chooses_from_its_own_plans(setup):
    names = ("static_even_split", "single_domain", "best_static", "zero", "alpa")
    by_number = jax.jit(lambda number: kept_plans(setup, number))
    makers, seen = set(), []
    for name in names:
        maker, number = named(name, setup.table, SchedulerSettings())
        makers.add(maker)
        seen.append(np.asarray(by_number(number)))
        np.testing.assert_array_equal(seen[-1], KEPT[name](setup))
    assert len(makers) == 1 and by_number._cache_size() == 1
    assert len(np.unique(np.stack(seen), axis=0)) == len(names)


def test_a_keeper_whose_plans_are_not_in_the_table_is_refused(setup):
    with pytest.raises(ValueError, match=r"megatron.*not nominated"):
        named("megatron", setup.table, SchedulerSettings())


def test_tuned_values_are_traced_and_share_a_maker(setup):
    few, many = (
        named("hysteresis", setup.table, SchedulerSettings(hysteresis_horizon=h))
        for h in (2.0, 9.0)
    )
    assert few[0] is many[0]
    assert (float(few[1]), float(many[1])) == (2.0, 9.0)
