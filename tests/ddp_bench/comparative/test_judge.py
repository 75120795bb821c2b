"""What is compared and counted, without a process."""

import math

import pytest

pytest.importorskip("torch")

import torch
from helpers import comparative_adapters

from ddp_bench.comparative import (
    ENTRIES,
    ComparativeSettings,
    bootstrap_interval,
    disagreement,
    global_losses,
)
from ddp_bench.comparative.frameworks import Task, lines_of
from ddp_bench.comparative.frameworks.pytorch import Alone, DataParallel, Pipeline
from ddp_bench.comparative.outcome import Outcome
from ddp_bench.comparative.page import WORDS, page
from ddp_bench.comparative.settings import MODELS
from ddp_bench.errors import ConfigError
from ddp_bench.toolbox import SHAPES


def test_the_global_loss_is_the_mean_of_ranks_that_have_one():
    assert global_losses([[1.0, 2.0], [3.0, 4.0]]) == [2.0, 3.0]
    assert global_losses([[None, None], [3.0, 4.0]]) == [3.0, 4.0]
    with pytest.raises(ValueError, match="step 1"):
        global_losses([[1.0, None], [1.0, None]])


def test_losses_are_equal_within_the_tolerance():
    assert disagreement([1.0, 2.0], [1.0, 2.0], 1e-5) == (0.0, None)
    error, wrong = disagreement([1.0, 2.00001], [1.0, 2.0], 1e-5)
    assert error == pytest.approx(5e-6, rel=1e-3) and wrong is None
    error, wrong = disagreement([1.0, 2.001, 3.0], [1.0, 2.0, 3.0], 1e-5)
    assert error == pytest.approx(5e-4, rel=1e-3) and "first at step 1" in wrong


def test_a_small_loss_is_held_against_one_nat():
    # Behind 140 steps megatron-core's two layouts of the same weights were so far apart.
    error, wrong = disagreement([0.0029566626], [0.0029566935], 1e-5)
    assert error == pytest.approx(3.09e-8) and wrong is None
    assert disagreement([0.01], [0.02], 1e-5)[1] is not None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_never_agrees(bad):
    assert disagreement([1.0, bad], [1.0, bad], 0.1) == (None, f"the loss of step 1 is {bad}")
    said = f"the reference's loss of step 0 is {bad}"
    assert disagreement([1.0, 1.0], [bad, 1.0], 0.1) == (None, said)


def test_the_interval_holds_the_median_and_repeats():
    values = [9.0, 10.0, 10.5, 11.0, 30.0]
    low, high = bootstrap_interval(values)
    assert 9.0 <= low <= 10.5 <= high <= 30.0 and (low, high) == bootstrap_interval(values)
    assert bootstrap_interval([2.0] * 5) == (2.0, 2.0)


def test_lines_are_those_of_an_adapter_and_of_what_it_is_made_of():
    assert lines_of(comparative_adapters.Raises) == 3 + 8  # with those of Odd
    assert 0 < lines_of(Alone) < lines_of(DataParallel) < lines_of(Pipeline)


def test_a_task_is_the_same_everywhere():
    task = Task("tiny", 4, 8, seed=3)
    first, second = task.llama().state_dict(), task.llama().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    tokens, targets = task.batch(5)
    assert tokens.shape == (4, 8) and torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.equal(tokens, task.batch(5)[0]) and not torch.equal(tokens, task.batch(6)[0])


def test_the_models_are_those_of_the_toolbox():
    assert set(MODELS) == set(SHAPES)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"frameworks": "pytorch_ddp,fsdp"}, "frameworks: 'fsdp': allowed all, pytorch_ddp"),
        ({"frameworks": ""}, "frameworks: ''"),
        ({"rows": 6}, "rows is 6: allowed are multiples of 4"),
        ({"repeats": 4}, r"repeats is 4: allowed are integers in \[5"),
        ({"tolerance": 0.0}, "tolerance is 0.0"),
        ({"picotron": "absent"}, "picotron is 'absent': allowed is a checkout"),
    ],
)
def test_what_no_setting_may_be(given, said):
    with pytest.raises(ConfigError, match=said):
        ComparativeSettings(**given)


def test_frameworks_are_found_by_name():
    assert list(ComparativeSettings().entries()) == list(ENTRIES)
    found = ComparativeSettings(frameworks="pytorch_pp, own.module:Kind, pytorch_pp").entries()
    assert list(found) == ["pytorch_pp", "own.module:Kind"]
    assert found["own.module:Kind"].of == "own.module:Kind"


def test_moves_lead_to_entries_or_say_why_not():
    for entry in ENTRIES.values():
        assert (entry.moves_to in ENTRIES) != (entry.why_no_move is not None)


def outcomes():
    timed = Outcome(ENTRIES["pytorch_ddp"], losses=[2.0], loss_error=1e-8, losses_equal=True)
    timed.seconds, timed.starts, timed.lines = [1.0, 2.0, 1.0, 1.0, 1.0], [3.0], 30
    timed.rss = timed.imported = [10**8, 2 * 10**8]
    wrong = Outcome(ENTRIES["pytorch_pp"], "losses disagree: a|b", [2.0], 0.5, False, [1.0])
    return {"timed": timed, "wrong": wrong, "absent": Outcome(ENTRIES["pytorch_pp"], "no module")}


def test_only_equal_losses_are_timed():
    rows = {name: one.row(10) for name, one in outcomes().items()}
    assert rows["timed"]["steps_per_s"] == 10 and rows["timed"]["ran"] is True
    assert rows["timed"]["ci95"][0] <= 10 <= rows["timed"]["ci95"][1]
    assert (rows["wrong"]["ran"], rows["wrong"]["steps_per_s"]) == (True, None)
    assert (rows["absent"]["ran"], rows["absent"]["losses_equal"]) == (False, None)
    assert rows["absent"]["why_not"] == "no module"


def test_both_pages_say_the_same_numbers():
    rows = {name: one.row(10) for name, one in outcomes().items()}
    pages = {
        language: page(ComparativeSettings(), {"frameworks": rows}, language)
        for language in ("en", "zh")
    }
    assert not any("[[" in text for text in pages.values())
    tables = {
        language: [line for line in text.splitlines() if line.startswith("|")]
        for language, text in pages.items()
    }
    for english, chinese in zip(tables["en"], tables["zh"], strict=True):
        for word in sorted(WORDS, key=len, reverse=True):
            english = "|".join(
                f" {WORDS[word]} " if cell.strip() == word else cell for cell in english.split("|")
            )
        assert english == chinese
    assert "a\\|b" in pages["en"] and "| absent | not run | no module |" in pages["en"]
    assert "| wrong | not timed |" in pages["en"] and "| wrong | 未计时 |" in pages["zh"]
