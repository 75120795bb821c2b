"""Worlds on disk: built once, built anew when anything they rest on is other, never in the way."""

import os
import pickle
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.toy_world import JOB, calibration, cluster_spec, make_plan

from experiments.common import kept_worlds, load_world
from experiments.common.kept_worlds import MOST, SWITCH, kept
from jaxsim.plan import Problem
from jaxsim.planning import PlanTable, TableInfo
from jaxsim.scenario import World
from jaxsim.trees import stack
from jaxsim.workload import build_workload

SMALL = ("four-aws-regions", "gpt2-medium", 64, 1024, 4)


@pytest.fixture(autouse=True)
def _switched_on(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)


class Counted:
    """A function that counts its calls."""

    def __init__(self, value=1):
        self.calls, self.value = 0, value

    def __call__(self):
        self.calls += 1
        return self.value


def test_the_same_question_is_built_once(tmp_path):
    build = Counted({"a": np.arange(3)})
    first, second = (kept(b"asked", tmp_path, build) for _ in range(2))
    assert build.calls == 1
    np.testing.assert_array_equal(first["a"], second["a"])
    assert kept(b"asked otherwise", tmp_path, Counted(2)) == 2


@pytest.mark.parametrize("changed", ["source", "flags", "optimisations"])
def test_what_builds_it_is_part_of_the_question(tmp_path, monkeypatch, changed):
    build = Counted()
    kept(b"asked", tmp_path, build)
    if changed == "source":
        monkeypatch.setattr(kept_worlds, "_digest", lambda: "another release")
    elif changed == "flags":
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
    else:
        now = jax.config.read("jax_disable_most_optimizations")
        monkeypatch.setattr(type(jax.config), "read", lambda self, name: not now)
    kept(b"asked", tmp_path, build)
    assert build.calls == 2


@pytest.mark.parametrize("left", [b"", b"no pickle", pickle.dumps({"not": "a list"})])
def test_a_broken_file_is_built_anew_and_mended(tmp_path, left):
    build = Counted(7)
    kept(b"asked", tmp_path, build)
    (path,) = tmp_path.glob("*.pickle")
    path.write_bytes(left)
    assert [kept(b"asked", tmp_path, build) for _ in range(2)] == [7, 7]
    assert build.calls == 2


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    build = Counted(7)
    assert [kept(b"asked", tmp_path / "file" / "worlds", build) for _ in range(2)] == [7, 7]
    assert build.calls == 2


def test_what_cannot_be_built_is_said_and_keeps_nothing(tmp_path):
    def fails():
        raise ValueError("no plan fits")

    with pytest.raises(ValueError, match="no plan fits"):
        kept(b"asked", tmp_path, fails)
    assert kept(b"asked", tmp_path, Counted(3)) == 3


def test_those_that_were_not_used_for_longest_go(tmp_path):
    for number in range(MOST + 2):
        kept(b"%d" % number, tmp_path, Counted(number))
        for path in tmp_path.glob("*.pickle"):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 10))
        kept(b"0", tmp_path, Counted("anew"))  # is used all the time
    assert len(list(tmp_path.glob("*.pickle"))) == MOST
    assert kept(b"0", tmp_path, Counted("anew")) == 0
    assert kept(b"1", tmp_path, Counted("anew")) == "anew"
    assert not list(tmp_path.glob(f"*.{os.getpid()}"))


def test_two_who_ask_at_once_build_once(tmp_path):
    started, go = threading.Event(), threading.Event()
    build = Counted(5)

    def slow():
        started.set()
        go.wait(10)
        return build()

    found = []
    first = threading.Thread(target=lambda: found.append(kept(b"asked", tmp_path, slow)))
    first.start()
    assert started.wait(10)
    second = threading.Thread(target=lambda: found.append(kept(b"asked", tmp_path, build)))
    second.start()
    second.join(0.2)
    assert second.is_alive(), "it waits for the one who builds"
    go.set()
    first.join(10), second.join(10)
    assert found == [5, 5] and build.calls == 1


def test_the_switch_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    build = Counted()
    kept(b"asked", tmp_path, build), kept(b"asked", tmp_path, build)
    assert build.calls == 2 and not list(tmp_path.iterdir())


def toy_world():
    """A world of one plan, and what its table claims."""
    spec, plans = cluster_spec(2), stack([make_plan([(0,)], [(8,)], [8], 2)])
    table = PlanTable(
        plans=plans,
        mask=jnp.ones(1, bool),
        base_rate=jnp.ones(1, jnp.float32),
        single_domain=jnp.array([True]),
        even_split=jnp.array([False]),
        candidates_of={"sailor": jnp.ones((1, 12), bool)},
    )
    problem = Problem(build_workload([JOB]), spec.to_arrays(), calibration())
    return World(problem, table, plans), TableInfo("toy plans", 1, 1, 1, True, 1)


def test_a_world_from_disk_is_the_world_that_was_built(tmp_path, monkeypatch):
    from experiments.common import setup

    monkeypatch.setattr(setup, "compile_cache", lambda: tmp_path)
    monkeypatch.setattr(setup, "_build", lambda arguments: toy_world())
    setup._built.cache_clear()
    _, built, claimed = load_world(*SMALL, layout_limit=50)
    setup._built.cache_clear()
    monkeypatch.setattr(setup, "_build", None)  # whoever builds now fails
    _, found, info = load_world(*SMALL, layout_limit=50)
    setup._built.cache_clear()
    assert info == claimed and jax.tree.structure(found) == jax.tree.structure(built)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(built), strict=True):
        assert one.dtype == other.dtype and one.weak_type == other.weak_type
        np.testing.assert_array_equal(one, other)


def test_a_file_of_efficiency_counts_by_what_it_says(tmp_path, monkeypatch):
    from experiments.common import setup

    asked = []
    monkeypatch.setattr(setup, "_built", lambda *args: (asked.append(args), (None, None))[1])
    for worth in ("0.5", "0.6"):
        monkeypatch.setattr(setup, "read_efficiency", lambda name, worth=worth: float(worth))
        load_world(*SMALL, efficiency="published")
    assert asked[0][0] == asked[1][0] and asked[0][1] != asked[1][1]


def test_a_world_of_many_jobs_is_kept_as_well(tmp_path, monkeypatch):
    from experiments.common import load_jobs_world, setup
    from jaxsim.cluster import load_cluster

    monkeypatch.setattr(setup, "compile_cache", lambda: tmp_path)
    built = []
    build = lambda *args, **plans: (built.append((args, plans)), "a world")[1]  # noqa: E731
    monkeypatch.setattr(setup, "build_jobs_world", build)
    asked = (load_cluster(), (), 18, 20)
    worlds = [load_jobs_world(*asked, allow=allow) for allow in ("any", "synchronous", "any")]
    assert worlds == ["a world"] * 3
    assert [plans["allow"] for _, plans in built] == ["any", "synchronous"]
