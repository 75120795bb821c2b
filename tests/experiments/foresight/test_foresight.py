"""The table of re-planners: paired by scenario, by hand."""

import numpy as np
import pandas as pd
import pytest

from experiments.foresight.config import ForesightConfig
from experiments.foresight.table import markdown, settings_of, summarised


def frame():
    regret = {
        "hysteresis": [6.0, 2.0, np.nan, 4.0],
        "rollout M=4 H=8": [3.0, 1.0, np.nan, 2.0],
        "rollout M=8 H=8": [4.0, 2.0, np.nan, 3.0],
    }
    parts = [
        pd.DataFrame(
            {
                "scheduler": name,
                "scenario": range(4),
                "regret_pct": values,
                "decision_ms_p50": 1.5,
                "decision_ms_p99": 2.0,
            }
        )
        for name, values in regret.items()
    ]
    return pd.concat(parts, ignore_index=True)


def test_rows_are_means_over_scenarios_in_which_something_runs():
    rows = {row["scheduler"]: row for row in summarised(frame(), "ou")}
    assert rows["hysteresis"]["n"] == 3 and rows["hysteresis"]["regret_pct"] == pytest.approx(4.0)
    assert rows["hysteresis"]["gain_pct"] == 0.0
    best = rows["rollout M=4 H=8"]
    assert best["regret_pct"] == pytest.approx(2.0) and best["gain_pct"] == pytest.approx(2.0)
    assert 1.0 <= best["gain_lo"] <= 2.0 <= best["gain_hi"] <= 3.0


def test_the_text_says_what_of_the_distance_is_foresight():
    text = markdown(summarised(frame(), "ou"))
    assert "| ou | rollout M=4 H=8 | 2.00 |" in text
    assert "of hysteresis' 4.00 % rollout M=4 H=8 leaves 2.00 %: at most 50 %" in text
    nothing = frame().assign(regret_pct=np.nan)
    assert "| ou | hysteresis | - |" in markdown(summarised(nothing, "ou"))


def test_settings_are_those_of_evaluations_and_nonsense_is_refused():
    settings = settings_of(ForesightConfig(load_share=0.5, steps=16), "heavy")
    assert (settings.jitter, settings.load_share, settings.load_swing) == ("heavy", 0.5, 0.2)
    assert settings.horizon == 16 and settings.base_spread == 0.25
    assert settings_of(ForesightConfig(), "ou").load_swing == 0.0
    for wrong in ({"futures": []}, {"horizons": [0]}, {"load_share": 2.0}, {"seeds": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ForesightConfig(**wrong)
