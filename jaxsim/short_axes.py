"""`jax.jit` for programs whose reductions are over short axes.

XLA's CPU backend hands reductions, and what is computed beside them, to YNNPACK, whose calls pay where
axes are long. A step's reductions are over a handful of domains or stages, of thousands of plans: there
the calls are most of the time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

# Matrix products alone are left to it.
OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}


class ShortAxes:
    """A function, compiled without that library `where` its arguments say so, always if None.

    It is called on its own, never inside another compiled function, which JAX refuses. Threads may
    call it: each structure of arguments has a compiled function of its own. Where threads trace two
    structures of one at the same time, JAX may give the one the structure of the other's results.
    """

    def __init__(self, function: Callable[..., Any], where: Callable[..., bool] | None = None):
        functools.update_wrapper(self, function)
        self._function, self._where = function, where
        self._programs: dict[tuple[Any, bool], Any] = {}
        self._making = threading.Lock()

    def __call__(self, *args: Any) -> Any:
        short = self._where is None or self._where(*args)
        key = jax.tree.structure(args), short
        with self._making:
            program = self._programs.get(key) or self._programs.setdefault(key, self._made(short))
        return program(*args)

    def _made(self, short: bool) -> Any:
        @functools.wraps(self._function)
        def own(*args: Any) -> Any:
            return self._function(*args)

        options = options_here() if short else {}
        return jax.jit(own, compiler_options=options) if options else jax.jit(own)

    def _cache_size(self) -> int:
        """Programs compiled so far, as compiled functions of JAX say it."""
        return sum(program._cache_size() for program in self._programs.values())


threadsafe = functools.partial(ShortAxes, where=lambda *_: False)  # `jax.jit` for several threads


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
