"""Pictures of scoreboards: what is drawn is what the tables say, and what is missing is said."""

import matplotlib.text
import numpy as np
import pandas as pd
import pytest

from analysis.figures.scoreboard import KPI_COLUMNS, SCENE_COLUMNS, key_figures, suite_regrets


def kpi_rows(scheduler, shift=0.0):
    rows = [
        ("training time", None, "best_static", 30 + shift, 26, 34, 25, "%", 40),
        ("training time", None, "single_domain", 50 + shift, 46, 54, 25, "%", 60),
        ("WAN cost", "GB", "zero", np.nan, np.nan, np.nan, 30, "%", np.nan),
        ("decision latency", "upper", None, 2.0, 1.0, 3.0, 1000, "ms", np.nan),
        ("decision latency", "lower", None, 2.0, 1.0, 3.0, 100, "ms", np.nan),
        ("hierarchical response", None, None, 0.02, 0.01, 0.03, 2.0, "s", np.nan),
    ]
    return pd.DataFrame([(scheduler, *row, "pass") for row in rows], columns=list(KPI_COLUMNS))


def lines_at(axes, x):
    return [line for line in axes.lines if len(line.get_xdata()) and line.get_xdata()[0] == x]


def test_each_kpi_has_a_panel_with_a_row_for_each_rival_and_its_target():
    figure = key_figures(pd.concat([kpi_rows("hi_ppo"), kpi_rows("hysteresis", -9)]))
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_visible()}
    assert list(panels) == [
        "training time",
        "WAN cost",
        "decision latency",
        "hierarchical response",
    ]
    time = panels["training time"]
    assert [t.get_text() for t in time.get_yticklabels()] == ["best_static", "single_domain"]
    assert len(lines_at(time, 25)) == 4  # a target in each row, once for each scheduler
    assert len(lines_at(time, 40)) == 1 and len(lines_at(time, 60)) == 1  # the best possible
    assert lines_at(time, 30) and lines_at(time, 21)  # both schedulers
    assert time.get_xlabel() == "time saved [%]" and time.get_xscale() == "linear"
    assert panels["decision latency"].get_xscale() == "log"
    texts = [t.get_text() for t in panels["WAN cost"].findobj(matplotlib.text.Annotation)]
    assert texts == ["not measured"]
    legend = [t.get_text() for t in figure.legends[0].get_texts()]
    assert legend == ["hi_ppo", "hysteresis", "best possible", "target"]


def test_three_scoreboards_are_too_many():
    with pytest.raises(ValueError, match="at most 2"):
        key_figures(pd.concat([kpi_rows(name) for name in "abc"]))


def test_each_scene_has_a_panel_and_schedulers_keep_their_row():
    frame = pd.DataFrame(
        [
            ("calm", "clairvoyant", 0, 0.0, 0.0, 0.0, 1.0, 8),
            ("calm", "hysteresis", 5, 4.0, 3.0, 6.0, 5.0, 8),
            ("storm", "clairvoyant", 0, 0.0, 0.0, 0.0, 1.0, 8),
            ("storm", "hi_ppo", 3, 2.0, 1.0, 3.0, 5.0, 8),
            ("storm", "hysteresis", 9, 8.0, 7.0, 9.0, 9.0, 8),
            ("stuck", "hi_ppo", np.nan, np.nan, np.nan, np.nan, np.nan, 0),
        ],
        columns=list(SCENE_COLUMNS),
    )
    figure = suite_regrets(frame, ["hi_ppo"])
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["calm", "storm", "stuck"]
    order = [t.get_text() for t in panels[0].get_yticklabels()]
    assert order == ["clairvoyant", "hi_ppo", "hysteresis"]  # by mean regret
    drawn = [{(line.get_xdata()[0], line.get_ydata()[0]) for line in p.lines} for p in panels]
    assert (4.0, 2) in drawn[0] and {(2.0, 1), (8.0, 2)} <= drawn[1]
    assert all(x == 0 for x, _ in drawn[2])  # the line at zero alone
