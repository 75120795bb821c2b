"""Memory per GPU of a plan."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxsim.calibration import Calibration
from jaxsim.plan import Plan
from jaxsim.workload import RECOMPUTE_FULL, RECOMPUTE_NONE, Workload


def state_bytes_per_param(zero_stage: Array, dp: Array) -> Array:
    """[K] bytes per parameter of weights, gradients and Adam state.

    16-bit weights 2, fp32 gradients 4, fp32 master and moments 12 = 18 (Korthikanti et al. 2022,
    Fig. 1); ZeRO shards the last 12, then the 4, then the 2 over dp (Rajbhandari et al. 2020).
    """
    n = dp.astype(jnp.float32)
    z1 = jnp.where(zero_stage >= 1, 12.0 / n, 12.0)
    z2 = jnp.where(zero_stage >= 2, 4.0 / n, 4.0)
    z3 = jnp.where(zero_stage >= 3, 2.0 / n, 2.0)
    return z1 + z2 + z3


def memory_gb(
    work: Workload,
    calibration: Calibration,
    plan: Plan,
    dp: Array,
    micro_batch: Array,
    recompute: Array,
    in_flight: Array,
    first: Array,
    last: Array,
) -> Array:
    """[K] [GB] on the fullest GPU of each domain; 0 where unused.

    dp, micro_batch, recompute, in_flight (micro-batches held by the domain's first stage) are [K];
    `first` and `last` mark the domains at the ends of their pipeline, which hold the embeddings and
    the logits. Activations: Korthikanti et al. 2022, with sequence parallelism (all terms / tp).
    """
    stages = plan.pp.astype(jnp.float32)
    layers = jnp.ceil(plan.layers.astype(jnp.float32) / stages)
    tp = plan.tp.astype(jnp.float32)
    params = params_per_gpu(work, plan, first, last)
    state = params * state_bytes_per_param(plan.zero_stage, dp)
    stored = jnp.where(recompute == RECOMPUTE_FULL, work.activation_gb[2], work.activation_gb[1])
    stored = jnp.where(recompute == RECOMPUTE_NONE, work.activation_gb[0], stored)
    # While the backward pass recomputes a layer, its full activations exist once.
    working = jnp.where(recompute > 0, work.activation_gb[0], 0.0)
    batch = micro_batch.astype(jnp.float32) / (tp * plan.cp.astype(jnp.float32))
    activations = batch * (stored * layers * in_flight + working)
    logits = jnp.where(last, work.logits_gb * batch, 0.0)
    total = state + activations + logits + calibration.framework_gb
    return jnp.where(plan.used, total, 0.0)


def params_per_gpu(work: Workload, plan: Plan, first: Array, last: Array) -> Array:
    """[K] [1e9 parameters] on the fullest GPU of each domain, embeddings at both ends included."""
    layers = jnp.ceil(plan.layers.astype(jnp.float32) / plan.pp.astype(jnp.float32))
    head, tail = first.astype(jnp.float32), last.astype(jnp.float32)
    tables = jnp.where(plan.pp > 1, jnp.maximum(head, tail), head + tail)
    return (layers * work.layer_gparams + tables * work.embedding_gparams) / plan.tp.astype(
        jnp.float32
    )
