"""Progress bars while programs are compiled."""

import io

import jax
import jax.numpy as jnp

from experiments.common.progress import progress


def test_the_innermost_bar_says_when_it_compiles():
    outer, inner = io.StringIO(), io.StringIO()
    bar = {"total": 2, "mininterval": 0}
    with progress(desc="suite", file=outer, **bar):
        with progress(desc="scene", file=inner, **bar) as scene:
            function = jax.jit(lambda x: jnp.sin(x) * 3 + x)
            function(jnp.ones(7)).block_until_ready()
            told = inner.getvalue()
            assert "scene, compiling" in told and told.rsplit("\r", 1)[-1].startswith("scene:")
            inner.truncate(0)
            function(jnp.zeros(7)).block_until_ready()  # is compiled
            scene.update()
            assert "compiling" not in inner.getvalue()
        assert "compiling" not in outer.getvalue()
        jax.jit(lambda x: jnp.cos(x) * 5 + x)(jnp.ones(9)).block_until_ready()
        assert "suite, compiling" in outer.getvalue()
