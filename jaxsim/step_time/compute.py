"""Time that the GPUs of one stage spend computing."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax import Array

from jaxsim.calibration import Calibration
from jaxsim.gpu import Gpu
from jaxsim.workload import ATTENTION, RECOMPUTE_FULL, RECOMPUTE_SELECTIVE, Workload


@struct.dataclass
class LayerTime:
    """[K] each, [s] for one micro-batch through one layer on the domain's tp x cp GPUs."""

    forward_s: Array
    backward_s: Array  # recomputation included
    head_s: Array  # forward and backward of the logits, last stage only


def layer_time(
    work: Workload,
    gpu: Gpu,
    calibration: Calibration,
    micro_batch: Array,
    recompute: Array,
    tp: Array,
    cp: Array,
) -> LayerTime:
    """Roofline per operator: the slower of arithmetic and memory traffic (Williams et al. 2009).

    micro_batch, recompute, tp and cp are [K] int32; `work` has no job axis. The backward pass costs
    twice the forward; recomputation adds the attention core (selective) or the layer (full).
    A layer takes at least its launch time: small shapes are launch-bound, not slower.
    """
    batch = micro_batch.astype(jnp.float32)[:, None]
    slices = tp.astype(jnp.float32)[:, None]
    chunks = cp.astype(jnp.float32)[:, None]
    n_ops = work.op_tflop.shape[-1]
    is_attention = jnp.arange(n_ops) == ATTENTION
    efficiency = jnp.where(
        is_attention, calibration.attention_efficiency, calibration.gemm_efficiency
    )
    shard = batch / (slices * chunks)
    arithmetic_s = work.op_tflop[None, :] * shard / (gpu.peak_tflops * efficiency[None, :])
    traffic_gb = work.op_weight_gb[None, :] / slices + work.op_io_gb[None, :] * shard
    memory_s = traffic_gb / (gpu.memory_gb_per_s * calibration.memory_efficiency)
    op_s = jnp.maximum(arithmetic_s, memory_s)  # [K, O]
    forward_s = jnp.maximum(op_s.sum(axis=1), calibration.layer_launch_s)
    again_s = jnp.where(recompute == RECOMPUTE_FULL, forward_s, 0.0)
    again_s = jnp.where(recompute == RECOMPUTE_SELECTIVE, op_s[:, ATTENTION], again_s)
    head_s = 3.0 * work.head_tflop * shard[:, 0] / (gpu.peak_tflops * calibration.gemm_efficiency)
    return LayerTime(forward_s, 2.0 * forward_s + again_s, head_s)
