"""How layers are cut over the domains of a pipeline."""

import dataclasses
import itertools
import math

import jax.numpy as jnp
import pytest
from helpers.toy_world import GPU, JOB, base_view, calibration, cluster_spec, cost_of, make_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.cluster import Site
from jaxsim.plan import Problem
from jaxsim.plan.layouts import split_layers
from jaxsim.planning import layer_pace
from jaxsim.planning.cuts import cut_layers, even_layers, pace_of
from jaxsim.workload.workload import build_workload

PACES = st.sampled_from([1.0, 1.0, 1.7, 2.0, 3.1])


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(1, 5), PACES), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
)
def test_layers_are_cut_min_max_optimally(n_layers, domains, head):
    counts, paces = [n for n, _ in domains], [pace for _, pace in domains]
    extra = [0.0] * (len(counts) - 1) + [head]
    if len(counts) > n_layers:
        with pytest.raises(ValueError, match="domains for"):
            cut_layers(n_layers, counts, paces, extra)
        return
    layers, stages = cut_layers(n_layers, counts, paces, extra)
    assert sum(layers) == n_layers and stages == split_layers(n_layers, counts)[1]
    assert all(n >= s for n, s in zip(layers, stages, strict=True)), "a stage without a layer"

    def slowest(cut):
        rows = zip(cut, stages, paces, extra, strict=True)
        return max(math.ceil(n / s) * p + e for n, s, p, e in rows)

    cuts = [
        cut
        for cut in itertools.product(*(range(s, n_layers + 1) for s in stages))
        if sum(cut) == n_layers
    ]
    assert slowest(layers) == pytest.approx(min(map(slowest, cuts)), rel=1e-8)


def test_domains_of_one_pace_are_cut_evenly_and_a_faster_one_holds_more():
    assert even_layers(32, (2, 1), (1.0, 1.0)) == split_layers(32, [2, 1])
    assert even_layers(12, (1, 1), (3.0, 1.0)) == ([3, 9], [1, 1])
    assert even_layers(12, (2, 1), (2.0, 1.0)) == ([6, 6], [2, 1])
    assert pace_of(None, (2, 0)) == (1.0, 1.0)
    assert pace_of((1.0, 1.5, 3.0), (2, 0)) == (3.0, 1.0)


def test_the_pace_is_that_of_the_layers_the_simulator_times():
    """What eight more layers add to a micro-batch on each domain alone."""
    fast = {name: 3.0 * x for name, x in GPU.items()}
    spec = dataclasses.replace(cluster_spec(2, gpus=1), sites=(Site(GPU), Site(fast)))
    cluster, efficiency = spec.to_arrays(), calibration(straggler=0.0)
    deeper = dataclasses.replace(JOB, model=dataclasses.replace(JOB.model, layers=16))
    works = [build_workload([job]).job(0) for job in (JOB, deeper)]
    pace = layer_pace(Problem(works[0], cluster, efficiency))
    view = base_view(cluster).replace(gpus_available=jnp.ones(2, jnp.int32))

    def compute_s(k, work):
        plan = make_plan([(k,)], [(int(work.layers),)], [1], micro_batch=1, recompute=0)
        return float(cost_of(plan, work, cluster, efficiency, view).compute_s)

    each = [compute_s(k, works[1]) - compute_s(k, works[0]) for k in (0, 1)]
    assert pace[1] == 1.0 and pace[0] == pytest.approx(each[0] / each[1], abs=2e-3)
    alike = cluster_spec(2).to_arrays()
    assert layer_pace(Problem(works[0], alike, efficiency)) is None
