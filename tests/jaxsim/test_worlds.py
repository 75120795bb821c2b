"""The front door: named worlds that reset, step and reward."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest
import yaml

import jaxsim
from experiments.evaluate.suites import SHIPPED
from jaxsim.files import InputError
from jaxsim.plan import describe
from jaxsim.worlds import NamedWorld, named_world

pytestmark = [
    pytest.mark.nightly,  # as a whole: its tests share what takes long to compile
    pytest.mark.usefixtures("scoring_is_optimised"),
]


@pytest.fixture(scope="module")
def params():
    return jaxsim.make("steady", seed=3)


def test_the_plan_in_force_earns_what_the_best_static_plan_earns(params):
    """On steady links the reference plan is in force: reward 0, the reference progress."""
    state, first = jaxsim.reset(jax.random.key(3), params)
    _, timestep = jaxsim.step(jax.random.key(1), state, params.initial_plan, params)
    assert float(first.reward) == 0.0
    np.testing.assert_allclose(timestep.record.progress, params.progress_ref, rtol=1e-4)
    np.testing.assert_allclose(timestep.reward, 0.0, atol=1e-4)
    assert float(params.progress_ref[0]) > 0
    assert describe(jax.tree.map(lambda x: np.asarray(x[0]), params.initial_plan), tuple("abcd"))


def test_a_seed_is_a_scenario(params):
    again, other = jaxsim.make("steady", seed=3), jaxsim.make("steady", seed=4)
    bandwidth = [np.asarray(p.problem.cluster.bandwidth_gb_per_s) for p in (params, again, other)]
    np.testing.assert_array_equal(bandwidth[0], bandwidth[1])
    assert not np.allclose(bandwidth[0], bandwidth[2])


def test_scenes_of_the_suites_are_the_worlds_of_the_same_name():
    body = yaml.safe_load(SHIPPED.read_text())
    defaults, shared = body["defaults"], set(jaxsim.list_worlds()) & set(body["scenes"])
    assert {"steady", "jitter", "drift", "load", "heavy-tail", "outage"} <= shared
    for name in shared:
        scene, world = body["scenes"][name], named_world(name)
        wanted = {**defaults["scenario"], **scene.get("scenario", {}), "jitter": scene["jitter"]}
        given = dataclasses.asdict(world.scenario)
        assert {key: given[key] for key in wanted} == wanted, name
        job = {**defaults, **scene}
        assert (world.model, world.global_batch) == (job["model"], job["global_batch"]), name


def test_unknown_names_are_refused_with_the_nearest_known():
    with pytest.raises(InputError, match="Did you mean drift"):
        jaxsim.make("drif")
    with pytest.raises(AttributeError):
        _ = jaxsim.nobody


def test_embedded_clusters_load_by_name():
    for name in jaxsim.list_clusters():
        assert jaxsim.load_cluster(name).name == name
    assert {NamedWorld().cluster} <= set(jaxsim.list_clusters())


def test_importing_the_package_imports_no_jax():
    code = "import sys, jaxsim; assert 'jax' not in sys.modules; assert jaxsim.__all__"
    subprocess.run([sys.executable, "-c", code], check=True)
