"""Compiled without the library for long axes: the same results, by another program where asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsim import short_axes
from jaxsim.short_axes import ShortAxes, options_here, threadsafe


def spread_of(x):
    """[N] of the last, short axis."""
    return x.max(axis=-1) - x.min(axis=-1) + jnp.sum(x * x, axis=-1)


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (512, 8))


def calls_of_the_library(compiled):
    return compiled.lower(jnp.ones((512, 8), jnp.float32)).compile().as_text().count("__ynn_fusion")


def test_results_are_those_of_jit(x):
    """Up to the order of a sum."""
    np.testing.assert_allclose(ShortAxes(spread_of)(x), jax.jit(spread_of)(x), rtol=1e-6)


def test_reductions_are_not_handed_to_the_library():
    if not options_here():
        pytest.skip("this version of XLA has no such option")
    if not calls_of_the_library(jax.jit(spread_of)):
        pytest.skip("this version of XLA hands nothing to the library here")
    assert calls_of_the_library(jax.jit(spread_of, compiler_options=options_here())) == 0


def test_arguments_say_which_program_runs(x):
    program = ShortAxes(lambda x: spread_of(x), where=lambda x: x.shape[0] > 100)
    assert program._cache_size() == 0
    few = program(x[:50])
    plain = program._cache_size()
    many = program(x)
    assert (plain, program._cache_size()) == (1, 2)
    np.testing.assert_allclose(many[:50], few, rtol=1e-6)
    program(x[100:250] + 1.0)
    program(x + 1.0)
    assert program._cache_size() == 3, "the same shapes are compiled once"


def test_an_option_that_is_not_known_is_left_out(monkeypatch, x):
    monkeypatch.setattr(short_axes, "OPTIONS", {"xla_cpu_no_such_option": "1"})
    options_here.cache_clear()
    try:
        assert options_here() == {}
        np.testing.assert_array_equal(ShortAxes(spread_of)(x), jax.jit(spread_of)(x))
    finally:
        options_here.cache_clear()


def test_each_structure_of_arguments_has_a_compiled_function_of_its_own(x):
    """What threads mix up is too rare to wait for in a test."""
    program = threadsafe(lambda tree: jax.tree.map(lambda y: y + 1.0, tree))
    for count, tree in [(1, (x,)), (2, {"a": x}), (2, (x + 1.0,)), (2, (x[:50],))]:
        assert jax.tree.structure(program(tree)) == jax.tree.structure(tree)
        assert len(set(map(id, program._programs.values()))) == count
