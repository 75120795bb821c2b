"""Pieces of work in threads: order, errors, and that they do run side by side."""

import threading

import pytest

from experiments.common import AT_ONCE, side_by_side


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
