"""Gains and effects of a sweep, on numbers made by hand."""

import numpy as np
import pandas as pd
import pytest

from analysis.statistics import sweep

FACTORS = ("speed", "load")
GAIN_PCT = {(1, 0): 10.0, (1, 1): 30.0, (2, 0): 50.0, (2, 1): 90.0}  # of ours at each point
BY_SCENARIO = (-4.0, 0.0, 4.0)  # added in each of three scenarios


def rows(spread=BY_SCENARIO):
    """A grid of four points and three scenarios: the rival achieves 100, we `GAIN_PCT` more."""
    out = []
    for point, ((speed, load), gain) in enumerate(GAIN_PCT.items()):
        for scenario, more in enumerate(spread):
            for name, achieved in (("rival", 100.0), ("ours", 100.0 + gain + more)):
                head = {"point": point, "scenario": scenario, "scheduler": name}
                means = dict.fromkeys(sweep.MEANS, 2.0) | {"achieved": achieved}
                out.append(head | {"speed": speed, "load": load} | means)
    return sweep.with_gain(pd.DataFrame(out), "rival")


def found(frame, paired):
    return {e["factor"]: e for e in sweep.effects(frame, FACTORS, "rival", paired)}


def test_a_gain_is_over_the_reference_in_the_same_scenario():
    frame = rows()
    ours = frame[frame["scheduler"] == "ours"]
    wanted = [gain + more for gain in GAIN_PCT.values() for more in BY_SCENARIO]
    np.testing.assert_allclose(ours["gain_pct"], wanted)
    assert (frame.loc[frame["scheduler"] == "rival", "gain_pct"] == 0).all()
    means = sweep.point_means(frame, FACTORS)
    np.testing.assert_allclose(
        means.loc[means["scheduler"] == "ours", "gain_pct"], [10, 30, 50, 90]
    )


@pytest.mark.parametrize("paired", [True, False])
def test_an_effect_is_a_difference_of_means(paired):
    effects = found(rows(), paired)
    # (50 + 90) / 2 - (10 + 30) / 2, and (30 + 90) / 2 - (10 + 50) / 2.
    assert effects["speed"]["effect_pct"] == pytest.approx(50.0)
    assert effects["load"]["effect_pct"] == pytest.approx(30.0)
    assert (effects["speed"]["from_level"], effects["speed"]["to_level"]) == ("1", "2")


def test_in_a_grid_what_scenarios_share_is_no_doubt():
    # Every scenario adds the same at all points: its difference is the effect, exactly.
    for row, wanted in zip(found(rows(), paired=True).values(), (50.0, 30.0), strict=True):
        ends = row["effect_lo_pct"], row["effect_hi_pct"]
        assert ends == (pytest.approx(wanted), pytest.approx(wanted))


def test_of_points_that_were_drawn_the_interval_is_over_points():
    """Two points a side: means of two draws of 10 and 30, and of 50 and 90."""
    row = found(rows(spread=(0.0,)), paired=False)["speed"]
    assert (row["effect_lo_pct"], row["effect_hi_pct"]) == pytest.approx((50.0 - 30.0, 90.0 - 10.0))


def test_the_gain_of_a_scheduler_is_over_all_points():
    rival, ours = sweep.scheduler_gains(rows(), "rival", paired=True)
    assert ours["gain_pct"] == pytest.approx(45.0) and ours["scenarios"] == 12
    assert 41.0 <= ours["gain_lo_pct"] <= 45.0 <= ours["gain_hi_pct"] <= 49.0
    assert ours["step_s"] == 2.0 and rival["gain_pct"] is None


def test_of_drawn_points_the_mean_gain_varies_with_the_points():
    """One scenario a point says nothing over scenarios, and something over points."""
    one = rows()
    one = one[one["scenario"] == one["scenario"].min()]
    over_points = sweep.scheduler_gains(one, "rival", paired=False)[1]
    assert over_points["gain_lo_pct"] < over_points["gain_pct"] < over_points["gain_hi_pct"]


def test_what_nobody_measured_is_missing():
    frame = rows().assign(step_s=np.nan)
    assert sweep.scheduler_gains(frame, "rival", paired=True)[1]["step_s"] is None
    nothing = sweep.with_gain(rows().assign(achieved=0.0).drop(columns="gain_pct"), "rival")
    assert nothing["gain_pct"].isna().all()


def test_numbers_of_many_values_are_cut_at_their_median():
    values = pd.Series(np.arange(1.0, 11.0))
    level, order = sweep.levels(values)
    assert order == ["<= 5.5", "> 5.5"] and (level == order[0]).sum() == 5
    few, order = sweep.levels(pd.Series([2.0, 1.0, 2.0]))
    assert order == ["1", "2"] and few.tolist() == ["2", "1", "2"]
