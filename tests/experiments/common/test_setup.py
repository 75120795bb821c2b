"""Compiled programs make room for others before the process runs out of mappings."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments.common.setup import make_room_for_programs


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux counts mappings")
def test_programs_are_dropped_only_where_they_take_too_much():
    double = jax.jit(lambda x: x + x)
    double(jnp.ones(3))
    make_room_for_programs(most=1.0)
    assert double._cache_size() == 1
    make_room_for_programs(most=0.0)
    assert double._cache_size() == 0
    assert float(double(jnp.ones(3))[0]) == 2.0
