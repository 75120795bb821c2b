"""The timed decision: what making a scheduler works out is worked out once."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.evaluate.decision import prepared


def test_what_is_worked_out_once_is_worked_out_once_and_on_other_inputs_anew():
    calls = []

    def look(x):
        calls.append("made")
        return x

    def note(x):
        calls.append("decided")
        return x

    def make(scale, offset):
        same = jax.ShapeDtypeStruct((), jnp.float32)
        largest = jax.pure_callback(look, same, scale.max())

        def decide(seen, memory):
            value = jax.pure_callback(note, same, seen.sum())
            return {"plan": value * largest + offset["b"]}, memory + 1

        return decide

    for top, told in ((3.0, 1), (5.0, 2)):
        calls.clear()
        inputs = (jnp.asarray([1.0, top]), {"b": jnp.float32(told)})
        args = (np.ones(4, np.float32), np.int32(0))
        decide = prepared(make, inputs, args)
        for seen in (1.0, 2.0, 3.0):
            out, memory = decide(np.full(4, seen, np.float32), np.int32(7))
            assert float(out["plan"]) == 4 * seen * top + told and int(memory) == 8
        assert calls.count("made") == 1 and calls.count("decided") == 3


def test_calls_with_the_same_shapes_share_their_programs():
    traced = []

    def make(scale):
        traced.append(None)
        return lambda seen: seen * scale

    for value in (2.0, 3.0):
        decide = prepared(make, (jnp.float32(value),), (np.float32(1),))
        assert float(decide(np.float32(1))) == value
    assert len(traced) == 2  # once for what is prepared, once for the decision
