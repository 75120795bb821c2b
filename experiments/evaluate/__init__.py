"""`hippo evaluate`: schedulers on the same scenarios, one scene or a suite.

config             what an evaluation is asked for
contestants        who plays: names and checkpoints
evaluation         one evaluation, from checked inputs to tables and summary
evaluator          plays schedulers on a bank of scenarios, the truth beside them
tables             rows from episodes
suites             named lists of scenes
jobs               the comparison on many jobs
low_communication  low-communication training, with a table of its own
"""

from experiments.evaluate.config import EvaluateConfig
from experiments.evaluate.contestants import (
    Contestant,
    contestants,
    named,
    requested_without_truth,
)
from experiments.evaluate.evaluator import Evaluator, tune
from experiments.evaluate.jobs import JobsEvaluation, requested

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
