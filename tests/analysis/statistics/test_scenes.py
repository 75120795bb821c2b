"""The mean over scenes, by hand and against resampling written plainly."""

import numpy as np
import pandas as pd
import pytest

from analysis.statistics import scene_means


def table(regrets, scenarios=None):
    """The scenarios table of schedulers without policy seeds; regrets by name."""
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "scheduler": name,
                    "policy_seed": np.nan,
                    "scenario": range(len(values)) if scenarios is None else scenarios,
                    "regret_pct": values,
                }
            )
            for name, values in regrets.items()
        ],
        ignore_index=True,
    )


def test_scenes_weigh_alike_whatever_their_number_of_scenarios():
    """By hand: means of 2 and 6 are 4, though four of six scenarios stand in the second scene."""
    scenes = {
        "small": table({"rule": [1.0, 3.0], "policy": [0.0, 0.0]}),
        "large": table({"rule": [6.0] * 4, "policy": [5.0] * 4}),
    }
    means = scene_means(scenes)
    assert means["rule"]["regret_pct"] == pytest.approx(4.0)
    assert means["policy"]["gain_over_pct"]["rule"][0] == pytest.approx((2.0 + 1.0) / 2)
    low, high = means["rule"]["regret_ci95_pct"]
    # Only the first scene's scenarios differ: its mean lies between 1 and 3.
    assert (1.0 + 6.0) / 2 <= low < 4.0 < high <= (3.0 + 6.0) / 2
    assert means["rule"]["gain_over_pct"]["policy"][0] == pytest.approx(-1.5)


def test_scenarios_of_one_number_are_drawn_together():
    """Two scenes that are the same know no more than one; two that cancel have no spread."""
    rng = np.random.default_rng(3)
    values = rng.gamma(2.0, 2.0, 60)
    one = scene_means({"a": table({"rule": values})})["rule"]["regret_ci95_pct"]
    twice = scene_means({s: table({"rule": values}) for s in "ab"})["rule"]["regret_ci95_pct"]
    assert twice == pytest.approx(one)
    opposite = {"a": table({"rule": values}), "b": table({"rule": 10.0 - values})}
    assert scene_means(opposite)["rule"]["regret_ci95_pct"] == pytest.approx([5.0, 5.0])


def test_the_interval_is_that_of_plain_resampling():
    rng = np.random.default_rng(4)
    a, b = rng.gamma(2.0, 2.0, 50), rng.gamma(1.0, 3.0, 50)
    low, high = scene_means({"a": table({"rule": a}), "b": table({"rule": b})})["rule"][
        "regret_ci95_pct"
    ]
    rows = rng.integers(50, size=(20_000, 50))
    plain = np.quantile((a[rows].mean(axis=1) + b[rows].mean(axis=1)) / 2, [0.025, 0.975])
    assert [low, high] == pytest.approx(plain, abs=0.05)


def test_who_is_not_known_everywhere_has_no_mean():
    scenes = {
        "a": table({"rule": [1.0, 2.0], "planner": [1.0, 2.0], "stuck": [1.0, np.nan]}),
        "b": table({"rule": [1.0, 2.0], "stuck": [1.0, 1.0]}),
    }
    assert list(scene_means(scenes)) == ["rule"]
    assert scene_means({}) == {}


def test_scenes_may_lack_scenarios_of_others():
    """By hand: scenarios 0 and 5 of one scene, 5 alone of the other."""
    scenes = {
        "a": table({"rule": [2.0, 4.0]}, [0, 5]),
        "b": table({"rule": [7.0]}, [5]),
    }
    assert scene_means(scenes)["rule"]["regret_pct"] == pytest.approx((3.0 + 7.0) / 2)
