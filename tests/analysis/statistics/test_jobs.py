"""Many jobs in numbers, by hand."""

import pandas as pd
import pytest

from analysis.statistics.jobs import _JOB_COLUMNS, _RUN_COLUMNS, jobs_summary


def job(scheduler, scenario, jct, finished=1):
    columns = dict.fromkeys((*_JOB_COLUMNS, *_RUN_COLUMNS), 1.0)
    times = {"jct_s": 100.0 * jct, "jct_normalised": jct, "makespan_s": 500.0}
    key = {"scheduler": scheduler, "policy_seed": float("nan"), "scenario": scenario}
    return {**columns, **times, **key, "finished": finished}


JOBS = pd.DataFrame(
    [
        *(job("mast", s, 2.0) for s in (0, 1)),
        *(job("mast", s, 4.0, finished=0) for s in (0, 1)),
        *(job("hysteresis", s, 1.0) for s in (0, 1)),
        *(job("hysteresis", s, 2.0, finished=s) for s in (0, 1)),
    ]
)
DECISIONS = pd.DataFrame(
    {
        "scheduler": ["mast", "hysteresis"],
        "decision_ms_p50": [1.5, 2.5],
        "decision_ms_p99": [3.0, 5.0],
    }
)


def test_jobs_are_averaged_within_a_scenario_and_the_best_is_who_completes_them_soonest():
    found = jobs_summary(JOBS, DECISIONS)
    assert found["best"] == "hysteresis"
    mast, best = (found["schedulers"][n] for n in ("mast", "hysteresis"))
    assert mast["jobs"]["jct_mean_s"] == pytest.approx(300.0)
    assert best["jobs"]["jct_mean_s"] == pytest.approx(150.0)
    assert mast["jobs"]["behind_best"] == pytest.approx(1.5)
    assert (mast["jobs"]["unfinished"], best["jobs"]["unfinished"]) == (1.0, 0.5)
    assert mast["decision_ms_p50"] == 1.5 and best["decision_ms_p50"] == 2.5


def test_decisions_that_nobody_timed_are_missing():
    found = jobs_summary(JOBS, None)["schedulers"]["mast"]
    assert found["decision_ms_p50"] is None
