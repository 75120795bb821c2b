"""Settings for all tests: silent broadcasting and silent casts are errors, and so is an argument or a
result that is not what a function's annotations say.

Most of a cold run is compilation, of programs that run for milliseconds: the compiler optimises less,
and emits code the older way, which takes it a third of the time. It emits it in one piece: to divide
it for more cores than a test process has takes longer.
"""

import gc
import os
import signal

import jax
import pytest
from helpers import type_checks, wan

from experiments.common.compiler_options import add_options

# Here and not among pytest's options: processes of pytest-xdist do not read those.
type_checks.install()

# A shell starts a job in the background with SIGINT ignored; tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)
# In the environment, so that processes which tests start compute the same bits.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# A test that changes how worlds are built must not leave one to the next.
os.environ["HIPPO_KEEP_WORLDS"] = "0"
add_options("--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1")

# Tracing makes many small objects that live on: looking through them at every 700th is a fifth of it.
gc.set_threshold(100_000)


@pytest.fixture(autouse=True, scope="module")
def _compiled_programs_end_with_their_module():
    """A process may map 65,530 pieces of memory, and every compiled program takes some. Programs also
    stay the same to the letter whatever modules ran before, and so are found in the compile cache."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="module")
def scoring_is_optimised():
    """What scores whole families of plans computes for a minute with few optimisations, and for
    seconds with all of them: worth what the compiler needs."""
    from experiments.evaluate import evaluator
    from jaxsim.planning import builder

    def optimised(program):
        def run(*args):
            jax.config.update("jax_disable_most_optimizations", False)
            try:
                return program(*args)
            finally:
                jax.config.update("jax_disable_most_optimizations", True)

        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(builder, "_score", optimised(builder._score))
        patch.setattr(evaluator, "plan_rates", optimised(evaluator.plan_rates))
        yield


@pytest.fixture(autouse=True)
def _emulated_networks_one_at_a_time(request):
    if request.node.get_closest_marker("networks") is None:
        yield
        return
    with wan.alone():
        yield
