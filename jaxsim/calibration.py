"""Efficiency parameters: what separates a data sheet from a measured step."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jax import Array


@struct.dataclass
class Calibration:
    """Scalars (float32, traced) that a fit to measured runs may replace; defaults are priors.

    Sources of the priors: GEMM efficiency, gate and up projection of Llama-2-7B at 4,096 tokens
    on A100 (219.5 of 312 TFLOP/s, Vidur's operator profiles); flash attention, Dao 2023
    (FlashAttention-2, 50-73 % of A100's peak forward); ring on TCP, shaped-link measurements of
    DiLoCo (0.9 of the measured bandwidth) and DDP (1 / 1.25); restart, Sailor (SOSP 2025), about
    11 s at 16-20 GPUs; overlap and framework memory are assumptions.
    """

    gemm_efficiency: Array  # [] share of peak FLOP/s
    attention_efficiency: Array  # [] share of peak FLOP/s
    memory_efficiency: Array  # [] share of HBM bandwidth
    layer_launch_s: Array  # [] [s] launch work per layer and pass, hidden behind longer GPU work
    nvlink_efficiency: Array  # [] share of NVLink bandwidth in a collective
    intra_efficiency: Array  # [] share of a node's network bandwidth in a collective
    collective_alpha_s: Array  # [] [s] latency of one ring step inside a node
    wan_efficiency: Array  # [] share of a WAN link that point-to-point transfers reach
    wan_ring_efficiency: Array  # [] share of a WAN link that a ring all-reduce reaches
    dp_overlap: Array  # [] share of the last backward pass that gradient sync hides behind
    restart_s: Array  # [] [s] stop, rebuild process groups, warm up
    framework_gb: Array  # [] [GB] memory per GPU held by CUDA context, NCCL and fragmentation


def default_calibration() -> Calibration:
    """Return the documented priors."""
    f = jnp.float32
    return Calibration(
        gemm_efficiency=f(0.70),
        attention_efficiency=f(0.55),
        memory_efficiency=f(0.80),
        layer_launch_s=f(2e-4),
        nvlink_efficiency=f(0.75),
        intra_efficiency=f(0.80),
        collective_alpha_s=f(1e-5),
        wan_efficiency=f(0.90),
        wan_ring_efficiency=f(0.80),
        dp_overlap=f(0.5),
        restart_s=f(11.4),
        framework_gb=f(2.0),
    )
