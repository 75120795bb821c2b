"""Pieces of work in threads: order, errors, and that they do run side by side."""

import threading
import time

import pytest

from experiments.common import AT_ONCE, made_once, side_by_side


def test_results_stand_in_the_order_of_the_work():
    assert side_by_side([lambda i=i: i * i for i in range(5)]) == [0, 1, 4, 9, 16]
    assert side_by_side([]) == []


def test_pieces_run_at_the_same_time():
    met = threading.Barrier(
        AT_ONCE, timeout=30
    )  # broken, and an error, if one waited for the other
    assert sorted(side_by_side([met.wait] * AT_ONCE)) == list(range(AT_ONCE))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_nothing_more_begins(error):
    begun, go = [], threading.Event()

    def fails():
        raise error

    def waits():
        begun.append(1)
        go.wait(30)

    def later():
        begun.append(2)

    threading.Timer(0.2, go.set).start()
    with pytest.raises(error):
        side_by_side([fails, waits, waits, waits, waits, later])
    assert 2 not in begun


def test_before_a_piece_begins_all_others_can_be_waited_for():
    met, running, done = threading.Barrier(AT_ONCE, timeout=30), [], []

    def piece(meets):
        running.append(1)
        if meets:  # broken, and an error, if one waited for the other
            met.wait()
        time.sleep(0.01)
        running.pop()
        done.append(1)

    def before(settle):
        assert len(running) < AT_ONCE
        if len(done) >= AT_ONCE:
            settle()
            assert not running

    side_by_side([lambda i=i: piece(i < AT_ONCE) for i in range(8)], before)
    assert len(done) == 8


def test_what_raised_is_known_before_another_piece_begins():
    begun = []

    def fails():
        raise ValueError("a piece")

    with pytest.raises(ValueError, match="a piece"):
        side_by_side(
            [fails, *[lambda: begun.append(time.sleep(0.01))] * 9], lambda settle: settle()
        )
    assert len(begun) <= AT_ONCE


def test_what_two_ask_for_at_once_is_made_once():
    made, begun = [], threading.Event()

    @made_once
    def slowly(key):
        made.append(key)
        begun.set()
        time.sleep(0.05)  # the other one asks meanwhile
        return object()

    def late():
        begun.wait()
        return slowly("a")

    one, other = side_by_side([lambda: slowly("a"), late])
    assert one is other and made == ["a"]
    assert slowly("b") is not one and slowly("a") is one


def test_what_failed_is_made_again():
    answers = iter([ValueError("first"), 5])

    @made_once
    def fails_once():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="first"):
        fails_once()
    assert fails_once() == 5
