"""Figures of merit on hand-made predictions."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers.measured_runs import made_run

from jaxsim.calibration.measured import GIB, predict_runs, published_split_gib, run_arrays
from jaxsim.calibration.validation import Prediction, merit, predict
from jaxsim.cluster.efficiency import prior_calibration
from jaxsim.workload.workload import ModelConfig

SMALL, LARGE = made_run().model, ModelConfig(32, 4096, 32, 32, 16384, 2, 51200, True)


def prediction(step_s, measured_s, memory_gib=1.0, split=(1.0, 1.0), fits=True, **changes):
    run = made_run(**{"step_s": measured_s, "peak_memory_gib": None, **changes})
    return Prediction(run, step_s, memory_gib, split, fits)


def by_hand():
    """Three plans for one model and two for another, with times; and one with memory only."""
    return [
        prediction(1.1, 1.0),
        prediction(1.0, 2.0, tp=8, dp=1),
        prediction(3.0, 4.0, tp=1, dp=8),
        prediction(20.0, 10.0, model=LARGE, fits=False),
        prediction(10.0, 15.0, model=LARGE, tp=8, dp=1),
        # Said not to fit as well, but nobody says that it ran.
        prediction(
            9.9, None, 44.0, (9.0, 7.0), False, peak_memory_gib=40.0, state_gib=10.0, seq=512
        ),
    ]


def test_merit_by_hand():
    got = merit(by_hand())
    errors = np.array([0.1, -0.5, -0.25, 1.0, 10 / 15 - 1])
    expected = {
        "n": 5,
        "mape_pct": 100 * np.abs(errors).mean(),
        "median_ape_pct": 100 / 3,
        "bias_pct": 100 * errors.mean(),
        # One of three pairs is wrong (tau 1/3, three pairs); the only pair is wrong (tau -1).
        "kendall_tau": (3 * (1 / 3) - 1) / 4,
        # Chosen by prediction: 2.0 where 1.0 was to be had, 15 where 10 was.
        "choice_regret_pct": 100 * (1.0 + 0.5) / 2,
        "memory_mape_pct": 100 * (0.1 + 0.1) / 2,
        "unfit": 1,
    }
    assert got == pytest.approx(expected)


def test_perfect_predictions():
    got = merit([p._replace(step_s=p.run.step_s or 1.0) for p in by_hand()[:5]])
    zero = ("mape_pct", "median_ape_pct", "bias_pct", "choice_regret_pct")
    assert all(got[name] == 0.0 for name in zero)
    assert got["kendall_tau"] == pytest.approx(1.0) and got["memory_mape_pct"] is None


def test_merit_of_nothing_is_none():
    assert merit([]) == {**dict.fromkeys(merit(by_hand())), "n": 0, "unfit": 0}
    memory_only = merit(by_hand()[5:])
    assert memory_only["n"] == 0 and memory_only["mape_pct"] is None
    assert memory_only["memory_mape_pct"] == pytest.approx(10.0)


def test_runs_that_differ_in_more_than_the_plan_are_no_choice():
    one, two = prediction(1.0, 2.0), prediction(2.0, 1.0, global_batch=128)
    got = merit([one, two])
    assert got["choice_regret_pct"] is None
    assert got["kendall_tau"] == pytest.approx(-1.0), "but they are of one model"


def test_ties_tell_nothing_of_ranks():
    assert merit([prediction(1.0, 2.0), prediction(1.0, 3.0)])["kendall_tau"] is None


def test_each_machine_is_predicted_by_its_own_calibration():
    runs = [made_run(gpu=g, tp=t, dp=8 // t) for t in (1, 4) for g in ("H100-80GB", "A100-80GB")]
    slow = prior_calibration().replace(step_fixed_s=jnp.float32(5.0))
    mine = {"A100-80GB": slow, "H100-80GB": prior_calibration()}
    stacks = set()

    def calibration_of(gpu, stack):
        stacks.add((gpu, stack))
        return mine[gpu]

    runs[2] = dataclasses.replace(runs[2], stack="llm-foundry")
    found = predict(runs, calibration_of)
    pooled = {("H100-80GB", "pooled"), ("A100-80GB", "pooled")}
    assert stacks == {*pooled, ("H100-80GB", "llm-foundry")}
    assert [p.run for p in found] == runs
    for p in found:
        cost = predict_runs(run_arrays([p.run]), mine[p.run.gpu])
        np.testing.assert_allclose(p.step_s, cost.total_s[0], rtol=1e-6)
        np.testing.assert_allclose(p.memory_gib, cost.memory_gb[0, 0] * 1e9 / GIB, rtol=1e-6)
        assert p.fits == bool(cost.fits[0])
        split = published_split_gib([p.run], mine[p.run.gpu])[0]
        np.testing.assert_allclose(p.split_gib, split, rtol=1e-6)
        assert (p.step_s > 5.0) == (p.run.gpu == "A100-80GB")
        np.testing.assert_allclose(p.step_error, p.step_s / 1.5 - 1)
