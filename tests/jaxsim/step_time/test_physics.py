"""What physics demands of any legal run: faster parts never slow it, units do not matter, and the
step time is smooth enough to fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.measured_runs import made_run
from helpers.toy_world import (
    EFFICIENCIES,
    JOB,
    base_view,
    calibration,
    cluster_spec,
    cost_of,
    make_plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsim.calibration.measured import RECOMPUTE, predict_runs, run_arrays
from jaxsim.cluster.efficiency import PRIORS, Calibration, prior_calibration
from jaxsim.cluster.gpu import GPU_PRESETS
from jaxsim.plan.modes import Schedule
from jaxsim.workload.workload import PRECISIONS, ModelConfig, build_workload

few = settings(deadline=None, max_examples=8)
N = 16  # runs per example: one compilation serves all


def powers(high):
    return st.integers(0, high).map(lambda e: 2**e)


@st.composite
def legal_runs(draw):
    """A run that a team could start: widths that divide, a batch that the replicas share."""
    tp, cp, pp, dp = draw(powers(3)), draw(powers(4)), draw(powers(3)), draw(powers(4))
    heads = draw(st.sampled_from([8, 16, 40, 96]))
    gated = draw(st.booleans())
    hidden = heads * draw(st.sampled_from([64, 128]))
    layers = pp * draw(st.integers(1, 12))
    micro_batch = draw(powers(3))
    return made_run(
        gpu=draw(st.sampled_from(sorted(GPU_PRESETS))),
        n_gpus=tp * cp * pp * dp,
        gpus_per_node=draw(st.sampled_from([1, 4, 8])),
        model=ModelConfig(
            layers, hidden, heads, heads // draw(powers(3)), 4 * hidden, 2 + gated, 32000, not gated
        ),
        seq=draw(st.sampled_from([512, 2048, 8192])),
        tp=tp,
        cp=cp,
        pp=pp,
        dp=dp,
        zero_stage=draw(st.integers(0, 3)),
        virtual_stages=draw(st.integers(1, 3)) if pp > 1 else 1,
        micro_batch=micro_batch,
        global_batch=micro_batch * dp * draw(st.integers(1, 40)),
        recompute=draw(st.sampled_from(sorted(RECOMPUTE))),
        sequence_parallel=draw(st.booleans()),
        flash=draw(st.booleans()),
        precision=draw(st.sampled_from(PRECISIONS)),
        compiled=draw(st.booleans()),
        async_tp=draw(st.booleans()),
    )


many_runs = st.lists(legal_runs(), min_size=N, max_size=N)
believed = st.lists(st.floats(-2, 2), min_size=len(PRIORS), max_size=len(PRIORS))


def around_prior(z):
    """The calibration that stands `z` prior spreads from the priors."""
    values = {}
    for (name, prior), x in zip(PRIORS.items(), z, strict=True):
        free = prior.to_free(prior.value) + prior.spread * x
        values[name] = jnp.float32(1 / (1 + np.exp(-free)) if prior.share else np.exp(free))
    return Calibration(**values)


def total_s(arrays, cal):
    return np.asarray(predict_runs(arrays, cal).total_s, np.float64)


def faster(arrays, part, factor):
    """The same runs on hardware of which one part is `factor` times as fast."""
    plans, works, clusters, views = arrays
    if part == "intra_gb_per_s":
        return (
            plans,
            works,
            clusters.replace(intra_gb_per_s=clusters.intra_gb_per_s * factor),
            views,
        )
    gpu = clusters.gpu.replace(**{part: getattr(clusters.gpu, part) * factor})
    return plans, works, clusters.replace(gpu=gpu), views


@pytest.mark.parametrize(
    "part", ["peak_tflops", "memory_gb_per_s", "nvlink_gb_per_s", "intra_gb_per_s"]
)
@few
@given(many_runs, st.floats(1.0, 4.0), believed)
def test_faster_hardware_never_slows_a_run(part, runs, factor, z):
    arrays, cal = run_arrays(runs), around_prior(z)
    slow = total_s(arrays, cal)
    fast = total_s(faster(arrays, part, jnp.float32(factor)), cal)
    assert np.all(fast <= slow * (1 + 1e-5))


@pytest.mark.parametrize("part", ["peak_tflops", "memory_gb_per_s"])
@pytest.mark.parametrize("zero_stage", [0, 3])
def test_a_ring_that_sticks_out_of_a_slow_host_gains_from_a_faster_gpu(part, zero_stage):
    model = ModelConfig(16, 1024, 16, 16, 4096, 2, 32000, True)
    split = {"n_gpus": 128, "tp": 1, "cp": 8, "pp": 1, "dp": 16, "zero_stage": zero_stage}
    run = made_run(model=model, seq=16384, micro_batch=1, global_batch=16, gpus_per_node=4, **split)
    arrays = run_arrays([run] * N)
    assert np.all(np.asarray(predict_runs(arrays, prior_calibration()).context_parallel_s) > 0)
    times = [
        total_s(faster(arrays, part, jnp.float32(f)), prior_calibration())[0] for f in (1, 2, 4)
    ]
    assert times[0] >= times[1] >= times[2]


@pytest.mark.parametrize(
    "part", ["peak_tflops", "memory_gb_per_s", "nvlink_gb_per_s", "intra_gb_per_s"]
)
def test_every_part_of_the_hardware_matters(part):
    run = made_run(n_gpus=64, tp=8, pp=4, dp=2, gpus_per_node=8, micro_batch=8, global_batch=128)
    arrays = run_arrays([run])
    twice = total_s(faster(arrays, part, jnp.float32(2.0)), prior_calibration())
    assert twice[0] < 0.9999 * total_s(arrays, prior_calibration())[0]


@jax.jit
def log_slopes(arrays, cal):
    """[N] log step time and its gradient, leaves [N]."""

    def log_s(cal):
        return jnp.log(predict_runs(arrays, cal).total_s)

    return log_s(cal), jax.jacfwd(log_s)(cal), jax.grad(lambda c: log_s(c).sum())(cal)


@pytest.mark.nightly
@few
@given(many_runs, believed)
def test_time_and_slopes_of_any_legal_run_are_finite(runs, z):
    log_s, forward, backward = log_slopes(run_arrays(runs), around_prior(z))
    assert np.all(np.isfinite(log_s))
    # At a kink, where two paths are as long, the two modes may take different sides: both are right.
    for name in PRIORS:
        assert np.all(np.isfinite(getattr(forward, name))), name
        assert np.isfinite(getattr(backward, name)), name


@pytest.mark.slow
def test_slopes_are_finite_where_domains_are_unused_or_padded():
    plan = make_plan([(1,)], [(8,)], [8], 4, dp=2, micro_batch=2)
    cluster, work = cluster_spec().to_arrays(4), build_workload([JOB]).job(0)

    def log_s(cal):
        return jnp.log(cost_of(plan, work, cluster, cal, base_view(cluster)).total_s)

    slopes = jax.grad(log_s)(calibration())
    assert all(np.isfinite(x) for x in jax.tree.leaves(slopes))
    assert float(slopes.gemm_efficiency) < 0 < float(slopes.kernel_s)


@pytest.mark.nightly
def test_a_slope_is_the_difference_that_it_predicts():
    arrays, cal = run_arrays([made_run()] * N), prior_calibration()
    _, slopes, total = log_slopes(arrays, cal)
    for name in PRIORS:
        slope = np.asarray(getattr(slopes, name))
        slack = 1e-3 * np.abs(slope).max() + 1e-6
        np.testing.assert_allclose(slope.sum(), getattr(total, name), rtol=2e-3, atol=slack)
    for name in ("gemm_efficiency", "flash_efficiency", "memory_efficiency", "nvlink_efficiency"):
        value = float(getattr(cal, name))
        ends = [cal.replace(**{name: jnp.float32(value * (1 + d))}) for d in (-0.02, 0.02)]
        low, high = (np.log(total_s(arrays, c))[0] for c in ends)
        slope = float(getattr(slopes, name)[0])
        np.testing.assert_allclose((high - low) / (0.04 * value), slope, rtol=0.02, err_msg=name)


# Units. Seconds: all rates and all durations. Gigabytes: what is moved and how fast.
DURATIONS = [name for name, p in PRIORS.items() if p.unit == "s"]
PLANS = [
    make_plan([(0, 1)], [(3, 5)], [8], dp=2, micro_batch=2, schedule=Schedule.EAGER_1F1B),
    make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], dp=[3, 1], micro_batch=2),
    make_plan([(0,), (1,)], [(8,), (8,)], [4, 4], dp=[3, 1], micro_batch=2, sync_period=4),
    make_plan([(1,)], [(8,)], [16], tp=2, cp=2, dp=1, micro_batch=2, zero_stage=3),
    make_plan([(1,)], [(8,)], [8], pp=2, dp=2, micro_batch=2),
]


@pytest.mark.parametrize("scale", [0.1, 8.0])
@pytest.mark.parametrize("plan", PLANS)
def test_slower_clocks_scale_every_time(plan, scale):
    cluster, work, cal = cluster_spec().to_arrays(), build_workload([JOB]).job(0), calibration()
    gpu, view = cluster.gpu, base_view(cluster)
    rates = ("peak_tflops", "memory_gb_per_s", "nvlink_gb_per_s")
    slow = cluster.replace(
        gpu=gpu.replace(**{k: getattr(gpu, k) / scale for k in rates}),
        intra_gb_per_s=cluster.intra_gb_per_s / scale,
        intra_rtt_s=cluster.intra_rtt_s * scale,
    )
    seen = view.replace(
        bandwidth_gb_per_s=view.bandwidth_gb_per_s / scale, rtt_s=view.rtt_s * scale
    )
    stretched = {name: getattr(cal, name) * scale for name in DURATIONS}
    later = cal.replace(slow_link_gbps=cal.slow_link_gbps / scale, **stretched)
    plain, scaled = cost_of(plan, work, cluster, cal, view), cost_of(plan, work, slow, later, seen)
    for name in ("step_s", "compute_s", "tensor_parallel_s", "sync_s", "optimizer_s", "wan_busy_s"):
        want = float(getattr(plain, name)) * scale
        # Parts are differences of the step's size: so is their rounding.
        slack = 1e-6 * scale * float(plain.step_s)
        got = float(getattr(scaled, name))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=slack, err_msg=name)
    np.testing.assert_allclose(scaled.overlap, plain.overlap, atol=1e-3)
    np.testing.assert_array_equal(scaled.memory_gb, plain.memory_gb)


@pytest.mark.parametrize("scale", [0.1, 8.0])
@pytest.mark.parametrize("plan", PLANS)
def test_larger_bytes_over_faster_links_take_the_same_time(plan, scale):
    cluster, work, cal = cluster_spec().to_arrays(), build_workload([JOB]).job(0), calibration()
    view = base_view(cluster)
    moved = ("boundary_gb", "kv_gb", "layer_gparams", "embedding_gparams")
    heavy = work.replace(**{k: getattr(work, k) * scale for k in moved})
    links = cluster.replace(
        gpu=cluster.gpu.replace(nvlink_gb_per_s=cluster.gpu.nvlink_gb_per_s * scale),
        intra_gb_per_s=cluster.intra_gb_per_s * scale,
    )
    seen = view.replace(bandwidth_gb_per_s=view.bandwidth_gb_per_s * scale)
    # Parameters that pass through HBM keep their bytes: its bandwidth stays.
    same = cal.replace(
        accumulation_passes=cal.accumulation_passes / scale,
        optimizer_bytes=cal.optimizer_bytes / scale,
        slow_link_gbps=cal.slow_link_gbps * scale,
    )
    plain, scaled = cost_of(plan, work, cluster, cal, view), cost_of(plan, heavy, links, same, seen)
    np.testing.assert_allclose(float(scaled.total_s), float(plain.total_s), rtol=1e-5)
    np.testing.assert_allclose(scaled.wan_gb, np.asarray(plain.wan_gb) * scale, rtol=1e-5)


def test_every_parameter_is_felt_somewhere():
    """No parameter is dead: each moves the time or the memory of some run or plan."""
    base = made_run()
    runs = [
        base,
        dataclasses.replace(base, flash=False, tp=8, pp=1, dp=2, micro_batch=1),
        dataclasses.replace(base, flash=False, tp=1, pp=2, dp=8, gpus_per_node=4),
        dataclasses.replace(base, precision="fp32", compiled=False, zero_stage=3, tp=1, dp=8),
        dataclasses.replace(base, precision="float8", async_tp=True),
        dataclasses.replace(base, zero_stage=3, tp=1, pp=1, dp=16, gpus_per_node=2, micro_batch=1),
    ]
    arrays = run_arrays(runs)
    cluster, work = cluster_spec().to_arrays(), build_workload([JOB]).job(0)

    def felt(cal):
        cost = predict_runs(arrays, cal)
        wan = [cost_of(p, work, cluster, cal, base_view(cluster)) for p in PLANS[:3]]
        found = [cost.total_s, cost.memory_gb.ravel(), *(c.total_s[None] for c in wan)]
        return np.concatenate([np.asarray(x) for x in found])

    elsewhere = {"restart_s", "sync_fixed_s"}  # a reconfiguration; syncs over shaped links
    before = felt(calibration())
    for name in EFFICIENCIES:
        after = felt(calibration(**{name: EFFICIENCIES[name] * 1.2}))
        moved = np.any(np.abs(after / before - 1) > 1e-6)
        assert moved == (name not in elsewhere), name
