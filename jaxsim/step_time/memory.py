"""Memory per GPU of a plan."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from jaxsim.calibration import Calibration
from jaxsim.plan import Plan
from jaxsim.workload import RECOMPUTE_FULL, RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, Workload

# 16-bit weights 2, fp32 gradients 4, fp32 master and moments 12 (Korthikanti et al. 2022, Fig. 1).
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2.0, 4.0, 12.0
STATE_BYTES = WEIGHT_BYTES + GRADIENT_BYTES + OPTIMIZER_BYTES


def state_bytes_per_param(zero_stage: Array, dp: Array) -> Array:
    """[K] bytes per parameter of weights, gradients and Adam state.

    ZeRO shards the 12 of the optimizer, then the 4 of the gradients, then the 2 of the weights over
    dp (Rajbhandari et al. 2020).
    """
    sharded = jnp.where(zero_stage >= 1, OPTIMIZER_BYTES, 0.0)
    sharded = sharded + jnp.where(zero_stage >= 2, GRADIENT_BYTES, 0.0)
    sharded = sharded + jnp.where(zero_stage >= 3, WEIGHT_BYTES, 0.0)
    return STATE_BYTES - sharded + sharded / dp.astype(jnp.float32)


def stored_gb(
    work: Workload, cal: Calibration, micro_batch: Array, recompute: Array, tp: Array, cp: Array
) -> tuple[Array, Array]:
    """[K], [K] [GB] that one layer keeps of one micro-batch: under `recompute`, and with none.

    Korthikanti et al. 2022, eqs. 1-6: none 10 + 24 / t + 5 a s / (h t) times s b h, all of it over
    t with sequence parallelism; selective without the scores; full 2. Under flash attention there
    are no scores, and selective means every second layer.
    """
    slices = tp.astype(jnp.float32)
    copies = jnp.where(work.sequence_parallel, slices, 1.0)
    batch = micro_batch.astype(jnp.float32) / cp.astype(jnp.float32)
    kept = work.stored.replicated_gb / copies + work.stored.sliced_gb / slices
    kept = kept * cal.stored_values
    whole = kept + cal.stored_scores * work.stored.scores_gb / slices
    least = work.stored.input_gb / copies * cal.stored_values
    some = jnp.where(work.flash, 0.5 * (kept + least), kept)
    held = jnp.where(recompute == RECOMPUTE_FULL, least, whole)
    held = jnp.where(recompute == RECOMPUTE_SELECTIVE, some, held)
    return batch * held, batch * whole


def in_flight_chunks(stages: Array, virtual_stages: Array) -> Array:
    """Factor on the micro-batches that the first stage holds: interleaved stages hold more of the
    first chunks (Korthikanti et al. 2022, sec. 4.2.3)."""
    more = 1.0 + (stages - 1.0) / (stages * virtual_stages)
    return jnp.where(virtual_stages > 1.0, more, 1.0)


def memory_gb(
    work: Workload,
    calibration: Calibration,
    plan: Plan,
    dp: Array,
    micro_batch: Array,
    recompute: Array,
    in_flight: Array,
    in_flight_last: Array,
    first: Array,
    last: Array,
) -> Array:
    """[K] [GB] on the fullest GPU of each domain; 0 where unused.

    dp, micro_batch, recompute, in_flight (micro-batches held by the domain's first stage) and
    in_flight_last (by the last stage of the whole pipeline) are [K]; `first` and `last` mark the
    domains at the ends of their pipeline, which hold the embeddings and the logits.
    """
    stages = plan.pp.astype(jnp.float32)
    layers = jnp.ceil(plan.layers.astype(jnp.float32) / stages)
    slices = plan.tp.astype(jnp.float32)
    params = params_per_gpu(work, plan, first, last)
    scale = calibration.state_bytes / STATE_BYTES
    state = params * scale * state_bytes_per_param(plan.zero_stage, dp)
    held, whole = stored_gb(work, calibration, micro_batch, recompute, plan.tp, plan.cp)
    chunks = in_flight_chunks(stages, work.virtual_stages)
    # While the backward pass recomputes a layer, its full activations exist once.
    working = jnp.where(recompute == RECOMPUTE_NONE, 0.0, whole)
    activations = held * layers * in_flight * chunks + working
    batch = micro_batch.astype(jnp.float32) / (slices * plan.cp.astype(jnp.float32))
    logits = jnp.where(last, calibration.stored_logits * work.logits_gb * batch, 0.0)
    # One pipeline stage holds the logits, another the most micro-batches in flight: the fullest of
    # them counts, not both.
    apart = plan.pp > 1
    of_last = held * layers * in_flight_last + working + logits
    activations = jnp.where(apart & last, jnp.maximum(activations, of_last), activations + logits)
    # Sharded weights exist whole for the layer in use, the next one, and a table at the ends.
    ends = (first | last).astype(jnp.float32)
    gathered = 2.0 * work.layer_gparams + ends * work.embedding_gparams
    gathered = jnp.where(plan.zero_stage == 3, WEIGHT_BYTES * gathered / slices, 0.0)
    total = state + activations + gathered + calibration.framework_gb
    return jnp.where(plan.used, total, 0.0)


def params_per_gpu(work: Workload, plan: Plan, first: Array, last: Array) -> Array:
    """[K] [1e9 parameters] on the fullest GPU of each domain, embeddings at both ends included."""
    layers = jnp.ceil(plan.layers.astype(jnp.float32) / plan.pp.astype(jnp.float32))
    head, tail = first.astype(jnp.float32), last.astype(jnp.float32)
    tables = jnp.where(plan.pp > 1, jnp.maximum(head, tail), head + tail)
    return (layers * work.layer_gparams + tables * work.embedding_gparams) / plan.tp.astype(
        jnp.float32
    )
