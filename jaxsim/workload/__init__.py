"""The model and the batch being trained.

workload      a transformer as a table of operators: FLOPs, bytes, parameters, activations
hugging_face  the shape of a model from a config.json
number_bytes  bytes of an activation, a gradient, a weight and its optimizer state
"""

from jaxsim.workload.number_bytes import (
    ACTIVATION_BYTES,
    FP32_ACTIVATION_BYTES,
    MOVED_STATE_BYTES,
    OPTIMIZER_BYTES,
    SENT_GRADIENT_BYTES,
    STORED_GRADIENT_BYTES,
    STORED_STATE_BYTES,
    WEIGHT_BYTES,
)
from jaxsim.workload.workload import (
    FLOAT8,
    FP32,
    MODEL_PRESETS,
    PRECISIONS,
    RESHARD,
    DataSets,
    JobSpec,
    ModelConfig,
    Workload,
    build_workload,
    load_model,
)

__all__ = [
    "ACTIVATION_BYTES",
    "FLOAT8",
    "FP32",
    "FP32_ACTIVATION_BYTES",
    "MODEL_PRESETS",
    "MOVED_STATE_BYTES",
    "OPTIMIZER_BYTES",
    "PRECISIONS",
    "RESHARD",
    "SENT_GRADIENT_BYTES",
    "STORED_GRADIENT_BYTES",
    "STORED_STATE_BYTES",
    "WEIGHT_BYTES",
    "DataSets",
    "JobSpec",
    "ModelConfig",
    "Workload",
    "build_workload",
    "load_model",
]
