"""BACE-Pipe's order of jobs, by hand."""

import jax.numpy as jnp
import numpy as np

from agents.many_jobs.bace_pipe import priority


def test_who_computes_much_sends_little_and_is_nearly_done_goes_first():
    compute_s = jnp.array([2.0, 2.0, 2.0, 4.0], jnp.float32)
    busy_s = jnp.array([0.0, 2.0, 0.0, 0.0], jnp.float32)
    steps = jnp.array([100.0, 100.0, 50.0, 100.0], jnp.float32)
    found = priority(compute_s, busy_s, steps)
    # Computation's part of a step (1, 1/2, 1, 1) over what is left to compute (200, 200, 100, 400 s).
    np.testing.assert_allclose(found, [1 / 200, 0.5 / 200, 1 / 100, 1 / 400], rtol=1e-6)
    # A job without an end comes after all that have one.
    endless = priority(compute_s[:1], busy_s[:1], jnp.array([jnp.inf], jnp.float32))
    assert 0 < float(endless[0]) < float(found.min())
