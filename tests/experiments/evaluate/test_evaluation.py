"""An evaluation's order of work: what goes on side by side, and what is kept of what ended early."""

import threading
import types

import pytest

from experiments.evaluate import evaluation
from experiments.evaluate.evaluation import Evaluation


class Bar:
    """A progress bar that is not shown."""

    def set_postfix_str(self, text):
        pass

    def update(self, count=1):
        pass


class Kept:
    """Stands for the tables of a run folder."""

    def __init__(self):
        self.added = []

    def add(self, rows):
        self.added.append(rows)

    def once(self, table, make):
        return make()


@pytest.fixture
def one(monkeypatch):
    monkeypatch.setattr(evaluation, "_decisions", lambda name, scheduler, evaluator: name)
    return object.__new__(Evaluation)


def test_who_was_done_when_another_one_failed_is_kept(one):
    """Whether they came before in the list or after."""
    others_done, kept = threading.Barrier(3, timeout=30), Kept()

    def play(name):
        others_done.wait()
        if name == "fails":
            raise RuntimeError(name)
        return None, {"scenarios": name}

    def failing(name):
        if name == "late":
            raise AssertionError("begun after another one had failed")
        return play(name)

    meet = threading.Thread(target=others_done.wait)
    meet.start()
    with pytest.raises(RuntimeError, match="fails"):
        one._play_together(["fails", "done", "late"], failing, None, kept, Bar())
    meet.join()
    assert kept.added == [{"scenarios": "done", "decisions": "done"}]


def test_everybody_is_kept_in_the_order_of_the_list(one):
    kept = Kept()
    one._play_together(list("abcd"), lambda name: (None, {"scenarios": name}), None, kept, Bar())
    assert [rows["decisions"] for rows in kept.added] == list("abcd")


def test_a_rule_that_plays_twice_is_tuned_once(one, monkeypatch):
    """With the settings of a mixture, and as it is tuned here."""
    one.names, one.checkpoints = ["hysteresis", "hi_ppo", "hysteresis@here"], {"hi_ppo": None}
    one.config = types.SimpleNamespace(tuning_scenarios=2)
    one.evaluator = lambda count, split: (count, split)
    asked = []

    def tune(evaluators, names):
        asked.append((evaluators, names))
        return {"hysteresis_horizon": 7.0}

    monkeypatch.setattr(evaluation, "tune", tune)
    assert one._tuned(Kept()) == {"hysteresis_horizon": 7.0}
    assert asked == [([(2, "train")], ["hysteresis"])]
    one.config.tuning_scenarios = 0
    assert one._tuned(Kept()) == evaluation.default_settings() and len(asked) == 1


def test_when_tuning_is_interrupted_nothing_else_begins(one):
    solving, released, begun = threading.Event(), threading.Event(), []

    def solved(results):
        solving.set()
        assert released.wait(30)

    def interrupted(results):
        assert solving.wait(30)
        threading.Timer(0.2, released.set).start()
        raise KeyboardInterrupt

    one._solved, one._tuned, one._low_communication = solved, interrupted, begun.append
    with pytest.raises(KeyboardInterrupt):
        one._prepared(None)
    assert begun == []


def test_scenarios_are_solved_while_rivals_are_tuned(one):
    both = threading.Barrier(2, timeout=30)

    def meeting(value):
        def made(results):
            both.wait()
            return value

        return made

    one._solved, one._tuned = meeting("solved"), meeting("tuned")
    one._low_communication = lambda results: None
    assert one._prepared(None) == ("solved", "tuned", None)
