"""One decision as it is timed: what a scheduler works out once, when it is made, is not part of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import Array

Make = Callable[..., Callable[..., Any]]  # (*inputs) -> decide, which takes (*args)


def prepared(make: Make, inputs: tuple, args: tuple) -> Callable[..., Any]:
    """`make(*inputs)`, compiled for arguments like `args`: all that `make` computes is computed here,
    and stays on the device with the inputs that the decision needs.

    Calls with one `make` and the same shapes share their compiled programs: `make` should be one
    object, not a new one each time.
    """
    constants = _constants(make, inputs, args)
    return lambda *args: _decide(make, inputs, constants, args)


@functools.partial(jax.jit, static_argnames="make")
def _constants(make: Make, inputs: tuple, args: tuple) -> list[Array]:
    """The arrays that the decision closes over."""
    return jax.make_jaxpr(make(*inputs))(*args).consts


@functools.partial(jax.jit, static_argnames="make")
def _decide(make: Make, inputs: tuple, constants: list[Array], args: tuple) -> Any:
    # Traced as in `_constants`, so that the same arrays come in the same order; they are taken from
    # there, and what would compute them here is dead code, which is not compiled.
    traced, out = jax.make_jaxpr(make(*inputs), return_shape=True)(*args)
    flat = jax.core.eval_jaxpr(traced.jaxpr, constants, *jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(out), flat)
