"""Settings for all tests: silent broadcasting and silent casts are errors.

Most of a cold run is compilation, of programs that run for milliseconds: the compiler optimises less.
"""

import gc
import os
import signal

import jax
import pytest

# A shell starts a job in the background with SIGINT ignored; tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # processes that tests start: the same bits


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_end_with_their_module():
    """A process may map 65,530 pieces of memory, and every compiled program takes some."""
    yield
    jax.clear_caches()
    gc.collect()
