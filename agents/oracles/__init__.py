"""Schedulers that are given the truth: they say what was possible.

clairvoyant    The optimal plan sequence with the future known, by dynamic programme over (time x
replan_oracle  The best row of the table on the true present network, the switch spread over a
truth          What the future holds: the course of a scenario, the optimum over a plan table
"""

from agents.oracles.clairvoyant import Clairvoyant
from agents.oracles.replan_oracle import ReplanOracle
from agents.oracles.truth import Truth, family_bound, solve_truth

__all__ = [
    "Clairvoyant",
    "ReplanOracle",
    "Truth",
    "family_bound",
    "solve_truth",
]
