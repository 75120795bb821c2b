"""Memory per GPU of a plan."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Real

from jaxsim.cluster import Calibration
from jaxsim.plan import Plan, Recompute
from jaxsim.pytree import Pytree
from jaxsim.step_time.sharding import is_resharded
from jaxsim.workload import (
    OPTIMIZER_BYTES,
    STORED_GRADIENT_BYTES,
    STORED_STATE_BYTES,
    WEIGHT_BYTES,
    Workload,
)


def state_bytes_per_param(
    zero_stage: Int[Array, "*#K"], ranks: Int[Array, "*#K"]
) -> Float[Array, "*#K"]:
    """[K] bytes per parameter of weights, gradients and Adam state.

    ZeRO shards the 12 of the optimizer, then the 4 of the gradients, then the 2 of the weights over
    the `ranks` [K] that hold the same weights (Rajbhandari et al. 2020): dp x cp, as Megatron-LM's
    distributed optimizer and FSDP do.
    """
    sharded = jnp.where(zero_stage >= 1, OPTIMIZER_BYTES, 0.0)
    sharded = sharded + jnp.where(zero_stage >= 2, STORED_GRADIENT_BYTES, 0.0)
    sharded = sharded + jnp.where(zero_stage >= 3, WEIGHT_BYTES, 0.0)
    return STORED_STATE_BYTES - sharded + sharded / ranks.astype(jnp.float32)


class LayerMemory(Pytree):
    """[K] [GB] of one layer and one sequence of a micro-batch, by recompute mode."""

    none: Float[Array, "*batch K"]
    selective: Float[Array, "*batch K"]
    full: Float[Array, "*batch K"]

    def held(self, recompute: Array) -> Array:
        """What stays until the backward pass."""
        held = jnp.where(recompute == Recompute.FULL, self.full, self.none)
        return jnp.where(recompute == Recompute.SELECTIVE, self.selective, held)


def layer_memory(
    work: Workload, cal: Calibration, tp: Int[Array, " K"], cp: Int[Array, " K"]
) -> LayerMemory:
    """Activations that one layer stores of one sequence.

    Korthikanti et al. 2022, eqs. 1-6: none 10 + 24 / t + 5 a s / (h t) times s b h, all of it over
    t with sequence parallelism; selective without the scores; full 2. Under flash attention there
    are no scores, and selective means every second layer.
    """
    slices, chunks = tp.astype(jnp.float32), cp.astype(jnp.float32)
    copies = jnp.where(work.sequence_parallel, slices, 1.0) * chunks
    slices = slices * chunks
    plain = work.stored.replicated_gb / copies + work.stored.sliced_gb / slices
    plain = plain * cal.stored_values
    full = work.stored.input_gb / copies * cal.stored_values
    return LayerMemory(
        none=plain + cal.stored_scores * work.stored.scores_gb / slices,
        selective=jnp.where(work.flash, 0.5 * (plain + full), plain),
        full=full,
    )


def in_flight_chunks(
    stages: Real[Array, "*batch"] | int, virtual_stages: Real[Array, ""] | int
) -> Float[Array, "..."]:
    """Factor on the micro-batches that the first stage holds: interleaved stages hold more of the
    first chunks (Korthikanti et al. 2022, sec. 4.2.3)."""
    more = 1.0 + (stages - 1.0) / (stages * virtual_stages)
    return jnp.where(virtual_stages > 1.0, more, 1.0)


class StageMemory(Pytree):
    """What the fullest GPU of each domain needs, as a function of the free fields; [K] each."""

    fixed_gb: Float[Array, "*batch K"]  # weights, gradients, optimizer, gathered weights, framework
    layer: LayerMemory
    layers: Float[Array, "*batch K"]  # on one GPU
    chunks: Float[Array, "*batch K"]  # factor on the micro-batches in flight
    gathered_gb: Float[Array, "*batch K"]  # per sequence, of the layer in work
    logits_gb: Float[Array, "*batch K"]  # per sequence, on the last stage
    # the stage with the logits is not the one with the most in flight
    apart: Bool[Array, "*batch K"]
    used: Bool[Array, "*batch K"]

    def total_gb(
        self, micro_batch: Array, recompute: Array, in_flight: Array, in_flight_last: Array
    ) -> Array:
        """[K] [GB], 0 where unused; micro-batches that the domain's first stage holds, and that the
        last stage of the whole pipeline does."""
        held = self.layer.held(recompute) * self.layers
        # While the backward pass recomputes a layer, its activations exist whole, and their gradients.
        working = jnp.where(recompute == Recompute.NONE, 0.0, 2.0 * self.layer.none)
        working = working + self.gathered_gb
        many = held * in_flight * self.chunks
        of_last = held * in_flight_last + self.logits_gb
        # One stage holds the logits, another the most micro-batches: the fullest counts, not both.
        together = many + self.logits_gb
        fullest = jnp.where(self.apart, jnp.maximum(many, of_last), together)
        total = self.fixed_gb + micro_batch.astype(jnp.float32) * (fullest + working)
        return jnp.where(self.used, total, 0.0)


def stage_memory(
    work: Workload, cal: Calibration, plan: Plan, dp: Array, first: Array, last: Array
) -> StageMemory:
    """Memory of a plan as a function of its free fields (one job).

    dp [K]: replicas, which share the state with their context-parallel ranks; `first` and `last` [K]
    mark the domains at the ends of their pipeline, which hold the embeddings and the logits.
    """
    stages = plan.pp.astype(jnp.float32)
    slices = plan.tp.astype(jnp.float32)
    state = params_per_gpu(work, plan, first, last)
    state = state * state_bytes_per_param(plan.zero_stage, dp * plan.cp * plan.shard_groups)
    gathered = _whole_gb(work, plan, first, last)
    logits = cal.stored_logits * work.logits_gb / (slices * plan.cp.astype(jnp.float32))
    return StageMemory(
        fixed_gb=state * cal.state_bytes / STORED_STATE_BYTES + gathered + cal.framework_gb,
        layer=layer_memory(work, cal, plan.tp, plan.cp),
        layers=jnp.ceil(plan.layers.astype(jnp.float32) / stages),
        chunks=in_flight_chunks(stages, work.virtual_stages),
        gathered_gb=_gathered_gb(work, plan),
        logits_gb=jnp.where(last, logits, 0.0),
        apart=plan.pp > 1,
        used=plan.used,  # pyright: ignore[reportArgumentType]
    )


def _whole_gb(work: Workload, plan: Plan, first: Array, last: Array) -> Array:
    """[K] [GB] of weights and gradients that exist whole beside their shards.

    Resharded weights: the layer in use, the next one, and a table at the ends. Weights that are kept
    from micro-batch to micro-batch: all of them, and their gradients, which are scattered once.
    """
    ends = (first | last).astype(jnp.float32)
    slices = plan.tp.astype(jnp.float32)
    few = WEIGHT_BYTES * (2.0 * work.layer_gparams + ends * work.embedding_gparams) / slices
    kept = (WEIGHT_BYTES + work.reduce_bytes) * params_per_gpu(work, plan, first, last)
    whole = jnp.where(is_resharded(work, plan), few, kept)
    return jnp.where(plan.zero_stage == 3, whole, 0.0)


def _gathered_gb(work: Workload, plan: Plan) -> Array:
    """[K] [GB] per sequence: sequence parallelism gathers the input of a block over the group and, on
    the way back, its gradient (Korthikanti et al. 2022, sec. 4.2.2)."""
    whole = 2.0 * work.stored.input_gb / plan.cp.astype(jnp.float32)
    return jnp.where(work.sequence_parallel & (plan.tp > 1), whole, 0.0)


def params_per_gpu(work: Workload, plan: Plan, first: Array, last: Array) -> Array:
    """[K] [1e9 parameters] on the fullest GPU of each domain, embeddings at both ends included."""
    layers = jnp.ceil(plan.layers.astype(jnp.float32) / plan.pp.astype(jnp.float32))
    head, tail = first.astype(jnp.float32), last.astype(jnp.float32)
    tables = jnp.where(plan.pp > 1, jnp.maximum(head, tail), head + tail)
    return (layers * work.layer_gparams + tables * work.embedding_gparams) / plan.tp.astype(
        jnp.float32
    )
