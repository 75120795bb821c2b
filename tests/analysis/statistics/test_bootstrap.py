"""Estimates and intervals: known answers, agreement with SciPy, and coverage on simulated data."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.statistics.bootstrap import (
    bootstrap_interval,
    iqm,
    paired_differences,
    scenario_matrix,
    seed_band,
)
from analysis.statistics.summary import (
    evaluation_summary,
    headroom_summary,
    paired_gains,
    with_headroom,
)


def rows(scheduler, values, policy_seed=np.nan, **columns):
    return pd.DataFrame(
        {
            "scheduler": scheduler,
            "policy_seed": policy_seed,
            "scenario": range(len(values)),
            "progress_rel": values,
            **columns,
        }
    )


# --- interquartile mean -------------------------------------------------------------------------


def test_iqm_known_answers():
    assert iqm([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1000.0]) == pytest.approx(3.5)
    assert iqm([1.0, 2.0, 6.0]) == pytest.approx(3.0)  # too few to cut: the mean
    np.testing.assert_allclose(iqm(np.array([[0, 1, 2, 9], [4, 4, 4, 4]])), [1.5, 4.0])
    np.testing.assert_allclose(iqm(np.array([[0, 4], [1, 4], [2, 4], [9, 4]]), axis=0), [1.5, 4.0])


# --- bootstrap ----------------------------------------------------------------------------------


def test_interval_of_a_constant_has_no_width():
    assert bootstrap_interval(np.full(9, 2.5)) == {"estimate": 2.5, "lo": 2.5, "hi": 2.5}


def test_interval_of_two_values_is_their_range():
    # The mean of a redraw of {0, 1} is 0, 1/2 or 1 with weights 1/4, 1/2, 1/4.
    assert bootstrap_interval([0.0, 1.0]) == {"estimate": 0.5, "lo": 0.0, "hi": 1.0}
    half = bootstrap_interval([0.0, 1.0], level=0.4)
    assert (half["lo"], half["hi"]) == (0.5, 0.5)


def test_interval_is_reproducible_and_depends_on_the_seed():
    x = np.random.default_rng(1).normal(size=30)
    assert bootstrap_interval(x) == bootstrap_interval(x)
    assert bootstrap_interval(x) != bootstrap_interval(x, seed=1)


@pytest.mark.parametrize("statistic", [np.mean, np.median, iqm])
def test_interval_agrees_with_scipy(statistic):
    x = np.random.default_rng(2).gamma(2.0, size=40)
    ours = bootstrap_interval(x, statistic)
    scipys = stats.bootstrap(
        (x,), statistic, method="percentile", n_resamples=10_000, rng=np.random.default_rng(5)
    ).confidence_interval
    assert ours["estimate"] == pytest.approx(float(statistic(x)))
    width = scipys.high - scipys.low
    assert abs(ours["lo"] - scipys.low) < 0.06 * width
    assert abs(ours["hi"] - scipys.high) < 0.06 * width


def test_interval_agrees_whatever_the_size_of_a_batch(monkeypatch):
    x = np.random.default_rng(3).normal(size=(20, 3))
    whole = bootstrap_interval(x, resamples=4000)
    monkeypatch.setattr("analysis.statistics.bootstrap._CELLS_AT_ONCE", 60 * 37)
    pieces = bootstrap_interval(x, resamples=4000)
    assert pieces["lo"] == pytest.approx(whole["lo"], abs=0.03)
    assert pieces["hi"] == pytest.approx(whole["hi"], abs=0.03)


def covered(draw, truth, repeats, **settings):
    hits = 0
    for i in range(repeats):
        interval = bootstrap_interval(draw(np.random.default_rng(i)), seed=i, **settings)
        hits += interval["lo"] <= truth <= interval["hi"]
    return hits / repeats


def test_interval_covers_the_true_mean_of_skewed_data():
    share = covered(lambda rng: rng.gamma(2.0, size=50), 2.0, repeats=500, resamples=500)
    assert 0.91 <= share <= 0.97


def test_crossed_interval_covers_where_treating_cells_as_independent_does_not():
    def draw(rng):  # scenario effect, policy-seed effect, noise; true mean 0
        return (
            rng.normal(size=(40, 1))
            + 0.5 * rng.normal(size=(1, 10))
            + 0.5 * rng.normal(size=(40, 10))
        )

    assert 0.88 <= covered(draw, 0.0, repeats=300, resamples=300) <= 0.98
    naive = covered(lambda rng: draw(rng).ravel(), 0.0, repeats=300, resamples=300)
    assert naive < 0.6


def test_a_single_row_has_no_interval():
    interval = bootstrap_interval([[1.0, 3.0]])
    assert interval["estimate"] == 2.0
    assert np.isnan([interval["lo"], interval["hi"]]).all()


@pytest.mark.parametrize(
    ("values", "settings"),
    [([], {}), ([1.0, np.nan], {}), (np.zeros((2, 2, 2)), {}), ([1.0, 2.0], {"level": 95})],
)
def test_interval_refuses_what_it_cannot_do(values, settings):
    with pytest.raises(ValueError):
        bootstrap_interval(values, **settings)


# --- pairing ------------------------------------------------------------------------------------


def test_paired_differences_pair_by_scenario_whatever_the_order():
    a = rows("a", [1.0, 2.0, 3.0]).sample(frac=1, random_state=0)
    frame = pd.concat([a, rows("b", [0.5, 1.0, 1.5])])
    difference = paired_differences(frame, "a", "b", "progress_rel")
    assert difference.iloc[:, 0].tolist() == [0.5, 1.0, 1.5]


def test_paired_differences_spread_a_scheduler_without_seeds_over_all_seeds():
    learned = [rows("a", [1.0, 2.0], 0), rows("a", [3.0, 4.0], 1)]
    frame = pd.concat([*learned, rows("b", [1.0, 1.0])])
    expected = np.array([[0.0, 2.0], [1.0, 3.0]])
    found = paired_differences(frame, "a", "b", "progress_rel")
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(paired_differences(frame, "b", "a", "progress_rel"), -expected)


def test_paired_differences_pair_two_learned_schedulers_seed_by_seed():
    frame = pd.concat([rows(s, [float(i), 2.0 * i], i) for s in "ab" for i in (0, 1)])
    assert (paired_differences(frame, "a", "b", "progress_rel") == 0).all(axis=None)
    other = pd.concat(
        [frame[frame["scheduler"] == "a"], rows("b", [1.0, 1.0], 7), rows("b", [1.0, 1.0], 8)]
    )
    with pytest.raises(ValueError, match="different policy seeds"):
        paired_differences(other, "a", "b", "progress_rel")


def test_pairing_refuses_other_scenarios_duplicates_holes_and_unknown_names():
    a, b = rows("a", [1.0, 2.0]), rows("b", [1.0, 2.0])
    with pytest.raises(ValueError, match=r"not run on the same scenarios: \[1\]"):
        paired_differences(pd.concat([a, b[:1]]), "a", "b", "progress_rel")
    with pytest.raises(ValueError, match="twice"):
        scenario_matrix(pd.concat([a, a]), "a", "progress_rel")
    with pytest.raises(ValueError, match="lacks 'progress_rel'"):
        scenario_matrix(
            pd.concat([rows("a", [1.0, 2.0], 0), rows("a", [1.0], 1)]), "a", "progress_rel"
        )
    with pytest.raises(ValueError, match="present are a"):
        scenario_matrix(a, "b", "progress_rel")


def test_pairing_finds_a_small_gain_that_unpaired_intervals_cannot():
    rng = np.random.default_rng(0)
    base = rng.uniform(0.5, 0.9, size=60)
    gain = 0.01 + 0.005 * rng.normal(size=60)
    frame = pd.concat([rows("a", base + gain), rows("b", base)])
    paired = paired_gains(frame, "a")["b"]
    assert paired["gain_pct"] == pytest.approx(100 * gain.mean())
    assert paired["ci95"][0] > 0
    a, b = (bootstrap_interval(scenario_matrix(frame, s, "progress_rel")) for s in "ab")
    assert a["lo"] < b["hi"]


# --- bands --------------------------------------------------------------------------------------


def test_seed_band_of_three_seeds_is_their_range_and_says_so():
    band = seed_band([[0.0, 1.0], [3.0, 1.0], [6.0, 4.0]])
    np.testing.assert_allclose(band.centre, [3.0, 2.0])
    np.testing.assert_allclose([band.lo, band.hi], [[0.0, 1.0], [6.0, 4.0]])
    assert band.label == "mean of 3 seeds, band: min to max"


def test_seed_band_of_many_seeds_is_a_bootstrap_of_the_iqm_and_says_so():
    values = np.random.default_rng(0).normal(size=(12, 5)) + np.arange(5)
    band = seed_band(values)
    np.testing.assert_allclose(band.centre, iqm(values, axis=0))
    assert (band.lo < band.centre).all() and (band.centre < band.hi).all()
    expected = bootstrap_interval(values[:, 2], iqm)
    assert band.hi[2] - band.lo[2] == pytest.approx(expected["hi"] - expected["lo"], rel=0.1)
    assert band.label == "interquartile mean of 12 seeds, band: 95 % bootstrap"


def test_seed_band_of_one_seed_claims_no_band():
    assert seed_band([[1.0, 2.0]]).label == "1 seed, no band"


# --- summary of an evaluation -------------------------------------------------------------------


def evaluation():
    from analysis.statistics.summary import SCENARIO_COLUMNS

    parts = [
        rows("clairvoyant", [1.0, 1.0, 1.0]),
        rows("hi_ppo", [0.9, 0.8, 1.0], 0),
        rows("hi_ppo", [0.9, 0.6, 1.0], 1),
    ]
    frame = pd.concat(parts, ignore_index=True)
    frame["headroom_pct"] = frame["scenario"].map({0: 5.0, 1: 3.0, 2: 1.0})
    frame["regret_pct"] = 100 * (1 - frame["progress_rel"])
    return frame.reindex(columns=SCENARIO_COLUMNS)


def test_summary_compares_only_scenarios_with_headroom_and_says_their_share():
    decisions = pd.DataFrame(
        {"scheduler": ["hi_ppo"], "decision_ms_p50": [0.2], "decision_ms_p99": [0.4]}
    )
    summary = evaluation_summary(evaluation(), decisions, 3.0, ["hi_ppo"])
    assert summary["headroom"] == {
        "threshold_pct": 3.0,
        "share_of_scenarios": 2 / 3,
        "n_scenarios": 3,
        "n_kept": 2,
    }
    hi_ppo = summary["schedulers"]["hi_ppo"]
    assert hi_ppo["regret_pct"] == pytest.approx(20.0)  # of 10, 20, 10, 40
    assert hi_ppo["regret_ci95_pct"][0] < 20.0 < hi_ppo["regret_ci95_pct"][1]
    # Clairvoyant does 100 where it does 80 on average: a quarter more.
    assert hi_ppo["headroom_pct"] == pytest.approx(25.0)
    assert summary["schedulers"]["clairvoyant"]["headroom_pct"] == 0.0
    assert hi_ppo["step_s"] is None  # never measured, never guessed
    assert (hi_ppo["decision_ms_p50"], hi_ppo["decision_ms_p99"]) == (0.2, 0.4)
    assert summary["schedulers"]["clairvoyant"]["decision_ms_p99"] is None
    assert summary["paired"]["hi_ppo"]["clairvoyant"]["gain_pct"] == pytest.approx(-20.0)


def test_summary_refuses_when_no_scenario_has_the_headroom():
    with pytest.raises(ValueError, match="no scenario has a headroom of at least 50"):
        evaluation_summary(evaluation(), None, 50.0)


def stuck(frame, scenarios):
    """The rows of scenarios in which nothing can run, as an evaluation records them."""
    columns = ["headroom_pct", "progress_rel", "regret_pct"]
    frame.loc[frame["scenario"].isin(scenarios), columns] = np.nan
    return frame


def test_scenarios_in_which_nothing_runs_are_counted_but_not_compared():
    summary = evaluation_summary(stuck(evaluation(), [1]), None, 0.0, ["hi_ppo"])
    assert summary["headroom"]["n_scenarios"] == 3 and summary["headroom"]["n_kept"] == 2
    assert summary["schedulers"]["hi_ppo"]["regret_pct"] == pytest.approx(5.0)  # of 10, 0, 10, 0
    assert summary["paired"]["hi_ppo"]["clairvoyant"]["gain_pct"] == pytest.approx(-5.0)


def test_where_nothing_runs_anywhere_every_measure_is_missing():
    summary = evaluation_summary(stuck(evaluation(), [0, 1, 2]), None, 0.0, ["hi_ppo"])
    assert summary["headroom"]["n_kept"] == 0 and summary["headroom"]["share_of_scenarios"] == 0
    for row in summary["schedulers"].values():
        assert row.pop("regret_ci95_pct") == row.pop("efficiency_band") == [None, None]
        assert all(gain == [None] * 3 for gain in row.pop("gain_over_pct").values())
        assert set(row.values()) == {None}
    assert summary["paired"]["hi_ppo"]["clairvoyant"] == {"gain_pct": None, "ci95": [None, None]}


def test_headroom_counts_scenarios_not_rows():
    frame = evaluation()
    assert headroom_summary(frame, 0.0)["n_scenarios"] == 3
    assert set(with_headroom(frame, 3.0)["scenario"]) == {0, 1}
    assert with_headroom(frame, None) is frame
