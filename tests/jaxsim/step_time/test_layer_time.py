"""One layer, operator by operator, against a second derivation in plain floats."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.step_time_by_hand import Hand
from helpers.toy_world import JOB, MODEL, calibration, cluster_spec

from jaxsim.step_time.collectives import tensor_reduce_s
from jaxsim.step_time.compute import flash_alone_s, gemm_alone_s, layer_time, soft_max
from jaxsim.workload.workload import build_workload

CLUSTER = cluster_spec(gpus=8).to_arrays()
RECOMPUTE = ("none", "selective", "full")
PLAIN = dataclasses.replace(MODEL, kv_heads=16, ffn_matrices=2)
JOBS = {
    "flash": JOB,
    "flash over the whole matrix": dataclasses.replace(JOB, causal_flops=False),
    "plain FFN, all heads": dataclasses.replace(JOB, model=PLAIN),
    "unfused": dataclasses.replace(JOB, flash_attention=False),
    "unfused, not causal": dataclasses.replace(JOB, flash_attention=False, causal_flops=False),
    "fp32": dataclasses.replace(JOB, precision="fp32"),
    "fp32, unfused": dataclasses.replace(JOB, precision="fp32", flash_attention=False),
    "float8": dataclasses.replace(JOB, precision="float8"),
    "fp16": dataclasses.replace(JOB, precision="fp16"),
    "eager": dataclasses.replace(JOB, compiled=False),
    "no sequence parallelism": dataclasses.replace(JOB, sequence_parallel=False),
    "asynchronous": dataclasses.replace(JOB, async_tensor_parallel=True),
    "short": dataclasses.replace(JOB, seq=128),
}
timed = jax.jit(layer_time)
reduced = jax.jit(tensor_reduce_s)


def simulated(job, cal, micro_batch, recompute, tp, cp):
    work = build_workload([job]).job(0)
    b, r, t, c = (jnp.full(2, v, jnp.int32) for v in (micro_batch, recompute, tp, cp))
    return timed(work, CLUSTER.gpu, cal, b, r, t, c, reduced(work, CLUSTER, cal, b, t, c))


@pytest.mark.parametrize(
    ("micro_batch", "tp", "cp"), [(1, 1, 1), (4, 1, 1), (4, 8, 1), (2, 2, 1), (1, 2, 4), (8, 4, 2)]
)
@pytest.mark.parametrize("name", JOBS)
def test_layer_by_hand(name, micro_batch, tp, cp):
    job, hand = JOBS[name], Hand(JOBS[name])
    for mode, recompute in enumerate(RECOMPUTE):
        got = simulated(job, calibration(), micro_batch, mode, tp, cp)
        reduce = hand.all_reduce(micro_batch, tp, cp)
        want = hand.layer(micro_batch, tp, cp, recompute, reduce)
        pairs = {
            "forward": (got.forward_s, want.forward),
            "backward": (got.backward_s, want.backward),
            "head": (got.head_s, hand.head(micro_batch, tp, cp)),
            "embedding": (got.embedding_s, hand.embedding(micro_batch, tp, cp)),
        }
        for what, (x, y) in pairs.items():
            np.testing.assert_allclose(x, y, rtol=2e-5, err_msg=f"{recompute}: {what}")
        # Differences of a pass's size.
        differences = {
            "tensor": (got.tensor_s, want.tensor),
            "room": (got.room_forward_s, want.room),
            "room, backward": (got.room_backward_s, want.room_back),
        }
        for what, (x, y) in differences.items():
            slack = 2e-6 * want.backward
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=slack, err_msg=f"{recompute}: {what}")


def test_the_fused_softmax_needs_blocks_of_four():
    job = dataclasses.replace(JOB, flash_attention=False)
    # 16 heads over tp 8 leave 2 matrices: the fallback moves 2.6 times the scores.
    slow, quick = (simulated(job, calibration(fallback_passes=x), 1, 0, 8, 1) for x in (2.6, 1.0))
    assert float(slow.room_forward_s[0]) > 1.2 * float(quick.room_forward_s[0])
    # Two sequences make four of them.
    slow, quick = (simulated(job, calibration(fallback_passes=x), 2, 0, 8, 1) for x in (2.6, 1.0))
    np.testing.assert_array_equal(slow.room_forward_s, quick.room_forward_s)


def test_a_slow_host_hides_the_gpu():
    slow = calibration(launch_forward_s=1.0, launch_backward_s=2.0)
    got = simulated(JOB, slow, 1, 0, 1, 1)
    np.testing.assert_allclose(got.forward_s, 1.0, rtol=1e-6)
    np.testing.assert_allclose(got.backward_s, 2.0, rtol=1e-6)


def test_soft_max_is_a_smooth_maximum():
    a = jnp.array([3.0, 0.0, 1e-9, 1.0, 5.0], jnp.float32)
    b = jnp.array([3.0, 2.0, 1.0, 2.0, 0.0], jnp.float32)
    want = (np.asarray(a, np.float64) ** 4 + np.asarray(b, np.float64) ** 4) ** 0.25
    np.testing.assert_allclose(soft_max(a, b), want, rtol=1e-6)
    np.testing.assert_array_equal(soft_max(a, b), soft_max(b, a))


def test_product_alone_by_hand():
    rows, columns, depth = (jnp.array(x, jnp.float32) for x in ([256, 8192], [512, 4096], [64, 8]))
    hand = Hand()
    want = [
        hand.product(m, n, k, 0.5, hand.peak)
        for m, n, k in zip((256, 8192), (512, 4096), (64, 8), strict=True)
    ]
    got = gemm_alone_s(CLUSTER.gpu, calibration(), rows, columns, depth)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_fused_attention_alone_by_hand():
    """Causal: half of two products; narrow heads and short sequences lose; fp32 has its own peak."""
    cal = calibration(flash_width=16.0, flash_length=256.0, flash_efficiency=0.5, fp32_speed=0.25)
    matrices, seq, width = (jnp.array([x], jnp.float32) for x in (8.0, 512.0, 64.0))
    busy_s = 2.0 * 8 * 512**2 * 64 * 1.25 * 1.5 / (0.5e12 * float(CLUSTER.gpu.peak_tflops))
    for wide, slower in ((False, 1.0), (True, 4.0)):
        want = slower * busy_s + float(cal.kernel_s)
        got = flash_alone_s(CLUSTER.gpu, cal, matrices, seq, width, wide)
        np.testing.assert_allclose(got, [want], rtol=1e-5)
