"""Notebooks run from top to bottom as plain Python, at small size; `make notebooks` runs them whole."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
CHEAP = ("dynamic_micro_batches",)  # no compiler takes part


def test_the_documentation_links_each():
    assert NOTEBOOKS
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for path in NOTEBOOKS:
        assert f"](../notebooks/{path.name})" in index, path.name


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_cells_in_percent_format(path):
    text = path.read_text(encoding="utf-8")
    assert "format_name: percent" in text and text.count("\n# %%") >= 5
    assert text.count("# %% [markdown]") >= 2


def run(path, monkeypatch, tmp_path):
    monkeypatch.setenv("HIPPO_NOTEBOOK_SIZE", "small")
    monkeypatch.chdir(tmp_path)
    return runpy.run_path(str(path))


def test_decided_counts_and_a_split_pool_shorten_the_slowest_rank(monkeypatch, tmp_path):
    (path,) = (path for path in NOTEBOOKS if path.stem in CHEAP)
    times = run(path, monkeypatch, tmp_path)["slowest"]
    means = [times[name].mean() for name in ("pool split", "counts decided", "same counts")]
    assert means == sorted(means) and means[0] > 0


@pytest.mark.nightly
@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem not in CHEAP], ids=lambda path: path.stem
)
def test_a_notebook_runs(path, monkeypatch, tmp_path):
    assert run(path, monkeypatch, tmp_path)["small"] is True
