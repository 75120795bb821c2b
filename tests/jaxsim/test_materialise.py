"""Results that are computed once, however many read them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxsim
from jaxsim.materialise import materialised


def cube(x):
    return x * x * x, -x


def test_a_materialised_function_gives_what_the_function_gives():
    x = jnp.linspace(-2.0, 2.0, 7, dtype=jnp.float32)
    for transform in (lambda f: f, jax.jit, jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        np.testing.assert_array_equal(transform(materialised(cube))(x), transform(cube)(x))
    slopes = jax.grad(lambda x: jnp.sum(materialised(cube)(x)[0]))(x)
    np.testing.assert_allclose(slopes, 3 * x * x, rtol=1e-6)


@pytest.mark.nightly  # a whole step, compiled with all optimisations
def test_the_random_numbers_of_an_interval_are_computed_once_and_not_by_each_of_their_readers(
    scoring_is_optimised,
):
    params = jaxsim.make("four-aws-regions", seed=0)
    keys = jax.random.split(jax.random.key(0), 4)
    states, _ = jax.jit(jax.vmap(jaxsim.reset, (0, None)))(keys, params)

    def play(states, params):
        def one(state):
            return jaxsim.step(state.key, state, params.initial_plan, params)

        return jax.vmap(one)(states)

    text = jax.jit(play).lower(states, params).compile().as_text()
    # Each of two words of the links, and of two of the interval's key, has a loop of its own; fused
    # into their readers there were a dozen more.
    assert 0 < text.count("shift-left(") <= 4 * 21 + 8
