"""`jax.vmap` whose axis stands last inside the function.

`jax.vmap` puts its axis first. For a function of a few domains that leaves [N, K, K] with a K of 4: a
CPU's vector units find 4 numbers side by side. With the axis last they find N. Eight domains fill a
vector by themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend import core

# Primitives that mean the same whatever axes follow: of these the operands are brought to one shape,
ELEMENTWISE = """
    abs add and ceil clamp convert_element_type copy div eq exp expm1 floor ge gt integer_pow
    is_finite le log log1p logistic lt max min mul ne neg not or pow rem round rsqrt select_n
    sign sqrt square stop_gradient sub tanh xor
"""
# and of these, which have one operand, the parameters name leading axes.
OF_LEADING_AXES = """
    argmax argmin cummax cummin cumsum reduce_and reduce_max reduce_min reduce_or reduce_prod
    reduce_sum rev squeeze
"""
# Functions of a jaxpr's own: its body is read instead.
CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
}
MATRIX_VECTOR = (((1,), (0,)), ((), ()))

Value = tuple[Any, bool]  # an array, and whether the axis is its last


def vmap_last(function: Callable[..., Any], in_axes: Sequence[int | None]) -> Callable[..., Any]:
    """`jax.vmap(function, in_axes)`, rounding apart, for axes 0 and None; results lead with the axis.

    Primitives without a rule of their own (loops, gathers, conditionals) are batched by `jax.vmap`, and
    nothing is gained there. A function with a derivative of its own loses it: JAX differentiates the
    body. Raises ValueError for other axes.
    """
    if any(axis not in (0, None) for axis in in_axes) or all(axis is None for axis in in_axes):
        raise ValueError(f"vmap_last: in_axes: 0 or None, and one that is 0, got {tuple(in_axes)}")

    def batched(*args: Any) -> Any:
        mapped = [axis == 0 for axis in in_axes]
        pairs = list(zip(args, mapped, strict=True))
        one = [jax.tree.map(lambda x: x[0], a) if here else a for a, here in pairs]
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*one)
        moved = [_trailing(a) if here else a for a, here in pairs]
        values = [
            (x, here) for a, here in zip(moved, mapped, strict=True) for x in jax.tree.leaves(a)
        ]
        size = next(x.shape[-1] for x, here in values if here)
        out = _interpret(closed, values, size)
        arrays = [jnp.moveaxis(_full(value, size), -1, 0) for value in out]
        return jax.tree.unflatten(jax.tree.structure(shape), arrays)

    return batched


def _trailing(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.moveaxis(jnp.asarray(x), 0, -1), tree)


def _full(value: Value, size: int) -> Array:
    """The array with the axis, whether or not it had it."""
    array, there = value
    return array if there else jnp.broadcast_to(array[..., None], (*array.shape, size))


def _interpret(closed: core.ClosedJaxpr, args: list[Value], size: int) -> list[Value]:
    """The results of a jaxpr, equation by equation."""
    jaxpr = closed.jaxpr
    known: dict[Any, Value] = {
        v: (c, False) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)
    }
    known |= dict(zip(jaxpr.invars, args, strict=True))

    def read(v: Any) -> Value:
        if isinstance(v, core.Literal):
            return jnp.asarray(v.val, v.aval.dtype), False  # pyright: ignore[reportAttributeAccessIssue]
        return known[v]

    for equation in jaxpr.eqns:
        values = [read(v) for v in equation.invars]
        known |= dict(zip(equation.outvars, _apply(equation, values, size), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _apply(equation: Any, values: list[Value], size: int) -> list[Value]:
    """The results of one equation."""
    name = equation.primitive.name
    if name in CALLS:
        return _interpret(equation.params[CALLS[name]], values, size)
    there = any(here for _, here in values)
    if not there:
        out = _bind(equation, *(x for x, _ in values))
    elif name in ELEMENTWISE.split():
        # Numbers and axes of one stand beside whole arrays as they are.
        shape = (*equation.outvars[0].aval.shape, size)
        out = _bind(equation, *(jnp.broadcast_to(_full(v, size), shape) for v in values))
    elif name in OF_LEADING_AXES.split():
        out = _bind(equation, values[0][0])
    elif name in RULES and (result := RULES[name](equation.params, values, size)) is not None:
        out = [result]
    else:
        axes = [x.ndim - 1 if here else None for x, here in values]
        bind = jax.vmap(functools.partial(_bind, equation), in_axes=axes, out_axes=-1)
        out = bind(*(x for x, _ in values))
    return [(x, there) for x in out]


def _bind(equation: Any, *arrays: Array) -> list[Array]:
    out = equation.primitive.bind(*arrays, **equation.params)
    return list(out) if equation.primitive.multiple_results else [out]


def _broadcast(params: dict, values: list[Value], size: int) -> Array:
    shape, dimensions = params["shape"], params["broadcast_dimensions"]
    return jax.lax.broadcast_in_dim(values[0][0], (*shape, size), (*dimensions, len(shape)))


def _reshape(params: dict, values: list[Value], size: int) -> Array | None:
    if params.get("dimensions") is not None:
        return None
    return values[0][0].reshape(*params["new_sizes"], size)


def _transpose(params: dict, values: list[Value], size: int) -> Array:
    del size
    order = params["permutation"]
    return jax.lax.transpose(values[0][0], (*order, len(order)))


def _slice(params: dict, values: list[Value], size: int) -> Array:
    strides = params["strides"]
    begin, end = (*params["start_indices"], 0), (*params["limit_indices"], size)
    return jax.lax.slice(values[0][0], begin, end, None if strides is None else (*strides, 1))


def _concatenate(params: dict, values: list[Value], size: int) -> Array:
    return jnp.concatenate([_full(value, size) for value in values], params["dimension"])


def _stack(params: dict, values: list[Value], size: int) -> Array:
    return jnp.stack([_full(value, size) for value in values], params["axis"])


def _product(params: dict, values: list[Value], size: int) -> Array | None:
    """A small matrix by a vector, as a sum of columns; other products are left to `jax.vmap`."""
    if params["dimension_numbers"] != MATRIX_VECTOR:
        return None
    matrix, vector = (_full(value, size) for value in values)
    if (matrix.ndim, vector.ndim) != (3, 2) or vector.shape[0] == 0:
        return None
    terms = [matrix[:, k] * vector[k][None] for k in range(vector.shape[0])]
    return functools.reduce(jnp.add, terms)


RULES: dict[str, Callable[[dict, list[Value], int], Array | None]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
    "stack": _stack,
    "dot_general": _product,
}
