"""Frameworks on real processes: equal losses, moves, and everything that can go wrong."""

import functools
import importlib.util
import json
import time

import pytest

pytest.importorskip("torch")

from helpers import toolbox_command

from analysis.records import load
from ddp_bench.comparative import ENTRIES, REFERENCE, Entry, Group, global_losses
from ddp_bench.comparative.frameworks import Task
from ddp_bench.comparative.moves import move_all
from ddp_bench.comparative.outcome import Outcome
from ddp_bench.toolbox import RanksFailed
from ddp_bench.toolbox.launch import ROOT
from experiments import comparative

TASK = Task("tiny", 4, 8)
ODD = "helpers.comparative_adapters:"


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Ranks find the tests' helpers."""
    monkeypatch.setenv("PYTHONPATH", toolbox_command.PATH)


run = functools.partial(toolbox_command.run, "comparative")
START_S = 180.0  # a framework that nobody imported since it was installed has much to read


def start(tmp_path, entry, timeout_s=START_S, name="one"):
    return Group(entry, TASK, timeout_s, tmp_path / name)


def losses(group, steps):
    first = [[one["loss"]] for one in group.ask("start")]
    rest = group.ask("losses", steps=steps - 1)
    return global_losses([a + b for a, b in zip(first, rest, strict=True)])


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Losses of one process alone."""
    with Group(REFERENCE, TASK, START_S, tmp_path_factory.mktemp("reference") / "one") as group:
        return losses(group, 5)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ENTRIES)
def test_losses_are_those_of_one_process(tmp_path, reference, name):
    entry = ENTRIES[name]
    if importlib.util.find_spec(entry.package.replace("-core", "")) is None:
        pytest.skip(f"{entry.package} is not installed")
    with start(tmp_path, entry) as group:
        assert losses(group, 5) == pytest.approx(reference, rel=1e-6)
        assert reference[4] < reference[0]  # the first batch comes round again
        assert len(group.ask("time", steps=2)) == 2 and min(group.ask("memory")) > 1e7


@pytest.mark.nightly
def test_the_adapter_of_picotron_trains_what_one_process_does(tmp_path, reference):
    """In a checkout that stands in for it: the names of its modules, weights and calls are its own."""
    settings = {"checkout": str(ROOT / "tests" / "helpers" / "picotron_checkout")}
    with start(tmp_path, Entry(ENTRIES["picotron_dp"].of, settings)) as group:
        assert losses(group, 5) == pytest.approx(reference, rel=1e-6)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        pytest.param("Dies", "rank 1: ended by SIGKILL", marks=pytest.mark.nightly),
        pytest.param(
            "HookRaises", "rank 1: ValueError: three is too many", marks=pytest.mark.nightly
        ),
        pytest.param("Raises", "rank 0: ValueError: three is too many", marks=pytest.mark.nightly),
    ],
)
def test_the_rank_that_failed_is_named(tmp_path, kind, said):
    with start(tmp_path, Entry(ODD + kind)) as group, pytest.raises(RanksFailed) as caught:
        losses(group, 5)
    assert str(caught.value) == said


@pytest.mark.nightly
def test_a_silent_rank_is_named_and_ended(tmp_path):
    with start(tmp_path, Entry(f"{ODD}Stalls")) as group:
        group.ask("losses", steps=2)
        group._timeout_s = 3.0
        begin = time.monotonic()
        with pytest.raises(RanksFailed, match=r"rank [01]: silent for 3 s"):
            group.ask("losses", steps=2)
    assert time.monotonic() - begin < 20
    assert all(process.returncode is not None for process in group._processes)


@pytest.mark.nightly
def test_a_state_that_was_moved_trains_on_alike(tmp_path):
    """And one that lost its optimizer state is noticed."""
    moved = {
        "whole": Outcome(Entry(ENTRIES["pytorch_fsdp2"].of, moves_to="part")),
        "part": Outcome(Entry(ENTRIES["pytorch_pp"].of, moves_to="lost")),
        "lost": Outcome(Entry(f"{ODD}Forgets", moves_to="gone")),
    }
    said = []
    with (
        start(tmp_path, moved["whole"].entry, name="a") as whole,
        start(tmp_path, moved["part"].entry, name="b") as part,
        start(tmp_path, moved["lost"].entry, name="c") as lost,
    ):
        groups = {"whole": whole, "part": part, "lost": lost}
        for group in groups.values():
            losses(group, 3)
        whole.ask("losses", steps=1)  # the others are a step behind
        alive = {name: (moved[name], group) for name, group in groups.items()}
        move_all(alive, moved, 1e-5, said.append)
    assert moved["whole"].move["losses_equal"] is True and moved["whole"].move["bytes"] > 1e5
    assert len(said) == 1 and said[0].startswith("whole -> part: ")
    assert "after the move losses disagree" in moved["part"].move["why_not"]
    assert moved["lost"].move["why_not"] == "gone: it is not among the frameworks"


@pytest.mark.nightly
def test_a_move_onto_a_full_disk_says_why_it_was_not_done(tmp_path, reference):
    outcomes = {
        "full": Outcome(Entry(f"{ODD}FullDisk", moves_to="other")),
        "other": Outcome(ENTRIES["pytorch_ddp"]),
    }
    with (
        start(tmp_path, outcomes["full"].entry, name="a") as full,
        start(tmp_path, outcomes["other"].entry, name="b") as other,
    ):
        losses(other, 3)
        losses(full, 1)
        alive = {"full": (outcomes["full"], full), "other": (outcomes["other"], other)}
        move_all(alive, outcomes, 1e-5, print)
        assert "File too large" in outcomes["full"].move["why_not"]
        # The other framework's ranks are as they were: their training goes on.
        later = global_losses(other.ask("losses", steps=2))
        assert later == pytest.approx(reference[3:], rel=1e-5)


@pytest.mark.nightly
def test_what_goes_wrong_is_reported_and_not_timed(tmp_path, monkeypatch):
    monkeypatch.setenv("STARTED", str(tmp_path))
    odd = ["NotFinite", "NotFiniteGradient", "StartsOnce", "Dies", "DiesLater", "Summed"]
    names = ["pytorch_ddp", "no_framework:Thing", "picotron_dp", *(ODD + kind for kind in odd)]
    small = ("--model", "tiny", "--rows", "4", "--length", "8", "--steps", "4", "--starts", "2")
    turns = ("--repeats", "5", "--timed_steps", "2", "--frameworks", ",".join(names))
    done = run(*small, *turns, "--out", tmp_path / "run", "--json", tmp_path / "result.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    rows = {name.removeprefix(ODD): row for name, row in result["frameworks"].items()}
    good = rows.pop("pytorch_ddp")
    assert good["ran"] and good["losses_equal"] and good["why_not"] is None
    assert good["ci95"][0] <= good["steps_per_s"] <= good["ci95"][1]
    assert len(good["turns_steps_per_s"]) == 5 and len(good["starts_s"]) == 2
    once = rows.pop("StartsOnce")
    assert once["ran"] and len(once["starts_s"]) == 1 and good["failed_starts"] == []
    (why,) = once["failed_starts"]
    assert why.endswith("ValueError: it has been started before")
    assert good["relayout"]["why_not"] == "pytorch_fsdp2: it is not among the frameworks"
    assert all(row["steps_per_s"] is None and row["ci95"] is None for row in rows.values())
    said = {name: (row["ran"], row["losses_equal"], row["why_not"]) for name, row in rows.items()}
    no_module = "ModuleNotFoundError: No module named 'no_framework'"
    assert said["no_framework:Thing"] == (False, None, no_module)
    assert said["picotron_dp"][:2] == (False, None) and "--picotron" in said["picotron_dp"][2]
    assert said["NotFinite"] == (True, False, "the loss of step 2 is nan")
    assert said["NotFiniteGradient"] == (True, False, "the loss of step 2 is nan")
    assert said["Dies"] == (False, None, "rank 1: ended by SIGKILL")
    assert said["DiesLater"] == (False, True, "rank 1: ended by SIGKILL")
    assert said["Summed"][:2] == (True, False) and "losses disagree" in said["Summed"][2]
    record = load(tmp_path / "run")
    assert record.run["status"] == "finished" and set(record.tables()) == {"losses", "turns"}
    for file in ("comparative.md", "comparative.zh.md", "logs/pytorch_ddp-rank1.txt"):
        assert (tmp_path / "run" / file).is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--frameworks", "fsdp"), "frameworks: 'fsdp': allowed all, pytorch_ddp"),
        (("--repeats", "4"), "repeats is 4: allowed are integers in [5, 10000]"),
        (("--picotron", "absent"), "picotron is 'absent': allowed is a checkout"),
        (("--model", "huge"), "invalid choice: 'huge'"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, said):
    toolbox_command.assert_refused("comparative", tmp_path, arguments, said)


def test_hippo_passes_everything_on(capfd):
    assert comparative.main(["--rows", "6"]) == 2
    assert "rows is 6" in capfd.readouterr().err
