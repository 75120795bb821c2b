"""Results that are computed once, however many read them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
from jax.experimental.xla_metadata import set_xla_metadata

P = ParamSpec("P")
R = TypeVar("R")


def materialised(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, whose results XLA writes to memory before anything reads them.

    XLA fuses a producer into each of its readers and so computes it again for each; one step of the
    environment has many readers of the same random numbers. Its CPU compiler drops
    `jax.lax.optimization_barrier` before it fuses, but it keeps a call that is marked so.
    """
    compiled = jax.jit(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        marked: Any = set_xla_metadata(compiled(*args, **kwargs), inlineable="false")
        return marked

    return call
