"""What never changes is chosen over the states to be expected: against every row, played."""

import jax.numpy as jnp
import numpy as np
import pytest

from analysis.statistics import bootstrap_interval
from experiments.common import from_mapping
from experiments.evaluate.config import EvaluateConfig
from experiments.evaluate.evaluation import Evaluation

SCENARIOS = 16
HALF_HELD = {"load_share": 0.5, "load_swing": 0.2}


def progress(evaluator, row=None):
    """[S] of best_static, or of one row of the table in its place."""
    static = evaluator.named("best_static")
    if row is not None:
        only = np.arange(evaluator.world.table.size) == row
        static = static.replace(worth=jnp.asarray(np.where(only, 1.0, 1e-9), jnp.float32))
    return np.asarray(evaluator.achieved(evaluator.play(static)[0]), np.float64)


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
    asked = {"allow": allow, "jitter": jitter, "scenario": scenario, "tuning_scenarios": 0}
    config = from_mapping(EvaluateConfig, {**asked, "schedulers": "best_static"}, "test")
    evaluation = Evaluation(config)
    train, test = (evaluation.evaluator(SCENARIOS, split) for split in ("train", "test"))
    rows = np.flatnonzero(np.asarray(train.world.table.mask))
    found = max(rows, key=lambda row: progress(train, row).sum())
    gain_pct = 100.0 * (progress(test, found) / progress(test) - 1.0)
    low = bootstrap_interval(gain_pct)["lo"]
    assert low <= 0.0, (found, gain_pct.mean())
