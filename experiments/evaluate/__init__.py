"""`hippo evaluate`: schedulers on the same scenarios, one scene or a suite of them.

config             What an evaluation is asked for, and the checks of it
contestants        Who plays: schedulers by name, and checkpoints with an entry for each of their
evaluation         One evaluation, from checked inputs to tables and summary
evaluator          Playing schedulers on one bank of scenarios: common random numbers, the truth
jobs               Compare schedulers on many jobs: `python -m experiments.evaluate --jobs FILE
low_communication  Low-communication training, apart from the rest: a plan table and a
suites             Suites: named lists of scenes, evaluated one after another into one folder
tables             The tables of an evaluation: rows from episodes, on disk after every scheduler
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
