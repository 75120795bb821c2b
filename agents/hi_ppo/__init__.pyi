from .checkpoint import (
    FILE_NAME,
    Checkpoint,
    load_checkpoint,
    load_shipped,
    load_trained,
    policies,
    restore,
    save_checkpoint,
    schedulers,
)
from .exact import ExactMetrics, ExactTrainer, Recording, expected_progress, record
from .features import init_statistics, make_reference, update_statistics
from .scheduler import HiPPO, decide_lower, decide_upper, measure
from .settings import ExactSettings, TrainSettings, check_sizes
from .training import EpochMetrics, Trainer, make_tape

__all__ = [
    "FILE_NAME",
    "Checkpoint",
    "EpochMetrics",
    "ExactMetrics",
    "ExactSettings",
    "ExactTrainer",
    "HiPPO",
    "Recording",
    "TrainSettings",
    "Trainer",
    "check_sizes",
    "decide_lower",
    "decide_upper",
    "expected_progress",
    "init_statistics",
    "load_checkpoint",
    "load_shipped",
    "load_trained",
    "make_reference",
    "make_tape",
    "measure",
    "policies",
    "record",
    "restore",
    "save_checkpoint",
    "schedulers",
    "update_statistics",
]
