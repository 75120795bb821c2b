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
from .features import init_statistics, make_reference, update_statistics
from .scheduler import HiPPO, decide_lower, decide_upper, measure
from .settings import TrainSettings, check_sizes
from .training import EpochMetrics, Trainer, make_tape

__all__ = [
    "FILE_NAME",
    "Checkpoint",
    "EpochMetrics",
    "HiPPO",
    "TrainSettings",
    "Trainer",
    "check_sizes",
    "decide_lower",
    "decide_upper",
    "init_statistics",
    "load_checkpoint",
    "load_shipped",
    "load_trained",
    "make_reference",
    "make_tape",
    "measure",
    "policies",
    "restore",
    "save_checkpoint",
    "schedulers",
    "update_statistics",
]
