"""The figure of predictions beside real runs."""

import pandas as pd
import pytest

from analysis.figures import WAN_COLUMNS, save, wan_predictions


def runs():
    rows = [
        (condition, plan, plan, condition == "near", 1.0 + n, 1.1 + 0.9 * n)
        for condition in ("near", "far")
        for n, plan in enumerate(("rings", "pipeline"))
    ]
    return pd.DataFrame(rows, columns=list(WAN_COLUMNS))


def test_conditions_and_families_are_named_and_errors_have_their_place(tmp_path):
    figure = wan_predictions(runs())
    left, right = figure.axes
    assert [t.get_text() for t in right.get_yticklabels()] == ["near", "far"]
    assert {t.get_text() for t in figure.legends[0].get_texts()} == {"rings", "pipeline"}
    drawn = [tuple(line.get_xdata()) for line in right.lines if len(line.get_xdata()) == 1]
    expected = [100 * (1.0 / 1.1 - 1), 0.0]
    assert sorted({round(x[0], 6) for x in drawn}) == pytest.approx(sorted(expected))
    assert left.get_xlim() == left.get_ylim()
    assert save(figure, tmp_path / "a.png").stat().st_size > 5000


def test_an_empty_table_is_refused():
    with pytest.raises(ValueError, match="no runs"):
        wan_predictions(runs().iloc[:0])
