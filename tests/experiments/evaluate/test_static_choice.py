"""What never changes is chosen over the states to be expected: against every row, played; and planners
against every row of their own."""

import jax.numpy as jnp
import numpy as np
import pytest

from analysis.statistics import bootstrap_interval
from experiments.common import from_mapping
from experiments.evaluate.config import EvaluateConfig
from experiments.evaluate.evaluation import Evaluation

SCENARIOS = 16
HALF_HELD = {"load_share": 0.5, "load_swing": 0.2}


def progress(evaluator, row=None, name="best_static"):
    """[S] of a scheduler, or of a plan that never changes in its place: one row of the table, with the
    lower choices that the scheduler may take."""
    scheduler = evaluator.named(name)
    if row is not None:
        only = np.arange(evaluator.world.table.size) == row
        worth = jnp.asarray(np.where(only, 1.0, 1e-9), jnp.float32)
        candidates = scheduler.candidates
        scheduler = evaluator.named("best_static").replace(worth=worth, candidates=candidates)
    return np.asarray(evaluator.achieved(evaluator.play(scheduler)[0]), np.float64)


def evaluators(**asked):
    """Of training and of test scenarios."""
    evaluation = Evaluation(from_mapping(EvaluateConfig, {**asked, "tuning_scenarios": 0}, "test"))
    return [evaluation.evaluator(SCENARIOS, split) for split in ("train", "test")]


def behind_pct(train, test, name, rows):
    """The row that did best in training scenarios, and [S] what the scheduler lacks of it."""
    found = max(rows, key=lambda row: progress(train, row, name).sum())
    return found, 100.0 * (progress(test, found, name) / progress(test, name=name) - 1.0)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("allow", "jitter", "scenario"),
    [
        ("synchronous", "uniform", HALF_HELD),
        ("any", "uniform", HALF_HELD),
        ("synchronous", "ou", {}),
        ("synchronous", "outage", {}),
    ],
    ids=["load", "load, any plan", "drift", "outages"],
)
def test_no_row_found_by_playing_all_is_better(allow, jitter, scenario):
    asked = {"allow": allow, "jitter": jitter, "scenario": scenario}
    train, test = evaluators(**asked, schedulers="best_static")
    rows = np.flatnonzero(np.asarray(train.world.table.mask))
    found, gain_pct = behind_pct(train, test, "best_static", rows)
    assert bootstrap_interval(gain_pct)["lo"] <= 0.0, (found, gain_pct.mean())


PLANNERS = ("megatron", "zero", "alpa", "crosspipe", "dt_fm", "hyperion", "sailor")


@pytest.fixture(scope="module")
def planners():
    """The embedded cluster, of which local jobs hold 50 % +- 20 %, and who brings plans of his own."""
    names = ",".join((*PLANNERS, "best_static"))
    return evaluators(jitter="uniform", scenario=HALF_HELD, schedulers=names)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PLANNERS)
def test_with_half_of_the_gpus_taken_planners_deploy_the_best_of_their_rows(planners, name):
    """Its own choice, against each of its plans for domains and parts of them, played. Who plans
    again is not behind that either."""
    train, test = planners
    rows = np.flatnonzero(np.asarray(train.named(name).candidates).any(axis=1))
    assert len(rows) > 1
    found, gain_pct = behind_pct(train, test, name, rows)
    assert bootstrap_interval(gain_pct)["lo"] <= 0.0, (found, gain_pct.mean())
