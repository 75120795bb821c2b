"""Domains with GPUs of different types: each is as fast, and holds as much, as its own."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.random_plans import K, random_plans
from helpers.toy_world import GPU, JOB, base_view, calibration, cluster_spec, cost_of, make_plan

from jaxsim.cluster import Intra, Site
from jaxsim.cluster.sites import site_calibration
from jaxsim.plan import Problem
from jaxsim.step_time import job_step_cost
from jaxsim.workload.workload import build_workload

WORK = build_workload([JOB]).job(0)
FAST = {
    "peak_tflops": 300.0,
    "memory_gb": 60.0,
    "memory_gb_per_s": 3000.0,
    "nvlink_gb_per_s": 200.0,
}
KINDS, NETWORKS = (GPU, FAST), (Intra(80.0, 0.1), Intra(320.0, 0.02))
# A step that no wait for other nodes lengthens, so that domains do not feel each other in it.
OF_KIND = (
    calibration(straggler=0.0),
    calibration(straggler=0.0, gemm_efficiency=0.7, micro_batch_s=5e-4, step_fixed_s=2e-3),
)


def world(*kinds, gpus=4, **changes):
    """(cluster, calibration) of domains of KINDS."""
    sites = tuple(Site(KINDS[k], NETWORKS[k]) for k in kinds)
    spec = dataclasses.replace(cluster_spec(len(kinds), gpus=gpus), sites=sites, **changes)
    types = [OF_KIND[KINDS.index(gpu)] for gpu in spec.gpu_types]
    return spec.to_arrays(), site_calibration(types, spec.type_of, OF_KIND[0])


def cost(plan, cluster, efficiency):
    return cost_of(plan, WORK, cluster, efficiency, base_view(cluster))


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("fields", [{"dp": 4}, {"tp": 2, "dp": 2}, {"pp": 4}, {"cp": 2, "dp": 2}])
def test_a_domain_alone_is_what_it_is_in_a_cluster_of_its_own_kind(where, fields):
    plan = make_plan([(where,)], [(8,)], [8], micro_batch=1, **fields)
    # Two GPUs in a node: rings of four leave it, and run over the domain's own network.
    mixed = cost(plan, *world(0, 1, gpus_per_node=(2, 2)))
    alike = cost(plan, *world(where, where, gpus_per_node=(2, 2)))
    other = cost(plan, *world(1 - where, 1 - where, gpus_per_node=(2, 2)))
    for name, value in vars(alike).items():
        np.testing.assert_allclose(getattr(mixed, name), value, rtol=1e-6, err_msg=name)
    assert bool(mixed.runs) and abs(float(other.total_s) / float(mixed.total_s) - 1.0) > 0.2


def test_a_step_waits_for_the_slower_kind_unless_that_has_less_to_do():
    cluster, efficiency = world(0, 1)
    alone = [cost(make_plan([(k,)], [(8,)], [16]), cluster, efficiency) for k in (0, 1)]
    both = cost(make_plan([(0,), (1,)], [(8,), (8,)], [16, 16]), cluster, efficiency)
    assert float(alone[0].compute_s) > 1.5 * float(alone[1].compute_s)
    assert float(both.compute_s) == pytest.approx(float(alone[0].compute_s), rel=1e-6)
    # The weights are updated everywhere, and the longest work of a host counts.
    each = [float(one.optimizer_s) for one in alone]
    assert float(both.optimizer_s) == pytest.approx(max(each), rel=1e-6)
    shared = cost(make_plan([(0,), (1,)], [(8,), (8,)], [9, 23]), cluster, efficiency)
    assert float(shared.total_s) < 0.8 * float(both.total_s)


def test_a_pipeline_is_fastest_where_the_faster_kind_has_more_layers():
    cluster, efficiency = world(0, 1, gpus=1)
    layers = range(1, 8)
    plans = [make_plan([(0, 1)], [(n, 8 - n)], [32], micro_batch=1) for n in layers]
    total_s = [float(cost(plan, cluster, efficiency).total_s) for plan in plans]
    assert layers[int(np.argmin(total_s))] < 4
    # The other way round the fast one is first, and the mirror image holds.
    cluster, efficiency = world(1, 0, gpus=1)
    total_s = [float(cost(plan, cluster, efficiency).total_s) for plan in plans]
    assert layers[int(np.argmin(total_s))] > 4


def test_memory_is_that_of_the_domains_own_gpus():
    plan = make_plan([(0,)], [(8,)], [32], micro_batch=4)
    need_gb = float(cost(plan, *world(0, 0)).memory_gb[0])
    small = Site(GPU | {"memory_gb": 0.9 * need_gb})
    large = Site(GPU | {"memory_gb": 1.1 * need_gb})
    for sites, runs in (((small, large), False), ((large, small), True)):
        cluster = dataclasses.replace(cluster_spec(2), sites=sites).to_arrays()
        assert bool(cost(plan, cluster, calibration(straggler=0.0)).runs) is runs


def test_padding_changes_nothing():
    spec = dataclasses.replace(cluster_spec(2), sites=(Site(GPU), Site(FAST)))
    one = make_plan([(0, 1)], [(3, 5)], [32])
    wide = make_plan([(0, 1)], [(3, 5)], [32], 4)
    first, second = (spec.to_arrays(size) for size in (None, 4))
    a, b = cost(one, first, calibration()), cost(wide, second, calibration())
    assert float(a.total_s) == float(b.total_s)
    np.testing.assert_array_equal(a.memory_gb, b.memory_gb[:2])


def test_faster_gpus_in_a_domain_never_slow_a_step_down():
    """Random plans over eight domains; one of them gets GPUs of twice the figures. Its backward pass is
    shorter then and hides less of the sync: a matter of 0.2 %."""
    rng = np.random.default_rng(0)
    plans = random_plans(rng, 300)
    spec = cluster_spec(K, gpus=64)
    which = rng.integers(0, K, 300)

    @jax.jit
    @jax.vmap
    def total_s(plan, scale):
        cluster = spec.to_arrays()
        gpu = jax.tree.map(lambda x: x * scale, cluster.gpu)
        cluster = cluster.replace(gpu=gpu.replace(memory_gb=jnp.full((K,), 1e6)))
        problem = Problem(WORK, cluster, calibration(straggler=0.0))
        return job_step_cost(plan, problem, base_view(cluster)).total_s

    scales = np.where(np.arange(K) == which[:, None], 2.0, 1.0).astype(np.float32)
    before = total_s(plans, jnp.ones((300, K), jnp.float32))
    after = total_s(plans, jnp.asarray(scales))
    assert np.all(np.isfinite(before)) and np.all(after <= before * 1.002)
    assert np.mean(np.asarray(after) < np.asarray(before) * (1 - 1e-4)) > 0.2
