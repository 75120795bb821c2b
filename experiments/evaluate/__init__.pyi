from .config import EvaluateConfig
from .contestants import (
    Contestant,
    contestants,
    named,
    requested_without_truth,
)
from .evaluator import Evaluator, tune
from .jobs import JobsEvaluation, requested
from .trust import plan_features, plan_trust

__all__ = [
    "Contestant",
    "EvaluateConfig",
    "Evaluator",
    "JobsEvaluation",
    "contestants",
    "named",
    "plan_features",
    "plan_trust",
    "requested",
    "requested_without_truth",
    "tune",
]
