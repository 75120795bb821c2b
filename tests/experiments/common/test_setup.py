"""Compiled programs make room for others; what a run rests on is said and recorded."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments.common import setup
from experiments.common.setup import FUSION, make_room_for_programs, note_efficiency
from jaxsim.cluster.cluster import load_cluster


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux counts mappings")
def test_programs_are_dropped_only_where_they_take_too_much():
    double = jax.jit(lambda x: x + x)
    double(jnp.ones(3))
    make_room_for_programs(most=1.0)
    assert double._cache_size() == 1
    settled = []
    make_room_for_programs(lambda: settled.append(double._cache_size()), most=0.0)
    assert double._cache_size() == 0 and settled == [1]
    assert float(double(jnp.ones(3))[0]) == 2.0


@pytest.mark.parametrize(("accepted", "expected"), [(True, {FUSION: True}), (False, {})])
def test_a_training_epoch_is_compiled_to_run_fast_beside_programs_compiled_soon(
    accepted, expected, monkeypatch
):
    monkeypatch.setenv("XLA_FLAGS", "")

    def add(*options):
        monkeypatch.setenv("XLA_FLAGS", " ".join(options) if accepted else "")

    monkeypatch.setattr(setup, "add_options", add)
    monkeypatch.setattr(setup, "use_compile_cache", lambda: None)
    monkeypatch.setattr(setup.gc, "set_threshold", lambda _: None)
    options = setup.compile_for_training()
    assert options == expected
    double = jax.jit(lambda x: x + x, compiler_options=options)  # XLA knows them
    assert float(double(jnp.float32(2.0))) == 4.0


@pytest.mark.parametrize("gpu", ["V100-32GB", "A100-40GB", "GH200-96GB"])
def test_a_gpu_without_a_fit_of_its_own_is_noted_once(capsys, gpu):
    spec = dataclasses.replace(load_cluster(), name=f"of {gpu}", gpu=gpu)
    records = [note_efficiency(spec), note_efficiency(spec)]
    out, err = capsys.readouterr()
    fits = {"V100-32GB": "any", "A100-40GB": "A100-80GB", "GH200-96GB": "H100-80GB"}
    used = f"{fits[gpu]}/megatron-flash"
    assert records[0] == records[1] and (records[0]["gpu"], records[0]["used"]) == (gpu, used)
    assert (out, err) == ("", f"note: of {gpu}: {records[0]['why']}\n")
    assert f"those of {used} are used" in err
