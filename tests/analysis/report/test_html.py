"""The HTML report: one file, nothing from outside, tooltips that say the data of the figure."""

import base64
import re
import sys

import numpy as np
import pandas as pd
import pytest
from helpers import headless, synthetic_runs
from matplotlib.figure import Figure

from analysis import figures
from analysis.records import RecordError
from analysis.report import html, write_report


def drawn():
    """Every kind of mark, at known places."""
    figure = Figure(figsize=(4, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([1.0, 2.0], [3.0, 5.0], label="line")
    axes.axhline(4.0)  # a guide, no datum
    axes.bar([1.0], [2.0], width=0.5, label="bar")
    axes.hlines([4.5], [1.0], [2.0], label="span")
    axes.set_yticks([3.0, 5.0], ["three", "five"])
    axes.set(xlabel="x [s]", ylabel="name", title="panel")
    return figure


def test_marks_are_the_data_that_were_drawn():
    table = figures.marks(drawn())
    points = table[table["mark"] == "point"]
    assert points[["x", "y", "series"]].to_numpy().tolist() == [
        [1.0, 3.0, "line"],
        [2.0, 5.0, "line"],
    ]
    assert points["y_name"].tolist() == ["three", "five"]
    bar = table[table["mark"] == "bar"].iloc[0]
    assert (bar["x"], bar["x_to"], bar["y"], bar["y_to"]) == (0.75, 1.25, 0.0, 2.0)
    span = table[table["mark"] == "interval"].iloc[0]
    assert (span["x"], span["x_to"], span["y"]) == (1.0, 2.0, 4.5)
    assert len(table) == 4 and set(table["x_axis"]) == {"x [s]"}


def test_places_are_those_of_the_saved_picture(tmp_path):
    figure = Figure(figsize=(4, 3))
    axes = figure.add_axes((0.25, 0.5, 0.5, 0.25))
    axes.plot([0.0, 1.0], [0.0, 1.0])
    axes.set(xlim=(0, 1), ylim=(0, 1))
    table = figures.marks(figure)
    figures.save(figure, tmp_path / "one.png")
    assert np.allclose(figures.places(figure, table), [[0.25, 0.5], [0.75, 0.75]])


def test_cells_of_a_map_carry_their_values():
    figure = Figure()
    figure.add_subplot().imshow(np.array([[1.0, np.nan], [3.0, 4.0]]))
    table = figures.marks(figure)
    assert table[["x", "y", "value"]].to_numpy().tolist() == [[0, 0, 1], [0, 1, 3], [1, 1, 4]]


def test_a_missing_package_is_said_before_anything_is_written(tmp_path, monkeypatch):
    folder = synthetic_runs.bench_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(RecordError, match=r"hippo-sched\[html\]"):
        write_report([folder], as_html=True)
    assert not list(folder.glob("report*"))


@pytest.fixture(scope="module", params=["en", "zh"])
def page(request, tmp_path_factory):
    pytest.importorskip("plotly", reason="plotly is not installed")
    folder = tmp_path_factory.mktemp(request.param) / "run"
    synthetic_runs.evaluate_run(folder, count=6, steps=12)
    return write_report([folder], request.param, as_html=True)


@pytest.mark.nightly
def test_the_file_asks_for_nothing_and_holds_pictures_and_data(page):
    text = page.read_text()
    assert (
        "default-src 'none'" in text and 'src="figures' not in text and 'href="figures' not in text
    )
    body = text.split("</head>")[1]
    assert not re.search(r"(?:src|href)=.(?:https?:)?//", body)
    files = dict(re.findall(r'href="data:text/csv;base64,([^"]*)" download="([^"]*)"', text))
    assert len(files) == 4
    for data, name in files.items():
        beside = page.parent / "figures" / name
        assert base64.b64decode(data) == beside.read_bytes()
        assert len(pd.read_csv(beside)) > 0


@pytest.mark.nightly
@pytest.mark.skipif(headless.browser() is None, reason="no Chromium is installed")
def test_a_browser_opens_it_without_an_error(page, tmp_path):
    document, logged = headless.opened(page, tmp_path)
    assert logged == []
    assert document.count('class="main-svg"') >= 4  # plotly drew over every picture


def test_tooltips_say_names_values_and_units():
    table = figures.marks(drawn())
    said = html.tooltips(table)
    assert "<b>line</b><br>x [s]: 1<br>name: three" in said
    assert any("x [s]: 1 … 2" in text for text in said)
