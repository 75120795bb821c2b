"""The report in Chinese says the same numbers, and leaves no sentence of the catalog's in English."""

import re
from collections import Counter

import pandas as pd
import pytest
import yaml
from helpers import synthetic_ddp, synthetic_kinds, synthetic_runs, synthetic_validation
from helpers.synthetic_ddp import made_up
from markdown_it import MarkdownIt

from analysis import report
from analysis.figures import FIDELITY_COLUMNS
from analysis.records import RecordError, RunWriter, load
from analysis.report import language
from analysis.report.report import _compose, _pages

NUMBER = re.compile(r"\d[\d,]*\.?\d*")
CATALOG = language._CATALOGS / "sentences.zh.yaml"


def numbers(text):
    return Counter(NUMBER.findall(text))


def fidelity_run(out):
    rows = [("latency", "1f1b", 0.1, 1.01), ("latency", "1f1b", 1.0, 0.98)]
    table = pd.DataFrame(rows, columns=list(FIDELITY_COLUMNS))
    with RunWriter.create("fidelity", {"samples": 2, "micro_batches": 4}, 0, out) as writer:
        writer.write_table("ratios", table)
        writer.finish({})
    return out


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """The English page of all kinds of run, whose figures were made but not painted."""
    root = tmp_path_factory.mktemp("mixture")
    folders = [
        synthetic_runs.evaluate_run(root / "evaluation", count=6, steps=12),
        synthetic_runs.train_run(root / "training", updates=8),
        synthetic_runs.train_run(root / "again", updates=8),
        synthetic_validation.validate_run(root / "validation"),
        synthetic_validation.calibrate_run(root / "calibration"),
        synthetic_runs.bench_run(root / "speed"),
        fidelity_run(root / "fidelity"),
        synthetic_kinds.kpi_run(root / "key figures"),
        synthetic_kinds.suite_run(root / "suite"),
        synthetic_kinds.sweep_run(root / "sweep"),
        synthetic_kinds.plan_run(root / "plan"),
        synthetic_kinds.study_run(root / "study"),
        synthetic_kinds.efficiency_run(root / "tokens"),
        synthetic_kinds.end_to_end_run(root / "end-to-end"),
        synthetic_ddp.write_run(root / "micro-batches", made_up(20), used={"notes": []}),
    ]
    notes, records = [], [load(folder) for folder in folders]
    return _compose(records, list(_pages(records, notes)), notes), folders


def test_both_languages_carry_the_same_numbers(mixture):
    english, _ = mixture
    chinese, _ = language.translated(english, "zh")
    assert sum(numbers(english).values()) > 500
    assert numbers(chinese) == numbers(english)


def test_nothing_stays_english_and_the_structure_stays(mixture):
    english, _ = mixture
    chinese, unknown = language.translated(english, "zh")
    assert unknown == []
    for mark in (r"^## ", r"^\| ", r"^!\[", r"^```", r"^- "):
        found = [len(re.findall(mark, text, re.MULTILINE)) for text in (english, chinese)]
        assert found[0] == found[1] > 0
    assert re.findall(r"```.*?```", chinese, re.S) == re.findall(r"```.*?```", english, re.S)


def test_every_section_names_the_run_folder_of_its_numbers(mixture):
    english, folders = mixture
    sections = re.split(r"^## ", english, flags=re.MULTILINE)[1:]
    told = [
        part for part in sections if not part.startswith(("Left out\n", "What was", "How", "Repro"))
    ]
    assert len(told) >= 10
    known = {f"Numbers from `{folder}`." for folder in folders}
    assert {part.strip().splitlines()[-1] for part in told} == known


def test_both_sides_of_the_catalog_hold_the_same_places_and_numbers():
    pairs = yaml.safe_load(CATALOG.read_text(encoding="utf-8"))
    for english, chinese in pairs.items():
        places = [sorted(re.findall(r"\{([a-z])\}", side)) for side in (english, chinese)]
        assert places[0] == places[1], english
        assert numbers(english) == numbers(chinese), english


def test_no_mark_of_emphasis_is_left_on_the_rendered_page(mixture):
    english, _ = mixture
    page = MarkdownIt("commonmark").enable("table").render(language.translated(english, "zh")[0])
    assert "**" not in re.sub(r"<pre>.*?</pre>", "", page, flags=re.S)


def test_a_sentence_that_the_catalog_lacks_stays_and_is_said():
    text, unknown = language.translated("The quick fox has 3 legs.", "zh")
    assert text.strip() == "The quick fox has 3 legs." and unknown == [text.strip()]


def test_a_report_says_how_many_sentences_stayed_english(tmp_path, monkeypatch, capsys):
    folder = synthetic_runs.bench_run(tmp_path / "run")
    report.write_report([folder], language="zh")
    assert capsys.readouterr().err == ""
    pairs = {k: v for k, v in language._pairs("zh").items() if k not in ("Benchmark", "Reproduce")}
    monkeypatch.setattr(language, "_pairs", lambda _: pairs)
    report.write_report([folder], language="zh")
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "report: 2 sentences without a form in 'zh': in English"


def test_another_language_is_refused(tmp_path):
    folder = synthetic_runs.bench_run(tmp_path / "run")
    with pytest.raises(RecordError, match="language 'fr'; allowed are en, zh"):
        report.write_report([folder], language="fr")
    assert not list(folder.glob("report*"))
