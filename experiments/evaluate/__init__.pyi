from .config import EvaluateConfig
from .contestants import (
    Contestant,
    contestants,
    named,
    requested,
    requested_without_truth,
)
from .evaluator import (
    OUTLOOK,
    Evaluator,
    on_tape,
    outlook_at_base,
    synchronous,
    tapes,
    tune,
)
from .jobs import JobsEvaluation, requested_for_jobs
from .programs import true_setup
from .trust import compile_trust, plan_features, plan_trust

__all__ = [
    "OUTLOOK",
    "Contestant",
    "EvaluateConfig",
    "Evaluator",
    "JobsEvaluation",
    "compile_trust",
    "contestants",
    "named",
    "on_tape",
    "outlook_at_base",
    "plan_features",
    "plan_trust",
    "requested",
    "requested_for_jobs",
    "requested_without_truth",
    "synchronous",
    "tapes",
    "true_setup",
    "tune",
]
