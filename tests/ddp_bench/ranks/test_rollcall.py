"""Who is named when ranks do not answer: ranks as threads, with the store of one process."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

dist = pytest.importorskip("torch.distributed")

from ddp_bench.ranks.rollcall import EXPLAINED, LOST, RollCall  # noqa: E402


def call_roll(reasons, patience_s=0.3):
    """What every rank says; `reasons` holds one per rank, None for a rank that is dead."""
    store = dist.HashStore()
    said = {rank: [] for rank in range(len(reasons))}

    def end(rank, reason):
        roll = RollCall(store, rank, len(reasons), 6.0, patience_s)
        if reason == EXPLAINED:
            roll.answer(EXPLAINED)
        else:
            roll.report(reason, said[rank].append, "cut")
            roll.report(reason, said[rank].append, "cut")  # says nothing twice

    alive = [(rank, reason) for rank, reason in enumerate(reasons) if reason]
    threads = [threading.Thread(target=end, args=who) for who in alive]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [line for rank in said for line in said[rank]], said


@pytest.mark.parametrize(
    ("reasons", "line"),
    [
        ([LOST, None, LOST], "rank 1: dead, or silent for 6 s"),
        ([None, LOST, LOST], "rank 0: dead, or silent for 6 s"),
        ([LOST, None, LOST, None], "ranks 1, 3: dead, or silent for 6 s"),
        ([LOST, LOST], "a message between ranks failed, though all are there: cut"),
    ],
)
def test_one_rank_names_those_that_do_not_answer(reasons, line):
    lines, said = call_roll(reasons)
    assert lines == [line]
    assert said[min(rank for rank, reason in enumerate(reasons) if reason)] == [line]


def test_nobody_is_blamed_where_a_rank_explains_its_own_end():
    assert call_roll([LOST, EXPLAINED, LOST], patience_s=30.0)[0] == []


WAITING = """
import sys, threading, time, torch.distributed as dist
from ddp_bench.ranks.rollcall import RollCall
roll = RollCall(dist.HashStore(), 0, 2, 6.0, 0.2)
roll.on_terminate(lambda line: print(line, flush=True))
print("ready", flush=True)
held = dist.HashStore()
held.wait(["never"])  # inside a library: no signal handler of Python runs
"""


def test_a_rank_that_waits_inside_a_library_still_answers_sigterm():
    command = [sys.executable, "-c", WAITING]
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "rank 1: dead, or silent for 6 s\n"
        assert process.wait(30) == 128 + signal.SIGTERM
