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
    tune,
)
from .jobs import (
    JobsContestant,
    JobsEvaluation,
    JobsScenario,
    check_allocation,
    jobs_scenarios,
    play_jobs,
    requested_for_jobs,
)
from .programs import tapes, true_setup
from .trust import (
    compile_trust,
    in_calibrated_domain,
    least_reach,
    plan_features,
    plan_trust,
    probabilities_best,
    speed_reaches,
)

__all__ = [
    "OUTLOOK",
    "Contestant",
    "EvaluateConfig",
    "Evaluator",
    "JobsContestant",
    "JobsEvaluation",
    "JobsScenario",
    "check_allocation",
    "compile_trust",
    "contestants",
    "in_calibrated_domain",
    "jobs_scenarios",
    "least_reach",
    "named",
    "on_tape",
    "outlook_at_base",
    "plan_features",
    "plan_trust",
    "play_jobs",
    "probabilities_best",
    "requested",
    "requested_for_jobs",
    "requested_without_truth",
    "speed_reaches",
    "synchronous",
    "tapes",
    "true_setup",
    "tune",
]
