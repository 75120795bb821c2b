"""The model and the batch being trained.

workload  a transformer as a table of operators: FLOPs, bytes, parameters, activations
"""

from jaxsim.workload.workload import (
    FLOAT8,
    FP32,
    MODEL_PRESETS,
    PRECISIONS,
    RECOMPUTE_FULL,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    RESHARD,
    DataSets,
    JobSpec,
    ModelConfig,
    Workload,
    build_workload,
    load_model,
)

__all__ = [
    "FLOAT8",
    "FP32",
    "MODEL_PRESETS",
    "PRECISIONS",
    "RECOMPUTE_FULL",
    "RECOMPUTE_NONE",
    "RECOMPUTE_SELECTIVE",
    "RESHARD",
    "DataSets",
    "JobSpec",
    "ModelConfig",
    "Workload",
    "build_workload",
    "load_model",
]
