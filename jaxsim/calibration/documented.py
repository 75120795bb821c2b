"""What is published of an architecture, a kernel and a stack before any run is fitted."""

from __future__ import annotations

import numpy as np

from jaxsim.calibration.hierarchy import Machine
from jaxsim.cluster import PRIORS, STACKS, Belief, independent

Known = dict[str, tuple[float, float]]  # parameter -> value, spread on the unbounded scale

# A100: large products reach about 280 of 312 TFLOP/s, NVSwitch all-reduces 230 of 300 GB/s (public
# nccl-tests). H100: large products reach 650-750 of 989 TFLOP/s (Vidur's profile), all-gathers over
# eight and ten nodes 325-345 of 400 GB/s (public nccl-tests).
FAMILIES: dict[str, Known] = {
    "A100": {
        "gemm_efficiency": (0.90, 0.15),
        "memory_efficiency": (0.85, 0.2),
        "nvlink_efficiency": (0.78, 0.25),
    },
    "H100": {"gemm_efficiency": (0.74, 0.2), "intra_efficiency": (0.85, 0.3)},
}
# At 500 of 700 W clocks under load are a fifth lower (an assumption).
PARTS: dict[str, Known] = {"H100-96GB-500W": {"gemm_efficiency": (0.60, 0.2)}}
# Share of peak that a fused attention kernel reaches forward, long sequences and heads of 128. Of
# flash-1 and its Triton port on A100 about a third, on H100 the same TFLOP/s and half the share;
# flash-2 0.5-0.73 and 0.35; flash-3 0.6-0.75 (Dao 2023, Fig. 4-7; Shah et al. 2024, Fig. 5).
KERNELS: dict[tuple[str, str], float] = {
    ("flash-1", "A100"): 0.33,
    ("flash-1", "H100"): 0.16,
    ("flash-2", "A100"): 0.60,
    ("flash-2", "H100"): 0.38,
    ("flash-2", "H100-96GB-500W"): 0.33,
    ("flash-3", "H100"): 0.62,
}
KERNEL_KNOWN = 0.2  # spread of these
# Megatron-LM of 2021 sent gradients after the backward pass. DeepSpeed's ZeRO-3 of that time moved
# 1,050 GB a step in 67 s on 768 and on 1,536 GPUs alike (SC 2021, Table 2). FSDP holds fp32 weights,
# gradients and moments, 16 bytes. A loss in fp32 over whole logits holds them in 16 bits, in 32, and
# both gradients: three fp32 copies. A compiler recomputes what is cheap and stores less of it. OPT
# drops no attention scores: their softmax alone is stored (Zhang et al. 2022). MPT drops
# nothing and has no biases; that its published runs fit their GPUs is all that tells of its memory.
# Sailor (SOSP 2025) counts 2-5 GB for the framework.
SOFTWARE: dict[str, Known] = {
    "megatron-fused": {"dp_overlap": (0.05, 0.3), "straggler": (0.02, 1.0)},
    "deepspeed-zero3": {"gather_efficiency": (0.2, 0.3)},
    "deepspeed-eager": {
        "framework_gb": (4.0, 0.2),
        "stored_logits": (3.0, 0.3),
        "stored_scores": (2.0, 0.4),
        "straggler": (0.02, 1.0),
    },
    "llm-foundry": {
        "state_bytes": (16.0, 0.1),
        "stored_logits": (2.0, 0.3),
        "stored_values": (0.8, 0.1),
        "step_fixed_s": (0.015, 0.7),
    },
    "torchtitan": {
        "state_bytes": (16.0, 0.05),
        "stored_logits": (3.0, 0.1),
        "step_fixed_s": (0.015, 0.7),
        "framework_gb": (4.0, 0.15),
        "stored_values": (0.85, 0.03),
    },
    "torchtitan-eager": {"stored_values": (1.0, 0.03)},
}


def documented(machine: Machine) -> Known:
    """Value and spread of every parameter of a machine: the common priors, with what is known of its
    architecture, its attention kernel and its stack."""
    known: Known = {name: (p.value, p.spread) for name, p in PRIORS.items()}
    known.update(FAMILIES.get(machine.family, {}))
    known.update(PARTS.get(machine.gpu, {}))
    known.update(SOFTWARE.get(machine.fitted, {}))
    known.update(SOFTWARE.get(machine.stack, {}))
    # Of a stack that nobody named, the kernel that most run.
    kernel = STACKS[machine.stack].attention if machine.stack in STACKS else "flash-2"
    share = KERNELS.get((kernel, machine.gpu), KERNELS.get((kernel, machine.family)))
    if share is not None:
        known["flash_efficiency"] = (share, KERNEL_KNOWN)
    return known


def documented_belief(machine: Machine) -> Belief:
    """The same as a belief whose parameters are independent."""
    known = documented(machine)
    centre = [prior.to_free(known[name][0]) for name, prior in PRIORS.items()]
    return independent(np.array(centre), np.array([known[name][1] for name in PRIORS]))
