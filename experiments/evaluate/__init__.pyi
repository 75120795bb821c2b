from .config import EvaluateConfig
from .contestants import (
    Contestant,
    contestants,
    named,
    requested,
    requested_without_truth,
)
from .evaluator import (
    Evaluator,
    on_tape,
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
from .programs import bound_scheduler, true_setup
from .suites import is_suite_file, load_suite, scene_configs
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
    "Contestant",
    "EvaluateConfig",
    "Evaluator",
    "JobsContestant",
    "JobsEvaluation",
    "JobsScenario",
    "bound_scheduler",
    "check_allocation",
    "compile_trust",
    "contestants",
    "in_calibrated_domain",
    "is_suite_file",
    "jobs_scenarios",
    "least_reach",
    "load_suite",
    "named",
    "on_tape",
    "plan_features",
    "plan_trust",
    "play_jobs",
    "probabilities_best",
    "requested",
    "requested_for_jobs",
    "requested_without_truth",
    "scene_configs",
    "speed_reaches",
    "synchronous",
    "true_setup",
    "tune",
]
