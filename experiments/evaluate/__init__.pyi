from .config import EvaluateConfig
from .contestants import (
    Contestant,
    contestants,
    named,
    requested_without_truth,
)
from .evaluator import Evaluator, tune
from .jobs import JobsEvaluation, requested

__all__ = [
    "Contestant",
    "EvaluateConfig",
    "Evaluator",
    "JobsEvaluation",
    "contestants",
    "named",
    "requested",
    "requested_without_truth",
    "tune",
]
