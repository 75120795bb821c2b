"""One of many, and many as one: of every leaf, in the leaf's own type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxsim.trees import distinct, stack, stack_on_host, take, take_at_once

MANY = {"a": np.arange(6, dtype=np.int32).reshape(3, 2), "b": (np.array([True, False, True]),)}


def test_taking_what_was_stacked_gives_it_back():
    each = [take(MANY, i) for i in range(3)]
    again = stack(each)
    jax.tree.map(np.testing.assert_array_equal, again, MANY)
    assert again["a"].dtype == jnp.int32 and again["b"][0].dtype == bool
    assert isinstance(again["a"], jax.Array) and isinstance(each[0]["a"], np.ndarray)


@pytest.mark.parametrize("index", [1, -1, np.array([2, 0]), np.array([True, False, True]), (1,)])
def test_an_index_is_what_the_leaves_take(index):
    taken = take(MANY, index)
    np.testing.assert_array_equal(taken["a"], MANY["a"][index])
    np.testing.assert_array_equal(taken["b"][0], MANY["b"][0][index])


def test_the_index_may_be_traced():
    found = jax.jit(lambda i: take(jax.tree.map(jnp.asarray, MANY), i)["a"])(2)
    np.testing.assert_array_equal(found, [4, 5])


@pytest.mark.parametrize("index", [1, -1, np.array([2, 0, 0])])
def test_taking_at_once_is_taking_and_leaves_the_host_what_it_has(index):
    many = {**MANY, "on device": jax.tree.map(jnp.asarray, MANY)}
    taken = take_at_once(many, index)
    jax.tree.map(np.testing.assert_array_equal, taken, take(many, index))
    jax.tree.map(lambda x: isinstance(x, jax.Array) or pytest.fail(), taken["on device"])
    assert isinstance(taken["a"], (np.ndarray, np.generic))


def test_trees_that_differ_are_refused():
    with pytest.raises(ValueError, match="shape"):
        stack([{"a": np.zeros(2)}, {"a": np.zeros(3)}])
    with pytest.raises(ValueError):
        stack([{"a": np.zeros(2)}, {"b": np.zeros(2)}])


def test_stacking_on_the_host_is_stacking():
    same = jnp.arange(3, dtype=jnp.int32)
    each = [{"a": jnp.float32(i), "b": np.array([i, 2 * i], np.int32), "c": same} for i in range(4)]
    found, expected = stack_on_host(each), stack(each)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)
        assert isinstance(x, jax.Array) and (x.dtype, x.shape) == (y.dtype, y.shape)
    for strange in ({"a": jnp.zeros((2,)), "b": each[0]["b"], "c": same}, {"a": jnp.float32(0)}):
        with pytest.raises(ValueError):
            stack_on_host([each[0], strange])


def test_what_is_distinct_is_enough_to_have_it_all():
    tree = {"a": np.array([[1, 1, 2, 1], [3, 3, 3, 4]]), "b": np.zeros((2, 4, 3), np.float32)}
    first, kind = distinct(tree)
    assert first.tolist() == [0, 2, 3] and kind.tolist() == [0, 0, 1, 2]
    jax.tree.map(lambda x: np.testing.assert_array_equal(x[:, first][:, kind], x), tree)
    tree["b"][1, 1, 2] = 1.0  # one number of one scenario
    assert distinct(tree)[1].tolist() == [0, 1, 2, 3]
    assert [x.tolist() for x in distinct({"a": jnp.ones((2, 5))})] == [[0], [0] * 5]
