"""`vmap_last` does what `jax.vmap` does, whatever stands in the function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.vmap_last import vmap_last

SIZE, WIDTH = 5, 3


def _same(function, in_axes, *args):
    expected = jax.vmap(function, tuple(in_axes))(*args)
    for found in (
        vmap_last(function, in_axes)(*args),
        jax.jit(vmap_last(function, in_axes))(*args),
    ):
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert x.dtype == y.dtype
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


def _numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


FUNCTIONS = {
    "outer sums and masks": lambda x, w: jnp.where(
        x[:, None] > w[None], x[:, None] * w[None], 0.0
    ).max(0),
    "a number beside arrays": lambda x, w: jnp.where(x[0] > 0, x, w) + 2.0 * w.sum(),
    "reductions": lambda x, w: (
        x.argmax(),
        jnp.any(x > w),
        jnp.cumsum(x),
        (x[:, None] - w[None]).min(1),
    ),
    "matrix by vector": lambda x, w: (x[:, None] > w[None]).astype(jnp.float32) @ x,
    "vector by matrix": lambda x, w: x @ (w[:, None] * x[None]),
    "three axes by vector": lambda x, w: jnp.tensordot(
        x[:, None, None] * w[None, :, None] * x[None, None], x, ((1,), (0,))
    ),
    "pieces": lambda x, w: jnp.concatenate([x[1:], w, x[::2]]),
    "stacked": lambda x, w: jnp.stack([x, w, x * w], axis=1).T.reshape(-1),
    "gathered": lambda x, w: w[jnp.clip(x.astype(jnp.int32), 0, WIDTH - 1)] + x[jnp.argmax(w)],
    "a loop": lambda x, w: jax.lax.scan(lambda c, v: (c * 0.5 + v, c), w.sum(), x),
    "until": lambda x, w: jax.lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c + 1.0, x * w),
    "a condition": lambda x, w: jax.lax.cond(x[0] > 0, lambda: x, lambda: w * w),
    "sorted": lambda x, w: jnp.sort(x + w),
    "mapped inside": lambda x, w: jax.vmap(lambda one: one * w)(x).sum(),
    "the argument alone": lambda x, w: (w, 1.0, jnp.arange(3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)])
def test_it_equals_vmap(name, in_axes):
    shapes = [(SIZE, WIDTH) if axis == 0 else (WIDTH,) for axis in in_axes]
    args = [_numbers(*shape, seed=k) for k, shape in enumerate(shapes)]
    _same(FUNCTIONS[name], in_axes, *args)


def test_trees_go_in_and_come_out():
    def function(tree, w):
        return {"sum": tree["x"].sum() + w, "row": (tree["x"] * w, tree["n"] + 1)}

    tree = {"x": _numbers(SIZE, WIDTH), "n": jnp.arange(SIZE)}
    _same(function, (0, None), tree, jnp.float32(2.0))


@given(st.lists(st.sampled_from(["max", "sum", "outer", "half", "turn"]), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_chains_of_operations(names):
    steps = {
        "max": lambda x: jnp.broadcast_to(x.max(0, keepdims=True), x.shape),
        "sum": lambda x: x - x.sum(1)[:, None],
        "outer": lambda x: jnp.maximum(x[:, :1], x[:1, :]),
        "half": lambda x: jnp.where(x > 0, x * 0.5, -x),
        "turn": lambda x: x.T,
    }

    def function(x):
        for name in names:
            x = steps[name](x)
        return x

    _same(function, (0,), _numbers(SIZE, WIDTH, WIDTH))


def test_inside_another_vmap_and_around_values_of_one():
    w = _numbers(4, WIDTH, seed=1)
    x = _numbers(SIZE, WIDTH)

    def outer(batched):
        def one(w):
            return batched(lambda x: jnp.maximum(x[:, None], w[None]).sum(0), (0,))(
                x
            )  # w from outside

        return jax.vmap(one)(w)

    np.testing.assert_allclose(outer(vmap_last), outer(jax.vmap), rtol=1e-6)


def test_two_axes_last():
    x, w = _numbers(SIZE, WIDTH), _numbers(4, WIDTH, seed=1)

    def both(batched):
        inner = batched(lambda x, w: (x[:, None] * w[None]).max(0), (0, None))
        return batched(inner, (None, 0))(x, w)

    np.testing.assert_allclose(both(vmap_last), both(jax.vmap), rtol=1e-6)


@pytest.mark.parametrize("in_axes", [(1,), (None,), (-1,)])
def test_other_axes_are_refused(in_axes):
    with pytest.raises(ValueError, match="vmap_last: in_axes"):
        vmap_last(lambda x: x, in_axes)
