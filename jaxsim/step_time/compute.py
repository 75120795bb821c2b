"""Time that the GPUs of one stage spend computing, operator by operator."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from jaxsim.cluster import Calibration, Gpu
from jaxsim.plan import Recompute
from jaxsim.pytree import Pytree
from jaxsim.workload import ACTIVATION_BYTES, FLOAT8, FP32, FP32_ACTIVATION_BYTES, Workload

TILE = 128.0 * 128.0  # results that one thread block of a matrix product computes
LAYER_KERNELS = (
    7.0  # element-wise kernels of a layer, forward: norms, dropout, residual, activation
)
# Values read and written per token and hidden element: two norms (2 each), two additions of dropout
# and residual (3.5 each, the mask counts half).
LAYER_VALUES = 11.0
# Backward against forward: softmax re-reads its output, the other kernels write two gradients.
SOFTMAX_BACKWARD, ELEMENTWISE_BACKWARD = 1.5, 1.7
# Dao 2022 (FlashAttention), app. B: five products backward, two forward.
FLASH_BACKWARD = 2.5
# Megatron's fused softmax works on blocks of four (micro-batch x heads / tp) matrices.
FUSED_SOFTMAX_BLOCK = 4.0
ACCUMULATED_BYTES = 8.0  # read gradient and sum, write sum, and the gradient's first write; 16-bit


class LayerTime(Pytree):
    """[K] each, [s] for one micro-batch through one layer on the domain's tp x cp GPUs."""

    forward_s: Float[Array, "*batch K"]
    backward_s: Float[Array, "*batch K"]  # recomputation included
    tensor_s: Float[Array, "*batch K"]  # exposed tensor-parallel collectives of all passes
    # Time of each pass in which a context-parallel ring can hide: attention and, where the host is
    # slow, idle time.
    room_forward_s: Float[Array, "*batch K"]
    room_backward_s: Float[Array, "*batch K"]
    head_s: Float[Array, "*batch K"]  # logits and loss, forward and backward, last stage only
    embedding_s: Float[Array, "*batch K"]  # lookup and its gradient, first stage only


class _Shape(Pytree):
    """What every operator asks for; [K] each unless said otherwise."""

    micro_batch: Array
    tp: Array
    cp: Array
    tokens: Array  # per GPU
    value_bytes: Array  # [] or [K] [B]
    product_tflops: Array  # [] or [K] [TFLOP/s] peak of the layers' products
    core_tflops: Array  # [] or [K] [TFLOP/s] peak of attention and logits
    gb_per_s: Array  # [] or [K] [GB/s] HBM that kernels reach


def soft_max(a: Array, b: Array) -> Array:
    """(a^4 + b^4)^(1/4): two resources in parallel, each hiding most of the lesser load.

    The power is the one that joint fits to launch-bound and GPU-bound steps came back to (4.1-4.6).
    """
    high, low = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = low / jnp.maximum(high, 1e-30)
    square = ratio * ratio
    return high * jnp.sqrt(jnp.sqrt(1.0 + square * square))


def layer_time(
    work: Workload,
    gpu: Gpu,
    cal: Calibration,
    micro_batch: Int[Array, " K"],
    recompute: Int[Array, " K"],
    tp: Int[Array, " K"],
    cp: Int[Array, " K"],
    reduce_s: Float[Array, " K"],
) -> LayerTime:
    """Roofline per operator, then the slower of the GPU's work and the host that launches it.

    micro_batch, recompute, tp and cp are [K] int32, reduce_s [K] [s] is one all-reduce of the
    layer's output over the tensor-parallel group; `work` has no job axis. Recomputation adds a
    forward pass (full), the attention core (selective, unfused) or every second layer's forward
    pass (selective, flash attention: torchtitan's layer mode).
    """
    shape = _shape(work, gpu, cal, micro_batch, tp, cp)
    linear_s, core_s, scores_s, elementwise_s, fallback = _forward(work, cal, shape)
    sliced = shape.tp > 1.0
    pace = 1.0 + jnp.where(sliced, cal.tensor_straggler, 0.0)
    attention_s, other_s = core_s + scores_s, linear_s + elementwise_s
    params = 1e9 * work.layer_gparams / shape.tp
    core_back = jnp.where(work.flash, FLASH_BACKWARD, 2.0)
    attention_back_s = core_back * core_s + SOFTMAX_BACKWARD * scores_s
    other_back_s = 2.0 * linear_s + ELEMENTWISE_BACKWARD * elementwise_s
    other_back_s = other_back_s + _accumulation_s(params, cal, shape)

    extra_s = jnp.where(fallback, cal.fallback_launch_s, 0.0)
    exposed = jnp.where(work.async_tensor_parallel, cal.async_exposed, 1.0)
    wait_s = 2.0 * reduce_s * exposed

    def passed(attention_s, other_s, launch_s):
        busy_s = attention_s + other_s
        alone_s = soft_max(busy_s, launch_s + extra_s)
        together_s = soft_max(busy_s + wait_s, launch_s + extra_s)
        # One GPU waits for nobody: exactly zero, not a rounding error.
        waiting_s = jnp.where(sliced, together_s - alone_s, 0.0)
        return alone_s * pace, waiting_s * pace, alone_s - other_s

    forward_s, forward_wait_s, room_s = passed(attention_s, other_s, cal.launch_forward_s)
    back = passed(attention_back_s, other_back_s, cal.launch_backward_s)
    backward_s, backward_wait_s, room_back_s = back
    some = jnp.where(work.flash, 0.5 * forward_s, attention_s * pace)
    again_s = jnp.where(recompute == Recompute.FULL, forward_s, 0.0)
    again_s = jnp.where(recompute == Recompute.SELECTIVE, some, again_s)
    repeats = jnp.where(recompute == Recompute.FULL, 1.0, 0.0)
    half = (recompute == Recompute.SELECTIVE) & work.flash
    repeats = jnp.where(half, 0.5, repeats)
    return LayerTime(
        forward_s=forward_s,
        backward_s=backward_s + again_s,
        tensor_s=(1.0 + repeats) * forward_wait_s + backward_wait_s,
        room_forward_s=room_s,
        room_backward_s=room_back_s,
        head_s=_head_s(work, cal, shape),
        embedding_s=_embedding_s(work, cal, shape),
    )


def _shape(
    work: Workload, gpu: Gpu, cal: Calibration, micro_batch: Array, tp: Array, cp: Array
) -> _Shape:
    batch, slices, chunks = (x.astype(jnp.float32) for x in (micro_batch, tp, cp))
    wide = work.precision == FP32
    core = gpu.peak_tflops * jnp.where(wide, cal.fp32_speed, 1.0)
    return _Shape(
        micro_batch=batch,
        tp=slices,
        cp=chunks,
        tokens=batch * work.seq / chunks,
        value_bytes=jnp.where(wide, FP32_ACTIVATION_BYTES, ACTIVATION_BYTES),
        product_tflops=core * jnp.where(work.precision == FLOAT8, cal.float8_speed, 1.0),
        core_tflops=core,
        gb_per_s=gpu.memory_gb_per_s * cal.memory_efficiency,
    )


def _gemm_s(
    cal: Calibration,
    shape: _Shape,
    peak: Array,
    efficiency: Array,
    rows: Array,
    columns: Array,
    depth: Array,
    count: Array | float = 1.0,
) -> Array:
    """[K] [s] of `count` products [rows, depth] x [depth, columns] in one kernel.

    Efficiency falls with the last, partly empty wave of tiles and with a short inner dimension; the
    form x / (x + half) was fitted to operator profiles (Vidur, MLSys 2024).
    """
    results = count * rows * columns
    reach = results / (results + TILE * cal.gemm_tail_tiles) * depth / (depth + cal.gemm_depth)
    arithmetic_s = 2e-12 * results * depth / (peak * efficiency * reach)
    moved = results + count * depth * (rows + columns)
    memory_s = 1e-9 * shape.value_bytes * moved / shape.gb_per_s
    return soft_max(arithmetic_s, memory_s) + cal.kernel_s


def gemm_alone_s(
    gpu: Gpu,
    cal: Calibration,
    rows: Float[Array, " N"],
    columns: Float[Array, " N"],
    depth: Float[Array, " N"],
    wide: bool = False,
) -> Float[Array, " N"]:
    """[N] [s] of products on their own, as operator profiles time them, in 16 bits or (`wide`) fp32;
    shapes are [N]."""
    peak, value_bytes = _alone(gpu, cal, wide)
    one = jnp.float32(1.0)
    rate = gpu.memory_gb_per_s * cal.memory_efficiency
    shape = _Shape(one, one, one, rows, value_bytes * one, peak, peak, rate)
    return _gemm_s(cal, shape, peak, cal.gemm_efficiency, rows, columns, depth)


def flash_alone_s(
    gpu: Gpu,
    cal: Calibration,
    matrices: Float[Array, " N"],
    seq: Float[Array, " N"],
    width: Float[Array, " N"],
    wide: bool = False,
) -> Float[Array, " N"]:
    """[N] [s] forward of fused causal attention on its own: `matrices` heads of all sequences, as wide
    as `width`, in 16 bits or (`wide`) fp32; shapes are [N]."""
    peak, _ = _alone(gpu, cal, wide)
    tflop = 2e-12 * matrices * seq * seq * width
    return tflop * _flash_loss(cal, seq, width) / (peak * cal.flash_efficiency) + cal.kernel_s


def _alone(gpu: Gpu, cal: Calibration, wide: bool) -> tuple[Array, float]:
    """[TFLOP/s] peak and [B] of a value of one kernel on its own."""
    if wide:
        return gpu.peak_tflops * cal.fp32_speed, FP32_ACTIVATION_BYTES
    return gpu.peak_tflops, ACTIVATION_BYTES


def _flash_loss(cal: Calibration, seq: Array, width: Array) -> Array:
    """Factor >= 1: tiles of narrow heads and short sequences leave the kernel waiting (Dao 2023, Fig.
    5)."""
    return (1.0 + cal.flash_width / width) * (1.0 + cal.flash_length / seq)


def _memory_s(cal: Calibration, shape: _Shape, values: Array) -> Array:
    """[K] [s] of a kernel that moves `values` activations through HBM."""
    return 1e-9 * shape.value_bytes * values / shape.gb_per_s + cal.kernel_s


def _forward(
    work: Workload, cal: Calibration, shape: _Shape
) -> tuple[Array, Array, Array, Array, Array]:
    """[K] [s] of the layer's products, attention core, softmax and element-wise kernels; and [K]
    bool where the fused softmax does not apply."""
    h, tp, tokens = work.hidden, shape.tp, shape.tokens
    product = (cal, shape, shape.product_tflops, cal.gemm_efficiency, tokens)
    linear_s = (
        _gemm_s(*product, (h + 2.0 * work.kv_width) / tp, h)
        + _gemm_s(*product, h, h / tp)
        + _gemm_s(*product, work.ffn_inputs * work.ffn / tp, h)
        + _gemm_s(*product, h, work.ffn / tp)
    )
    matrices = shape.micro_batch * work.heads / tp
    rows, width = work.seq / shape.cp, h / work.heads
    batched = (cal, shape, shape.core_tflops, cal.batched_gemm_efficiency, rows)
    unfused_s = _gemm_s(*batched, work.seq, width, matrices)
    unfused_s = unfused_s + _gemm_s(*batched, width, work.seq, matrices)
    seen = jnp.where(work.causal, 0.5, 1.0)
    flash_tflop = 4e-12 * seen * matrices * rows * work.seq * width
    loss = _flash_loss(cal, work.seq, width)
    # Of c chunks of a causal sequence in order, the last rank meets all c, the mean rank (c + 1) / 2.
    skewed = work.causal & ~work.balanced_ring
    loss = loss * jnp.where(skewed, 2.0 * shape.cp / (shape.cp + 1.0), 1.0)
    flash_s = flash_tflop * loss / (shape.core_tflops * cal.flash_efficiency) + cal.kernel_s
    fallback = ~work.flash & (jnp.mod(matrices, FUSED_SOFTMAX_BLOCK) != 0.0)
    scores = matrices * rows * work.seq * cal.softmax_passes
    scores = scores * jnp.where(fallback, cal.fallback_passes, 1.0)
    scores_s = jnp.where(work.flash, 0.0, _memory_s(cal, shape, scores))
    copies = jnp.where(work.sequence_parallel, tp, 1.0)
    values = tokens * (LAYER_VALUES * h / copies + (work.ffn_inputs + 1.0) * work.ffn / tp)
    values = values * jnp.where(work.compiled, 1.0, cal.eager_passes)
    elementwise_s = _memory_s(cal, shape, values) + (LAYER_KERNELS - 1.0) * cal.kernel_s
    return linear_s, jnp.where(work.flash, flash_s, unfused_s), scores_s, elementwise_s, fallback


def _accumulation_s(params: Array, cal: Calibration, shape: _Shape) -> Array:
    """[K] [s] per micro-batch to add the gradients of `params` parameters to their sum."""
    return 1e-9 * ACCUMULATED_BYTES * cal.accumulation_passes * params / shape.gb_per_s


def _head_s(work: Workload, cal: Calibration, shape: _Shape) -> Array:
    """[K] [s] of logits and cross entropy, both directions; fp32 logits cross HBM several times."""
    sliced = work.vocab / shape.tp
    product_s = _gemm_s(
        cal, shape, shape.core_tflops, cal.gemm_efficiency, shape.tokens, sliced, work.hidden
    )
    product_s = product_s / jnp.where(shape.tp == 1.0, cal.vocabulary_efficiency, 1.0)
    loss_s = 4e-9 * cal.head_passes * shape.tokens * sliced / shape.gb_per_s
    params = 1e9 * work.embedding_gparams / shape.tp
    return 3.0 * product_s + loss_s + _accumulation_s(params, cal, shape)


def _embedding_s(work: Workload, cal: Calibration, shape: _Shape) -> Array:
    """[K] [s] of the lookup, its dropout and the table's gradient."""
    params = 1e9 * work.embedding_gparams / shape.tp
    values = 6.0 * shape.tokens * work.hidden
    return _memory_s(cal, shape, values) + _accumulation_s(params, cal, shape)
