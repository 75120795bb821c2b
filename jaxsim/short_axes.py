"""`jax.jit` for programs whose reductions are over short axes.

XLA's CPU backend hands reductions, and what is computed beside them, to YNNPACK, whose calls pay where
axes are long. A step's reductions are over a handful of domains or stages, of thousands of plans: there
the calls are most of the time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Matrix products alone are left to it.
OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}


class ShortAxes:
    """A function, compiled without that library `where` its arguments say so, always if None.

    It is called on its own, never inside another compiled function, which JAX refuses.
    """

    def __init__(self, function: Callable[..., Any], where: Callable[..., bool] | None = None):
        functools.update_wrapper(self, function)
        self._function, self._where = function, where
        self._plain: Any = jax.jit(function)

    def __call__(self, *args: Any) -> Any:
        short = self._where is None or self._where(*args)
        return (self._own if short else self._plain)(*args)

    @functools.cached_property
    def _own(self) -> Any:
        options = options_here()
        return jax.jit(self._function, compiler_options=options) if options else self._plain

    def _cache_size(self) -> int:
        """Programs compiled so far, as compiled functions of JAX say it."""
        own = self.__dict__.get("_own", self._plain)
        return sum(x._cache_size() for x in {id(x): x for x in (own, self._plain)}.values())


@functools.cache
def options_here() -> dict[str, str]:
    """OPTIONS where this version of XLA knows them and computes on a CPU; {} elsewhere."""
    if jax.default_backend() != "cpu":
        return {}
    try:
        jax.jit(lambda x: x, compiler_options=OPTIONS)(jnp.float32(0.0))
    except jax.errors.JaxRuntimeError:
        return {}
    return dict(OPTIONS)
